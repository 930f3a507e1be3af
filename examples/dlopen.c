/* Loads the library at run time: an engine that does so starts without it, and needs nothing but fwdmeta.h to build. */
#include <dlfcn.h>
#include <fwdmeta.h>
#include <stdio.h>
#include <string.h>

int main(void) {
  void *library = dlopen("libfwdmeta.so.1", RTLD_NOW | RTLD_LOCAL);
  if (!library) {
    fprintf(stderr, "%s\n", dlerror());
    return 1;
  }
  /* memcpy, since ISO C converts no object pointer to a function pointer */
  int32_t (*version)(void) = NULL;
  const char *(*status_name)(fwdmeta_status_t) = NULL;
  void *version_symbol = dlsym(library, "fwdmeta_version");
  void *status_name_symbol = dlsym(library, "fwdmeta_status_name");
  if (!version_symbol || !status_name_symbol) {
    fprintf(stderr, "%s\n", dlerror());
    return 1;
  }
  memcpy(&version, &version_symbol, sizeof(version));
  memcpy(&status_name, &status_name_symbol, sizeof(status_name));

  const int32_t v = version();
  printf("libfwdmeta %d.%d.%d, built against %d.%d.%d; status %d is %s\n", v / 10000, v / 100 % 100, v % 100,
         FWDMETA_VERSION_MAJOR, FWDMETA_VERSION_MINOR, FWDMETA_VERSION_PATCH, FWDMETA_INVALID_BATCH,
         status_name(FWDMETA_INVALID_BATCH));
  const int same_major = v / 10000 == FWDMETA_VERSION_MAJOR;
  dlclose(library);
  return !same_major;
}
