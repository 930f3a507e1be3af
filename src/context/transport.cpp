#include "context/transport.h"

#include <cstring>
#include <new>

#include "base/check.h"
#include "base/clock.h"
#include "base/handle_table.h"
#include "base/struct_io.h"
#include "context/agreement.h"
#include "context/dispatcher.h"

namespace fwdmeta {
namespace {

HandleTable<std::shared_ptr<Transport>, 4>& Transports() { return TheTable<std::shared_ptr<Transport>, 4>(); }

// A time of CLOCK_MONOTONIC in ns; INT64_MAX, no deadline, also where it would lie past that.
int64_t Deadline(int64_t timeout_us) {
  if (timeout_us < 0) return INT64_MAX;
  const int64_t now_ns = MonotonicNs();
  return timeout_us > (INT64_MAX - now_ns) / 1000 ? INT64_MAX : now_ns + timeout_us * 1000;
}

}  // namespace

Status Transport::Find(fwdmeta_transport_t handle, std::shared_ptr<Transport>* out) {
  *out = Transports().Find(handle);
  if (*out != nullptr) return FWDMETA_OK;
  return Fail(FWDMETA_INVALID_HANDLE, "0x%llx is no transport", (unsigned long long)handle);
}

Status Transport::Take(fwdmeta_transport_t handle, int state) {
  int found = kIdle;
  if (state_.compare_exchange_strong(found, state, std::memory_order_acquire)) return FWDMETA_OK;
  if (found == kDestroyed) return Fail(FWDMETA_INVALID_HANDLE, "0x%llx is no transport", (unsigned long long)handle);
  return Fail(FWDMETA_BUSY, "a gather of transport 0x%llx, rank %lld of %lld, is running", (unsigned long long)handle,
              (long long)config_.rank, (long long)config_.num_ranks);
}

Status Transport::Create(const fwdmeta_transport_config_t* in, fwdmeta_transport_t* out) {
  if (out == nullptr) return Fail(FWDMETA_INVALID_ARGUMENT, "out is null");
  const fwdmeta_transport_config_t defaults = FWDMETA_TRANSPORT_CONFIG_INITIALIZER;
  std::shared_ptr<Transport> transport(new Transport);
  fwdmeta_transport_config_t& config = transport->config_;
  FWDMETA_TRY(ReadStruct(in, defaults, "config", &config));
  FWDMETA_TRY(CheckRange("num_ranks", config.num_ranks, 1, INT32_MAX));
  if (config.rank < 0 || config.rank >= config.num_ranks) {
    return Fail(FWDMETA_INVALID_ARGUMENT, "rank is %lld, num_ranks is %lld", (long long)config.rank,
                (long long)config.num_ranks);
  }
  const int ways = (config.gather != nullptr) + (config.nccl_comm != nullptr);
  if (ways != 1) return Fail(FWDMETA_INVALID_ARGUMENT, "%d of gather and nccl_comm are set, expected 1", ways);
  transport->rows_.reset(new (std::nothrow) fwdmeta_rank_row_t[config.num_ranks]);
  if (transport->rows_ == nullptr) {
    return Fail(FWDMETA_OUT_OF_MEMORY, "no memory for the rows of %lld ranks", (long long)config.num_ranks);
  }
  if (config.nccl_comm != nullptr) {
    FWDMETA_TRY(NcclGather::Open(config, sizeof(fwdmeta_rank_row_t), &transport->nccl_));
  }
  config.plugin_path = nullptr;  // the caller's
  if (!Transports().Reserve(1)) return Fail(FWDMETA_OUT_OF_MEMORY, "no transport handle is left");
  transport->reserved_ = true;
  *out = Transports().Insert(std::move(transport));
  return FWDMETA_OK;
}

Transport::~Transport() {
  if (reserved_) Transports().Unreserve(1);
}

Status Transport::Destroy(fwdmeta_transport_t handle) {
  if (handle == 0) return FWDMETA_OK;
  std::shared_ptr<Transport> transport;
  FWDMETA_TRY(Find(handle, &transport));
  FWDMETA_TRY(transport->Take(handle, kDestroyed));
  Transports().Remove(handle);
  return FWDMETA_OK;
}

Status Transport::Gather(const fwdmeta_rank_row_t& row, int64_t timeout_us) {
  const int64_t deadline_ns = Deadline(timeout_us);
  const long long rank = config_.rank, num_ranks = config_.num_ranks;
  if (nccl_ != nullptr) {
    FWDMETA_TRY(nccl_->Gather(&row, rows_.get(), deadline_ns));
  } else {
    const Status status = config_.gather(&row, rows_.get(), sizeof(row), deadline_ns, config_.user);
    if (status < 0 || status >= FWDMETA_STATUS_COUNT) {
      return Fail(FWDMETA_INTERNAL, "the gather callback of rank %lld of %lld returned %d, which is no status", rank,
                  num_ranks, status);
    }
    if (status != FWDMETA_OK) {
      return Fail(status, "the gather callback of rank %lld of %lld returned %s at step %lld", rank, num_ranks,
                  StatusName(status), (long long)row.step);
    }
  }
  // Every rank would read another's numbers as its own, so that the results would differ in silence.
  if (std::memcmp(&rows_[rank], &row, sizeof(row)) != 0) {
    return Fail(
        FWDMETA_INVALID_ARGUMENT,
        "the gather put another row at rank %lld of %lld: %lld tokens at step %lld, sent were %lld at step %lld", rank,
        num_ranks, (long long)rows_[rank].num_tokens, (long long)rows_[rank].step, (long long)row.num_tokens,
        (long long)row.step);
  }
  return FWDMETA_OK;
}

Status Transport::Agree(fwdmeta_transport_t handle, fwdmeta_dispatcher_t dispatcher, const fwdmeta_rank_row_t* row,
                        int64_t num_slices, int64_t timeout_us, int64_t* num_tokens, fwdmeta_agreement_t* out) {
  std::shared_ptr<Transport> transport;
  FWDMETA_TRY(Find(handle, &transport));
  // What is the caller's own mistake is refused before other ranks hear of the step. What the rows hold is judged
  // after, by all ranks alike.
  if (row == nullptr) return Fail(FWDMETA_INVALID_ARGUMENT, "row is null");
  FWDMETA_TRY(CheckOutStruct(out, "out"));
  FWDMETA_TRY(CheckRange("num_slices", num_slices, 1, FWDMETA_MAX_SLICES));
  std::shared_ptr<Dispatcher> found;
  FWDMETA_TRY(Dispatcher::Find(dispatcher, &found));
  FWDMETA_TRY(transport->Take(handle, kRunning));
  struct Release {
    ~Release() { transport->state_.store(kIdle, std::memory_order_release); }
    Transport* transport;
  } release{transport.get()};
  FWDMETA_TRY(transport->Gather(*row, timeout_us));
  return AgreeOnRows(*found, transport->rows_.get(), transport->config_.num_ranks, num_slices, num_tokens, out);
}

}  // namespace fwdmeta
