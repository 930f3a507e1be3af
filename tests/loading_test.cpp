// Where and beside what the library is loaded: it keeps to itself, and says why it has no GPU.
#include <cstdlib>
#include <string>
#include <vector>

#include "fwdmeta.h"
#include "loaded_library.h"
#include "two_slots.h"

namespace fwdmeta_test {
namespace {

// Warnings and errors of a library, which ends its log's use of it.
class Records {
 public:
  explicit Records(const Loaded& library) : library_(library) {
    EXPECT_EQ(FWDMETA_OK, CALL(library_, fwdmeta_log_set_callback)(
                              [](fwdmeta_log_level_t level, const char* message, void* user) {
                                if (level < FWDMETA_LOG_WARN) return;
                                static_cast<Records*>(user)->texts.push_back(message);
                              },
                              this));
  }
  ~Records() { EXPECT_EQ(FWDMETA_OK, CALL(library_, fwdmeta_log_set_callback)(nullptr, nullptr)); }
  Records(const Records&) = delete;
  Records& operator=(const Records&) = delete;

  std::vector<std::string> texts;

 private:
  const Loaded& library_;
};

// A step of a builder of that backend; the backend that it got, or -1 with the status in *status.
fwdmeta_backend_t Step(const Loaded& library, fwdmeta_backend_t backend, fwdmeta_status_t* status) {
  TwoSlots two;
  two.config.backend = backend;
  fwdmeta_builder_t builder = 0;
  *status = CALL(library, fwdmeta_builder_create)(&two.config, &builder);
  if (*status != FWDMETA_OK) return -1;
  fwdmeta_builder_info_t info = FWDMETA_BUILDER_INFO_INITIALIZER;
  EXPECT_EQ(FWDMETA_OK, CALL(library, fwdmeta_builder_get_info)(builder, &info));
  if (info.backend == FWDMETA_BACKEND_HOST) {
    fwdmeta_meta_t meta = 0;
    fwdmeta_counts_t counts = FWDMETA_COUNTS_INITIALIZER;
    EXPECT_EQ(FWDMETA_OK, CALL(library, fwdmeta_build)(builder, &two.batch, &meta, nullptr));
    EXPECT_EQ(FWDMETA_OK, CALL(library, fwdmeta_meta_wait)(meta, 0, -1, &counts));
    EXPECT_EQ(6, counts.num_tokens);
    EXPECT_EQ(FWDMETA_OK, CALL(library, fwdmeta_meta_destroy)(meta));
  }
  EXPECT_EQ(FWDMETA_OK, CALL(library, fwdmeta_builder_destroy)(builder));
  return info.backend;
}
void HostStep(const Loaded& library) {
  fwdmeta_status_t status;
  EXPECT_EQ(FWDMETA_BACKEND_HOST, Step(library, FWDMETA_BACKEND_HOST, &status));
}

TEST(Loading, BuildsInAScopeOfItsOwnAndInThatOfAll) {
  for (const int flags : {RTLD_NOW | RTLD_LOCAL, RTLD_LAZY | RTLD_LOCAL, RTLD_NOW | RTLD_GLOBAL}) {
    Loaded library(FWDMETA_LIBRARY, flags);
    ASSERT_NE(nullptr, library.handle());
    HostStep(library);
    library.Close();
  }
}

// A decoy of CUDA's runtime in scope is called neither while the library is loaded nor by a builder of any backend.
TEST(Loading, CallsNoOthersCudaRuntime) {
  Loaded decoy(FWDMETA_CUDART_STUB, RTLD_NOW | RTLD_GLOBAL);
  auto* calls = decoy.Get<int*>("decoy_calls");
  ASSERT_NE(nullptr, calls);
  decoy.Get<int (*)()>("cudaMalloc")();
  ASSERT_EQ(1, *calls);
  Loaded library(FWDMETA_LIBRARY, RTLD_NOW | RTLD_GLOBAL);
  ASSERT_NE(nullptr, library.handle());
  HostStep(library);
  fwdmeta_status_t status;
  Step(library, FWDMETA_BACKEND_CUDA, &status);
  Step(library, FWDMETA_BACKEND_AUTO, &status);
  EXPECT_EQ(FWDMETA_OK, status);
  library.Close();
  EXPECT_EQ(1, *calls);
  decoy.Close();
}

TEST(Loading, CallsNoOthersFunctionsOfItsOwnNames) {
  Loaded others(FWDMETA_SAME_NAMES, RTLD_NOW | RTLD_GLOBAL);
  auto* calls = others.Get<int*>("same_name_calls");
  ASSERT_NE(nullptr, calls);
  ASSERT_NE(nullptr, others.Get<void*>("_ZN7fwdmeta13CudaAvailableEv"));
  Loaded library(FWDMETA_LIBRARY, RTLD_NOW | RTLD_GLOBAL);
  ASSERT_NE(nullptr, library.handle());
  HostStep(library);
  fwdmeta_status_t status;
  Step(library, FWDMETA_BACKEND_AUTO, &status);
  EXPECT_EQ(FWDMETA_OK, status);
  EXPECT_EQ(FWDMETA_INVALID_HANDLE, CALL(library, fwdmeta_builder_destroy)(12345));
  EXPECT_STRNE("", CALL(library, fwdmeta_last_error)());
  library.Close();
  EXPECT_EQ(0, *calls);
  others.Close();
}

// In entries of CTest with a stub of the driver in LD_LIBRARY_PATH; FWDMETA_DRIVER_STUB and
// FWDMETA_DRIVER_STUB_SAYS have what the error's message and the log must say.
TEST(Loading, SaysWhyTheDriverIsOfNoUse) {
  const char* reason = std::getenv("FWDMETA_DRIVER_STUB");
  if (reason == nullptr) GTEST_SKIP() << "no stub of the driver: run by the entries loading_test_*";
  void* const driver = dlopen("libcuda.so.1", RTLD_LAZY);
  ASSERT_NE(nullptr, driver) << dlerror();
  ASSERT_EQ(nullptr, dlsym(driver, "cuMemAlloc_v2")) << "this is no stub";
  Loaded library(FWDMETA_LIBRARY, RTLD_NOW | RTLD_LOCAL);
  ASSERT_NE(nullptr, library.handle());
  {
    Records records(library);
    fwdmeta_status_t status;
    EXPECT_EQ(FWDMETA_BACKEND_HOST, Step(library, FWDMETA_BACKEND_AUTO, &status));
    EXPECT_EQ(FWDMETA_OK, status);
    EXPECT_EQ(FWDMETA_BACKEND_HOST, Step(library, FWDMETA_BACKEND_AUTO, &status));
    ASSERT_EQ(1u, records.texts.size()) << "once, however many builders fall back";
    const char* said = std::getenv("FWDMETA_DRIVER_STUB_SAYS");
    ASSERT_NE(nullptr, said);
    EXPECT_NE(std::string::npos, records.texts[0].find(said)) << records.texts[0];
    EXPECT_EQ(-1, Step(library, FWDMETA_BACKEND_CUDA, &status));
    EXPECT_EQ(FWDMETA_NO_DEVICE, status);
    const std::string message = CALL(library, fwdmeta_last_error)();
    EXPECT_NE(std::string::npos, message.find(reason)) << message;
  }
  library.Close();
  dlclose(driver);
}

}  // namespace
}  // namespace fwdmeta_test
