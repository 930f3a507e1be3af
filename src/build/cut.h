// The cut of a batch's lengths on the host.
#pragma once

#include "build/backend.h"

namespace fwdmeta {

// `num_tokens`: the sum of N of a good batch; -1 where it is none.
void CutOnHost(const CutRequest& request, int32_t num_tokens);

}  // namespace fwdmeta
