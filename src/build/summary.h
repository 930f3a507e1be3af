// The counts of a step from host-readable lengths: the host backend's first pass, and what the CUDA backend publishes
// for host lengths before its kernel runs.
#pragma once

#include "build/inputs.h"
#include "build/mirror.h"

namespace fwdmeta {

struct Summary {
  CountsBlock block;  // error steps included
  MlaChunk chunk;
};

void Summarize(const Plan& plan, const Inputs& inputs, Summary* out);

// The status of a step by its counts, with its message; FWDMETA_OK for a good step.
Status StatusOfStep(const CountsBlock& block);

}  // namespace fwdmeta
