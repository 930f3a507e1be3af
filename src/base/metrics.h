// Counters of the process, for fwdmeta_metrics_write. Relaxed increments: they order nothing and take no lock.
#pragma once

#include <cstddef>

#include "base/status.h"

namespace fwdmeta {

constexpr size_t kHandleTypes = 8;  // one past the largest type of a handle table

enum class Memory { kDevice, kPinned, kHost };

void CountBuild(fwdmeta_backend_t backend, bool host_lengths, bool captured);
void CountError(Status status);
void CountHostWait();
void AddLiveHandles(size_t type, int64_t count);
void AddBytes(Memory memory, int64_t bytes);

Status WriteMetrics(fwdmeta_write_callback_t write, void* user);

}  // namespace fwdmeta
