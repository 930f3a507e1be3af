// Exports the plug-in's table: sessions as opaque pointers, statuses with their text copied out.
#include <cstdio>
#include <exception>
#include <memory>
#include <new>

#include "nccl/plugin.h"
#include "nccl/session.h"

namespace fwdmeta {
namespace {

template <class Body>
Status WithMessage(fwdmeta_nccl_message_t* message, Body body) noexcept {
  Status status = FWDMETA_INTERNAL;
  try {
    status = body();
  } catch (const std::bad_alloc&) {
    status = Fail(FWDMETA_OUT_OF_MEMORY, "the C++ runtime is out of memory");
  } catch (const std::exception& error) {
    status = Fail(FWDMETA_INTERNAL, "internal error: %s", error.what());
  }
  if (status != FWDMETA_OK) std::snprintf(message->text, sizeof(message->text), "%s", LastError());
  return status;
}

Status Open(void* nccl_comm, fwdmeta_stream_t stream, int64_t num_ranks, int64_t rank, size_t bytes, void** out_session,
            fwdmeta_nccl_message_t* message) {
  return WithMessage(message, [&] {
    auto session = std::make_unique<NcclSession>(static_cast<ncclComm_t>(nccl_comm), static_cast<cudaStream_t>(stream));
    FWDMETA_TRY(session->Open(num_ranks, rank, bytes));
    *out_session = session.release();
    return Status{FWDMETA_OK};
  });
}

Status Gather(void* session, const void* send, void* recv, int64_t deadline_ns, fwdmeta_nccl_message_t* message) {
  return WithMessage(message, [&] { return static_cast<NcclSession*>(session)->Gather(send, recv, deadline_ns); });
}

void Close(void* session) { delete static_cast<NcclSession*>(session); }

}  // namespace
}  // namespace fwdmeta

#define FWDMETA_NCCL_TEXT(x) #x
#define FWDMETA_NCCL_VERSION_TEXT(major, minor) "NCCL " FWDMETA_NCCL_TEXT(major) "." FWDMETA_NCCL_TEXT(minor)

extern "C" __attribute__((visibility("default")))
const fwdmeta_nccl_plugin_t fwdmeta_nccl_plugin = {sizeof(fwdmeta_nccl_plugin_t),
                                                   FWDMETA_NCCL_PLUGIN_VERSION,
                                                   0,
                                                   FWDMETA_NCCL_VERSION_TEXT(NCCL_MAJOR, NCCL_MINOR),
                                                   fwdmeta::Open,
                                                   fwdmeta::Gather,
                                                   fwdmeta::Close};
