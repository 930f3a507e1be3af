// "so the library can be unloaded" (contract-context §6): after dlclose its mapping is gone from this process, whatever
// was used and on whichever threads, nothing that it allocated is left, and it can be loaded again.
#include <atomic>
#include <climits>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <new>
#include <string>
#include <thread>
#include <vector>

#include "fwdmeta.h"
#include "loaded_library.h"
#include "two_slots.h"

namespace {
std::atomic<int64_t> allocated{0};  // by operator new, the library's too, and not yet deleted
}

__attribute__((noinline)) void* operator new(std::size_t size) {
  void* memory = std::malloc(size);
  if (memory == nullptr) throw std::bad_alloc();
  ++allocated;
  return memory;
}
__attribute__((noinline)) void operator delete(void* memory) noexcept {
  if (memory != nullptr) --allocated;
  std::free(memory);
}
__attribute__((noinline)) void operator delete(void* memory, std::size_t) noexcept { operator delete(memory); }

namespace fwdmeta_test {
namespace {

bool Mapped() {
  char path[PATH_MAX];
  EXPECT_NE(nullptr, realpath(FWDMETA_LIBRARY, path));
  std::ifstream maps("/proc/self/maps");
  EXPECT_TRUE(maps.is_open());
  for (std::string line; std::getline(maps, line);) {
    if (line.find(path) != std::string::npos) return true;
  }
  return false;
}

#define EXPECT_OK(call) EXPECT_EQ(FWDMETA_OK, call)

// A build on the host backend, which a layer finds by the thread's current context, and the same step in two slices.
void Step(const Loaded& library) {
  TwoSlots two;
  fwdmeta_builder_t builder = 0;
  ASSERT_EQ(FWDMETA_OK, CALL(library, fwdmeta_builder_create)(&two.config, &builder));
  fwdmeta_attn_metadata_t metadata = {nullptr, 0}, read = {nullptr, 0};
  EXPECT_OK(CALL(library, fwdmeta_build)(builder, &two.batch, &metadata.meta, nullptr));

  fwdmeta_layers_t layers = 0;
  EXPECT_OK(CALL(library, fwdmeta_layers_create)(&layers));
  EXPECT_OK(CALL(library, fwdmeta_layers_add)(layers, "model.layers.0.attn", &builder, 0, nullptr));
  fwdmeta_context_config_t context_config = FWDMETA_CONTEXT_CONFIG_INITIALIZER;
  context_config.layers = layers;
  fwdmeta_context_t context = 0, current = 0;
  EXPECT_OK(CALL(library, fwdmeta_context_create)(&context_config, &context));
  EXPECT_OK(CALL(library, fwdmeta_context_set_attn_metadata)(context, FWDMETA_ALL_LAYERS, 0, &metadata));
  EXPECT_OK(CALL(library, fwdmeta_context_push)(context));
  EXPECT_OK(CALL(library, fwdmeta_context_current)(&current));
  int64_t layer = -1;
  EXPECT_OK(CALL(library, fwdmeta_context_find_layer)(current, "model.layers.0.attn", &layer));
  EXPECT_OK(CALL(library, fwdmeta_context_get_attn_metadata)(current, layer, 0, &read));
  fwdmeta_counts_t counts = FWDMETA_COUNTS_INITIALIZER;
  EXPECT_OK(CALL(library, fwdmeta_meta_wait)(read.meta, 0, -1, &counts));
  EXPECT_EQ(6, counts.num_tokens);
  EXPECT_OK(CALL(library, fwdmeta_context_pop)(context));
  EXPECT_OK(CALL(library, fwdmeta_context_destroy)(context));
  EXPECT_OK(CALL(library, fwdmeta_layers_destroy)(layers));
  EXPECT_OK(CALL(library, fwdmeta_meta_destroy)(metadata.meta));
  EXPECT_OK(CALL(library, fwdmeta_builder_destroy)(builder));

  fwdmeta_slicer_t slicer = 0;
  fwdmeta_meta_t slices[2] = {};
  EXPECT_OK(CALL(library, fwdmeta_slicer_create)(&two.config, 2, &slicer));
  EXPECT_OK(CALL(library, fwdmeta_build_slices)(slicer, &two.batch, 2, FWDMETA_DEFAULT, slices));
  for (const fwdmeta_meta_t slice : slices) {
    EXPECT_OK(CALL(library, fwdmeta_meta_wait)(slice, 0, -1, &counts));
    EXPECT_EQ(3, counts.num_tokens);
    EXPECT_OK(CALL(library, fwdmeta_meta_destroy)(slice));
  }
  EXPECT_OK(CALL(library, fwdmeta_slicer_destroy)(slicer));
}

// A dispatch, and an agreement of one rank. The dropped capture size is logged as a warning.
void DispatchAndAgree(const Loaded& library) {
  const int64_t sizes[] = {1, 2, 4, 100};
  fwdmeta_dispatcher_config_t config = FWDMETA_DISPATCHER_CONFIG_INITIALIZER;
  config.mode = FWDMETA_GRAPH_FULL_AND_PIECEWISE;
  config.max_num_seqs = 4;
  config.max_num_tokens = 8;
  config.capture_sizes = sizes;
  config.num_capture_sizes = 4;
  fwdmeta_dispatcher_t dispatcher = 0;
  ASSERT_EQ(FWDMETA_OK, CALL(library, fwdmeta_dispatcher_create)(&config, &dispatcher));
  EXPECT_OK(CALL(library, fwdmeta_dispatcher_mark_captured)(dispatcher, nullptr));
  fwdmeta_dispatch_args_t args = FWDMETA_DISPATCH_ARGS_INITIALIZER;
  args.num_tokens = args.num_reqs = 3;
  args.query_len = 1;
  fwdmeta_dispatch_result_t result = FWDMETA_DISPATCH_RESULT_INITIALIZER;
  EXPECT_OK(CALL(library, fwdmeta_dispatch)(dispatcher, &args, &result));
  EXPECT_EQ(4, result.descriptor.num_tokens);

  fwdmeta_transport_config_t transport_config = FWDMETA_TRANSPORT_CONFIG_INITIALIZER;
  transport_config.num_ranks = 1;
  transport_config.gather = [](const void* send, void* recv, size_t bytes, int64_t, void*) -> fwdmeta_status_t {
    std::memcpy(recv, send, bytes);
    return FWDMETA_OK;
  };
  fwdmeta_transport_t transport = 0;
  EXPECT_OK(CALL(library, fwdmeta_transport_create)(&transport_config, &transport));
  const fwdmeta_rank_row_t row = {3, 3, 0, 0, FWDMETA_GRAPH_FULL, 1, 0, {}};
  fwdmeta_agreement_t agreement = FWDMETA_AGREEMENT_INITIALIZER;
  int64_t tokens = 0;
  EXPECT_OK(CALL(library, fwdmeta_agree_through)(transport, dispatcher, &row, 1, -1, &tokens, &agreement));
  EXPECT_EQ(4, tokens);
  EXPECT_OK(CALL(library, fwdmeta_transport_destroy)(transport));
  EXPECT_OK(CALL(library, fwdmeta_dispatcher_destroy)(dispatcher));
}

void UseAll(const Loaded& library) {
  Step(library);
  DispatchAndAgree(library);
  EXPECT_EQ(FWDMETA_INVALID_HANDLE, CALL(library, fwdmeta_builder_destroy)(12345));
  EXPECT_STRNE("", CALL(library, fwdmeta_last_error)());
}

// The warnings go to standard error, then to a callback.
void UseBothLogs(const Loaded& library) {
  ::testing::internal::CaptureStderr();
  UseAll(library);
  EXPECT_NE(std::string::npos, ::testing::internal::GetCapturedStderr().find("[fwdmeta] [warning]"));
  int records = 0;
  EXPECT_OK(CALL(library, fwdmeta_log_set_callback)(
      [](fwdmeta_log_level_t, const char*, void* user) { ++*static_cast<int*>(user); }, &records));
  EXPECT_OK(CALL(library, fwdmeta_log_set_level)(FWDMETA_LOG_TRACE));
  UseAll(library);
  EXPECT_GT(records, 1);
  EXPECT_OK(CALL(library, fwdmeta_log_set_callback)(nullptr, nullptr));
  EXPECT_OK(CALL(library, fwdmeta_log_set_level)(FWDMETA_LOG_OFF));
}

class Unload : public ::testing::Test {
 protected:
  void SetUp() override { ASSERT_FALSE(Mapped()); }
  // Loads, uses, closes; three times over, so that what a load leaves behind meets the next one.
  template <class Use>
  void ExpectUnloaded(Use use) {
    for (int round = 0; round < 3; ++round) {
      Loaded library(FWDMETA_LIBRARY, RTLD_NOW | RTLD_LOCAL);
      ASSERT_NE(nullptr, library.handle());
      ASSERT_TRUE(Mapped());
      const int64_t before = allocated;
      use(library);
      library.Close();
      ASSERT_FALSE(Mapped()) << "round " << round;
      EXPECT_EQ(before, allocated) << "round " << round;
    }
  }
};

TEST_F(Unload, WithoutUse) {
  ExpectUnloaded([](const Loaded&) {});
}

TEST_F(Unload, AfterUse) { ExpectUnloaded(UseBothLogs); }

TEST_F(Unload, AfterUseOnThreadsThatHaveEnded) {
  ExpectUnloaded([](const Loaded& library) {
    UseBothLogs(library);
    std::vector<std::thread> threads;
    for (int i = 0; i < 4; ++i) {
      threads.emplace_back([&library] {
        for (int step = 0; step < 20; ++step) UseAll(library);
      });
    }
    for (std::thread& thread : threads) thread.join();
  });
}

// A destructor of the library's for threads would keep it loaded until the last of them has ended.
TEST_F(Unload, BeforeTheThreadsThatUsedItEnd) {
  // Threads of an engine's pool, which are there before the library and after it.
  std::atomic<const Loaded*> loaded{nullptr};
  std::atomic<int> to_use{0}, used{0};
  std::atomic<bool> done{false};
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      for (int round = 1; !done; std::this_thread::yield()) {
        if (to_use < round) continue;
        UseAll(*loaded);
        ++round;
        ++used;
      }
    });
  }
  ExpectUnloaded([&](const Loaded& library) {
    UseBothLogs(library);
    loaded = &library;
    used = 0;
    ++to_use;
    while (used < 4) std::this_thread::yield();
  });
  done = true;
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace fwdmeta_test
