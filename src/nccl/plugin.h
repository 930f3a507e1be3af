/* What libfwdmeta and its NCCL plug-in agree on: the plug-in is a shared object that exports one symbol, a table. */
#ifndef FWDMETA_NCCL_PLUGIN_H
#define FWDMETA_NCCL_PLUGIN_H

#include "fwdmeta.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Also the number in the file's name. Anything that changes below is another version. */
#define FWDMETA_NCCL_PLUGIN_VERSION 1
#define FWDMETA_NCCL_PLUGIN_SYMBOL "fwdmeta_nccl_plugin"
#define FWDMETA_NCCL_PLUGIN_FILE "libfwdmeta_nccl.so.1"

/* A call that fails leaves its text here, null-terminated. */
typedef struct fwdmeta_nccl_message {
  char text[512];
} fwdmeta_nccl_message_t;

typedef struct fwdmeta_nccl_plugin {
  uint64_t struct_size;
  int32_t version;
  int32_t reserved;
  const char *name;
  /* Checks that the communicator has num_ranks ranks and is `rank` of them; allocates for `bytes` bytes of each. */
  fwdmeta_status_t (*open)(void *nccl_comm, fwdmeta_stream_t stream, int64_t num_ranks, int64_t rank, size_t bytes,
                           void **out_session, fwdmeta_nccl_message_t *message);
  /* As fwdmeta_gather_callback_t. A gather that fails after its first work was enqueued is the session's last: further
   * ones are UNAVAILABLE. TIMEOUT has aborted the communicator. */
  fwdmeta_status_t (*gather)(void *session, const void *send, void *recv, int64_t deadline_ns,
                             fwdmeta_nccl_message_t *message);
  void (*close)(void *session);
} fwdmeta_nccl_plugin_t;

#ifdef __cplusplus
}
#endif

#endif /* FWDMETA_NCCL_PLUGIN_H */
