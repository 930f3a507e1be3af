/* A tool that NVTX loads in a profiler's place: keeps the names of ranges, in the order in which they begin. */
#define NVTX_NO_IMPL
#include <nvtx3/nvToolsExt.h>
#include <stdio.h>
#include <string.h>

#define EXPORT __attribute__((visibility("default")))

static char ranges[4096];
static int depth;
static char domain;

static nvtxDomainHandle_t create(const char *name) { return strcmp(name, "fwdmeta") == 0 ? (void *)&domain : NULL; }

static int push(nvtxDomainHandle_t handle, const nvtxEventAttributes_t *attributes) {
  const size_t length = strlen(ranges);
  const char *mine = handle == (void *)&domain ? "" : "foreign:";
  snprintf(ranges + length, sizeof(ranges) - length, "%s%s ", mine, attributes->message.ascii);
  return depth++;
}

static int pop(nvtxDomainHandle_t handle) {
  (void)handle;
  return --depth;
}

/* The names since the last call, each with a space behind it. */
EXPORT const char *recorded_ranges(void) {
  static char taken[sizeof(ranges)];
  memcpy(taken, ranges, sizeof(ranges));
  ranges[0] = '\0';
  return taken;
}

EXPORT int open_ranges(void) { return depth; }

EXPORT int InitializeInjectionNvtx2(NvtxGetExportTableFunc_t get_table) {
  const NvtxExportTableCallbacks *callbacks = get_table(NVTX_ETID_CALLBACKS);
  NvtxFunctionTable table = NULL;
  unsigned int size = 0;
  if (callbacks == NULL || !callbacks->GetModuleFunctionTable(NVTX_CB_MODULE_CORE2, &table, &size)) return 0;
  if (size <= NVTX_CBID_CORE2_DomainCreateA) return 0;
  *table[NVTX_CBID_CORE2_DomainCreateA] = (NvtxFunctionPointer)create;
  *table[NVTX_CBID_CORE2_DomainRangePushEx] = (NvtxFunctionPointer)push;
  *table[NVTX_CBID_CORE2_DomainRangePop] = (NvtxFunctionPointer)pop;
  return 1;
}
