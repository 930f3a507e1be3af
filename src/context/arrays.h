// Checks of the counts and length arrays that the forward context's calls take.
#pragma once

#include <cstdint>

#include "base/check.h"
#include "build/read_rows.h"

namespace fwdmeta {

// Not null where there is an entry, and aligned.
template <class T>
Status CheckArray(const T* data, int64_t count, const char* name) {
  if (data == nullptr && count > 0) {
    return Fail(FWDMETA_INVALID_ARGUMENT, "%s is null and there are %lld entries", name, (long long)count);
  }
  return CheckAligned(data, name);
}

// No negative entry, else INVALID_BATCH.
Status CheckLengths(const int32_t* lengths, int32_t count, const char* name);

// As CheckLengths; a sum past int32 is INVALID_BATCH too.
Status SumLengths(const int32_t* lengths, int32_t count, const char* name, int32_t* sum);

// Two arrays of slots whose roles are clear, else INVALID_ARGUMENT, or INVALID_BATCH as a build would say. `num_tokens`
// is the sum of this_time.
Status CheckRoles(const int32_t* encoder, const int32_t* this_time, int64_t batch_size, int32_t* num_tokens);

// No negative length, no sequence that is shorter than its tokens of this step, else INVALID_BATCH. `num_tokens` is the
// sum of query_lens.
Status CheckRequests(const int32_t* query_lens, const int32_t* seq_lens, int32_t num_reqs, int32_t* num_tokens);

}  // namespace fwdmeta
