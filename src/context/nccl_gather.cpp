#include "context/nccl_gather.h"

#include <dlfcn.h>

#include <cstdlib>
#include <string>

#include "base/log.h"

namespace fwdmeta {
namespace {

constexpr char kPathVariable[] = "FWDMETA_PLUGIN_PATH";

// The plug-in's file, always an absolute path: dlopen searches the loader's folders for a bare name, and takes another
// relative one from the working directory.
Status FindPlugin(const char* plugin_path, std::string* out) {
  const char* source = "plugin_path";
  const char* stated = plugin_path;
  if (stated == nullptr) {
    source = kPathVariable;
    stated = secure_getenv(kPathVariable);
    if (stated != nullptr && *stated == '\0') stated = nullptr;
  }
  if (stated != nullptr) {
    if (*stated != '/')
      return Fail(FWDMETA_INVALID_ARGUMENT, "%s is \"%s\", expected an absolute path", source, stated);
    *out = stated;
    return FWDMETA_OK;
  }
  Dl_info library;
  if (dladdr(kPathVariable, &library) == 0 || library.dli_fname == nullptr || *library.dli_fname != '/') {
    return Fail(FWDMETA_UNAVAILABLE,
                "libfwdmeta was not loaded by an absolute path, so its folder is unknown; state plugin_path or %s",
                kPathVariable);
  }
  out->assign(library.dli_fname);
  out->resize(out->rfind('/') + 1);
  out->append(FWDMETA_NCCL_PLUGIN_FILE);
  return FWDMETA_OK;
}

}  // namespace

Status NcclGather::Load(const char* plugin_path) {
  std::string path;
  FWDMETA_TRY(FindPlugin(plugin_path, &path));
  file_ = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (file_ == nullptr) return Fail(FWDMETA_UNAVAILABLE, "the NCCL plug-in could not be loaded: %s", dlerror());
  plugin_ = static_cast<const fwdmeta_nccl_plugin_t*>(dlsym(file_, FWDMETA_NCCL_PLUGIN_SYMBOL));
  if (plugin_ == nullptr) return Fail(FWDMETA_UNAVAILABLE, "%s is no plug-in of fwdmeta: %s", path.c_str(), dlerror());
  if (plugin_->version != FWDMETA_NCCL_PLUGIN_VERSION || plugin_->struct_size != sizeof(*plugin_)) {
    return Fail(FWDMETA_UNSUPPORTED, "%s is a plug-in of version %d with %llu bytes, expected version %d with %zu",
                path.c_str(), plugin_->version, (unsigned long long)plugin_->struct_size, FWDMETA_NCCL_PLUGIN_VERSION,
                sizeof(*plugin_));
  }
  Log(FWDMETA_LOG_DEBUG, "transport: %s from %s", plugin_->name, path.c_str());
  return FWDMETA_OK;
}

Status NcclGather::Open(const fwdmeta_transport_config_t& config, size_t bytes, std::unique_ptr<NcclGather>* out) {
  std::unique_ptr<NcclGather> gather(new NcclGather);
  FWDMETA_TRY(gather->Load(config.plugin_path));
  fwdmeta_nccl_message_t message = {};
  const Status status = gather->plugin_->open(config.nccl_comm, config.stream, config.num_ranks, config.rank, bytes,
                                              &gather->session_, &message);
  if (status != FWDMETA_OK) return Fail(status, "%s", message.text);
  *out = std::move(gather);
  return FWDMETA_OK;
}

NcclGather::~NcclGather() {
  if (session_ != nullptr) plugin_->close(session_);
  if (file_ != nullptr) dlclose(file_);
}

Status NcclGather::Gather(const void* send, void* recv, int64_t deadline_ns) {
  fwdmeta_nccl_message_t message = {};
  const Status status = plugin_->gather(session_, send, recv, deadline_ns, &message);
  return status == FWDMETA_OK ? Status{FWDMETA_OK} : Fail(status, "%s", message.text);
}

}  // namespace fwdmeta
