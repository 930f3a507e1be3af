// Frees ended backends once their recorded work is done, on a thread of its own: cudaFree waits for the whole device,
// and the destruction of a builder does not.
#pragma once

#include "build/backend.h"

namespace fwdmeta {

class Reapable : public Backend {
 public:
  // Whether the work that CUDA's own frees would not wait for is done.
  virtual bool Done() = 0;
  // Whether freeing waits for nothing but what Done has answered for.
  virtual bool FreesAtOnce() const = 0;
};

// Before anything is given to it, so that at exit it stops before the runtime and driver below it end, and what is let
// go of later stays with the process.
void PrepareReaper();
// Takes ownership.
void Reap(Reapable* backend);
// Waits, not for ever, until what has been given to Reap is freed: for a creation that found no memory.
void DrainReaper();

}  // namespace fwdmeta
