/* Stands for libcuda.so.1, CUDA's driver: one without a device, or with OLD_DRIVER one of CUDA 11.0. */
#include <stddef.h>
#include <string.h>

enum { kNoDevice = 100 };

int cuInit(unsigned int flags) {
  (void)flags;
#ifdef OLD_DRIVER
  return 0;
#else
  return kNoDevice;
#endif
}
int cuDriverGetVersion(int *version) {
#ifdef OLD_DRIVER
  *version = 11000;
#else
  *version = 13000;
#endif
  return 0;
}
int cuDeviceGetCount(int *count) {
  *count = 0;
  return kNoDevice;
}
/* Whatever else is asked for. */
static int any(void) { return kNoDevice; }

int cuGetProcAddress_v2(const char *symbol, void **address, int version, unsigned long long flags, int *found) {
  (void)version;
  (void)flags;
  if (found != NULL) *found = 0;
  if (strcmp(symbol, "cuInit") == 0) {
    *address = (void *)cuInit;
  } else if (strcmp(symbol, "cuDriverGetVersion") == 0) {
    *address = (void *)cuDriverGetVersion;
  } else if (strcmp(symbol, "cuDeviceGetCount") == 0) {
    *address = (void *)cuDeviceGetCount;
  } else if (strncmp(symbol, "cuGetProcAddress", 16) == 0) {
    *address = (void *)cuGetProcAddress_v2;
  } else {
    *address = (void *)any;
  }
  return 0;
}
int cuGetProcAddress(const char *symbol, void **address, int version, unsigned long long flags) {
  return cuGetProcAddress_v2(symbol, address, version, flags, NULL);
}
