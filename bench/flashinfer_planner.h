// FlashInfer's planners for one batch. On the host they work out which thread block does which part of attention, into
// pinned memory, and copy that to the device.
#ifndef FWDMETA_BENCH_FLASHINFER_PLANNER_H_
#define FWDMETA_BENCH_FLASHINFER_PLANNER_H_

#include <memory>

#include "gpu.h"

namespace fwdmeta_bench {

class FlashinferPlanner {
 public:
  virtual ~FlashinferPlanner() = default;
  // Plans, and enqueues the copy on the main stream.
  virtual void Plan() = 0;
  // Compares the plan that is on the device, after all work there, with the lengths that it was made for. Throws
  // Failure.
  virtual void Check() = 0;
};

// Of the lengths as an engine on the host has them. PrefillPlan, or MLAPlan where the case is of mla.
std::unique_ptr<FlashinferPlanner> MakeFlashinferPlanner(const Case& c, const Inputs& inputs);

}  // namespace fwdmeta_bench

#endif  // FWDMETA_BENCH_FLASHINFER_PLANNER_H_
