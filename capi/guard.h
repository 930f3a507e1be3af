// Exceptions to statuses: what every function of the C ABI runs in.
#pragma once

#include <exception>
#include <new>

#include "base/metrics.h"

namespace fwdmeta {

// Nothing throws across the ABI.
template <class Body>
Status Caught(Body body) noexcept {
  try {
    return body();
  } catch (const std::bad_alloc&) {
    return Fail(FWDMETA_OUT_OF_MEMORY, "the C++ runtime is out of memory");
  } catch (const std::exception& error) {
    return Fail(FWDMETA_INTERNAL, "internal error: %s", error.what());
  } catch (...) {
    return Fail(FWDMETA_INTERNAL, "internal error");
  }
}

template <class Body>
Status Guard(Body body) noexcept {
  const Status status = Caught(body);
  CountError(status);
  return status;
}

}  // namespace fwdmeta
