/* A plug-in of a later version, or one whose table has another size: neither may be called. */
#include "nccl/plugin.h"

#ifndef WRONG_VERSION
#define WRONG_VERSION 0
#endif
#ifndef WRONG_SIZE
#define WRONG_SIZE 0
#endif

__attribute__((visibility("default")))
const fwdmeta_nccl_plugin_t fwdmeta_nccl_plugin = {sizeof(fwdmeta_nccl_plugin_t) - 8 * WRONG_SIZE,
                                                   FWDMETA_NCCL_PLUGIN_VERSION + 41 * WRONG_VERSION,
                                                   0,
                                                   "wrong",
                                                   NULL,
                                                   NULL,
                                                   NULL};
