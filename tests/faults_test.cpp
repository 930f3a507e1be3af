// What the machine refuses: memory through the allocators, capacities that nobody has, a context that a consumer has
// poisoned. Statuses, nothing lost, nobody hangs. What others have of the same: FailingAllocations of meta_test,
// MemoryIsAskedForAtCreationAlone of slicer_test, out_of_memory_test for the C++ runtime.
#include <cstdlib>
#include <memory>
#include <thread>

#include "harness.h"

#if FWDMETA_TEST_CUDA
#include <cuda_runtime_api.h>
#include <sys/wait.h>
#include <unistd.h>

#include "fault_kernels.h"
#endif

namespace fwdmeta_test {
namespace {

class Faults : public BackendTest {};

fwdmeta_config_t Refusing(fwdmeta_backend_t backend, const reference::Config& model, Allocators* allocators) {
  static std::vector<fwdmeta_group_config_t> groups;
  return allocators->Config(model, backend, &groups);
}

// Each allocation of each kind in turn, of a builder and of a slicer: refused, everything is given back and the next
// creation from the same allocators is whole.
TEST_P(Faults, EveryAllocationInTurn) {
  reference::Config model;
  model.generations = 3;
  const reference::Batch batch = MakeBatch({{0, 5, 1}, {7, 0, 7}});
  for (int slices : {0, 1, 3}) {
    int refused = 0;
    for (int kind = 0; kind < 3; ++kind) {
      for (int n = 0; n < 100; ++n) {
        Allocators allocators;
        CountingAllocator* kinds[] = {&allocators.device, &allocators.pinned, &allocators.host};
        const fwdmeta_config_t config = Refusing(backend(), model, &allocators);
        const auto create = [&](uint64_t* handle) {
          return slices == 0 ? fwdmeta_builder_create(&config, handle) : fwdmeta_slicer_create(&config, slices, handle);
        };
        const auto destroy = [&](uint64_t handle) {
          return slices == 0 ? fwdmeta_builder_destroy(handle) : fwdmeta_slicer_destroy(handle);
        };
        uint64_t handle = 0;
        kinds[kind]->FailAfter(n);
        const fwdmeta_status_t status = create(&handle);
        kinds[kind]->FailAfter(-1);
        if (status == FWDMETA_OK) {
          EXPECT_LE(kinds[kind]->allocs(), n);
          EXPECT_OK(destroy(handle));
          break;
        }
        ++refused;
        EXPECT_STATUS(FWDMETA_OUT_OF_MEMORY, status);
        EXPECT_EQ(0u, handle);
        for (const CountingAllocator* each : kinds) EXPECT_TRUE(each->WaitUntilEmpty()) << "kind " << kind << ", " << n;
        ASSERT_OK(create(&handle));
        Inputs inputs(backend());
        const fwdmeta_batch_t args = inputs.Put(batch, FWDMETA_MEMORY_HOST);
        EXPECT_OK(slices == 0 ? fwdmeta_build(handle, &args, nullptr, nullptr)
                              : fwdmeta_build_slices(handle, &args, slices, 1, nullptr));
        EXPECT_OK(destroy(handle));
      }
    }
    EXPECT_EQ((backend() == FWDMETA_BACKEND_CUDA ? 2 : 1) * std::max(slices, 1), refused);
  }
}

// Remembers what it was asked for, and has none of it.
struct NoMemory {
  size_t bytes = 0;
  fwdmeta_allocator_t Get() {
    const auto alloc = [](size_t asked, size_t, void* user) -> void* {
      static_cast<NoMemory*>(user)->bytes = asked;
      return nullptr;
    };
    const auto free_none = [](void*, size_t, void*) {};
    return {alloc, free_none, this};
  }
};

// The largest numbers that a configuration may hold: terabytes, asked for as they are, and refused with a status.
TEST_P(Faults, AbsurdCapacities) {
  const bool cuda = backend() == FWDMETA_BACKEND_CUDA;
  fwdmeta_config_t config = FWDMETA_CONFIG_INITIALIZER;
  config.backend = backend();
  config.max_batch_size = cuda ? 131072 : INT32_MAX;
  config.max_num_tokens = INT32_MAX - 200000;
  config.max_model_len = INT32_MAX;
  config.max_num_kv_tokens = int64_t{1} << 34;
  config.num_q_heads = config.num_kv_heads = 1;
  config.block_size = 1 << 20;
  if (!cuda) config.max_batch_size = 100000;
  config.generations = 64;
  config.depth = 4096;
  NoMemory device, pinned, host;
  config.device_allocator = device.Get();
  config.pinned_allocator = pinned.Get();
  config.host_allocator = host.Get();
  fwdmeta_capacities_t capacities = FWDMETA_CAPACITIES_INITIALIZER;
  ASSERT_OK(fwdmeta_get_capacities(&config, nullptr, &capacities));
  const int64_t arrays = cuda ? capacities.device_bytes : capacities.host_bytes;
  EXPECT_GT(arrays, int64_t{1} << 42);
  fwdmeta_builder_t builder = 0;
  EXPECT_STATUS(FWDMETA_OUT_OF_MEMORY, fwdmeta_builder_create(&config, &builder));
  EXPECT_EQ(0u, builder);
  EXPECT_EQ(static_cast<size_t>(arrays), cuda ? device.bytes : host.bytes) << "the bytes that were announced";
  EXPECT_TRUE(HoldsNumbers(fwdmeta_last_error(), {arrays})) << fwdmeta_last_error();
  fwdmeta_slicer_t slicer = 0;
  EXPECT_STATUS(FWDMETA_OUT_OF_MEMORY, fwdmeta_slicer_create(&config, 16, &slicer));
  EXPECT_EQ(0u, slicer);
  if (cuda) {  // CUDA's own allocators refuse it too, and go on
    config.device_allocator = config.pinned_allocator = {nullptr, nullptr, nullptr};
    EXPECT_STATUS(FWDMETA_OUT_OF_MEMORY, fwdmeta_builder_create(&config, &builder));
  }
  Builder next(backend(), reference::Config());
  EXPECT_TRUE(next.Run(MakeBatch({{0, 5, 1}})));
}

INSTANTIATE_BACKENDS(Faults);

#if FWDMETA_TEST_CUDA

constexpr fwdmeta_backend_t kCuda = FWDMETA_BACKEND_CUDA;

// Everything ends while its work is in flight: handles at once, memory once the work is done.
TEST(FaultsOnDevice, EverythingEndsInFlight) {
  FWDMETA_SKIP_WITHOUT(kCuda);
  const reference::Config model = [] {
    reference::Config config;
    config.generations = 2;
    return config;
  }();
  const reference::Batch batch = MakeBatch({{0, 5, 1}, {7, 0, 7}});
  Inputs inputs(kCuda);
  fwdmeta_batch_t args = inputs.Put(batch, FWDMETA_MEMORY_DEVICE);
  cudaStream_t stream = nullptr;
  CUDA_OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  args.stream = stream;
  {
    Allocators allocators;
    const fwdmeta_config_t config = Refusing(kCuda, model, &allocators);
    fwdmeta_builder_t builder = 0;
    fwdmeta_slicer_t slicer = 0;
    fwdmeta_meta_t eager = 0, captured = 0, slices[2] = {};
    ASSERT_OK(fwdmeta_builder_create(&config, &builder));
    ASSERT_OK(fwdmeta_slicer_create(&config, 2, &slicer));
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t exec = nullptr;
    CUDA_OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    ASSERT_OK(fwdmeta_build(builder, &args, &captured, nullptr));
    CUDA_OK(cudaStreamEndCapture(stream, &graph));
    CUDA_OK(cudaGraphInstantiate(&exec, graph, 0));

    CUDA_OK(LaunchSpin(50000, stream));
    CUDA_OK(cudaGraphLaunch(exec, stream));
    ASSERT_OK(fwdmeta_build(builder, &args, &eager, nullptr));
    ASSERT_OK(fwdmeta_build_slices(slicer, &args, 2, 3, slices));
    fwdmeta_advance_args_t advance = FWDMETA_ADVANCE_ARGS_INITIALIZER;
    advance.stream = stream;
    ASSERT_OK(fwdmeta_advance(builder, &advance));
    EXPECT_OK(fwdmeta_builder_destroy(builder));
    EXPECT_OK(fwdmeta_slicer_destroy(slicer));
    for (fwdmeta_meta_t meta : {eager, captured, slices[0], slices[1]}) EXPECT_OK(fwdmeta_meta_destroy(meta));
    cudaGraphExecDestroy(exec);
    cudaGraphDestroy(graph);
    EXPECT_EQ(cudaErrorNotReady, cudaStreamQuery(stream)) << "the host has waited";
    EXPECT_GT(allocators.device.live(), 0) << "freed before its work was done";
    CUDA_OK(cudaStreamSynchronize(stream));
  }  // everything is freed
  cudaStreamDestroy(stream);
}

// The body of the test below: in a process of its own, as nothing of CUDA works after it.
TEST(PoisonedContext, DISABLED_InThisProcess) {
  FWDMETA_SKIP_WITHOUT(kCuda);
  reference::Config model;
  model.depth = 2;
  const reference::Batch batch = MakeBatch({{0, 5, 1}, {7, 0, 7}});
  Inputs inputs(kCuda);
  const fwdmeta_batch_t good = inputs.Put(batch, FWDMETA_MEMORY_HOST);
  fwdmeta_batch_t on_device = inputs.Put(batch, FWDMETA_MEMORY_DEVICE);
  cudaStream_t stream = nullptr;
  CUDA_OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  on_device.stream = stream;
  for (const bool own_allocators : {true, false}) {
    // The second time round the context is poisoned before the builder is made.
    Allocators allocators;
    fwdmeta_config_t config = Refusing(kCuda, model, &allocators);
    if (!own_allocators) config.device_allocator = config.pinned_allocator = {nullptr, nullptr, nullptr};
    fwdmeta_builder_t builder = 0;
    const fwdmeta_status_t created = fwdmeta_builder_create(&config, &builder);
    if (!own_allocators) {
      EXPECT_NE(Name(FWDMETA_OK), Name(created));
      EXPECT_STRNE("", fwdmeta_last_error());
      EXPECT_EQ(0u, builder);
      break;
    }
    ASSERT_OK(created);
    fwdmeta_meta_t metas[3] = {};
    ASSERT_OK(fwdmeta_build(builder, &good, &metas[0], nullptr));
    ASSERT_OK(fwdmeta_counts_wait(builder, 1, FWDMETA_WAIT_FINAL, 20000000, nullptr));
    // Behind the poison, steps that never run: both staging entries are in flight.
    CUDA_OK(LaunchSpin(20000, stream));
    CUDA_OK(LaunchPoison(stream));
    fwdmeta_batch_t behind = good;
    behind.stream = stream;
    ASSERT_OK(fwdmeta_build(builder, &behind, &metas[1], nullptr));
    ASSERT_OK(fwdmeta_build(builder, &behind, &metas[2], nullptr));
    EXPECT_NE(cudaSuccess, cudaStreamSynchronize(stream));
    cudaGetLastError();

    const auto fails = [](fwdmeta_status_t status) {
      EXPECT_EQ(Name(FWDMETA_CUDA_ERROR), Name(status));
      EXPECT_STRNE("", fwdmeta_last_error());
    };
    fwdmeta_counts_t counts = FWDMETA_COUNTS_INITIALIZER;
    EXPECT_OK(fwdmeta_counts_wait(builder, 2, 0, 0, &counts)) << "host lengths: there when the call has returned";
    EXPECT_STATUS(FWDMETA_NOT_READY, fwdmeta_counts_wait(builder, 2, FWDMETA_WAIT_FINAL, 0, &counts));
    EXPECT_STATUS(FWDMETA_TIMEOUT, fwdmeta_counts_wait(builder, 3, FWDMETA_WAIT_FINAL, 1000, &counts));
    fails(fwdmeta_build(builder, &behind, nullptr, nullptr));  // would wait for ever for a staging entry
    fails(fwdmeta_build(builder, &on_device, nullptr, nullptr));
    fwdmeta_advance_args_t advance = FWDMETA_ADVANCE_ARGS_INITIALIZER;
    advance.stream = stream;
    fails(fwdmeta_advance(builder, &advance));
    fails(fwdmeta_builder_reset(builder, stream));
    fails(fwdmeta_meta_reader_begin(metas[2], nullptr));
    const auto write = [](const char*, size_t, void*) -> int32_t { return 0; };
    fails(fwdmeta_meta_dump(metas[2], FWDMETA_DUMP_JSON, write, nullptr));
    fwdmeta_builder_info_t info = FWDMETA_BUILDER_INFO_INITIALIZER;
    EXPECT_OK(fwdmeta_builder_get_info(builder, &info));
    EXPECT_EQ(3, info.last_step) << "a build that failed took a step";
    for (fwdmeta_meta_t meta : metas) EXPECT_OK(fwdmeta_meta_destroy(meta));
    EXPECT_OK(fwdmeta_builder_destroy(builder));
    EXPECT_STATUS(FWDMETA_INVALID_HANDLE, fwdmeta_builder_destroy(builder));
    for (const CountingAllocator* each : {&allocators.device, &allocators.pinned}) EXPECT_TRUE(each->WaitUntilEmpty());
  }
  // The host backend goes on.
  Builder host(FWDMETA_BACKEND_HOST, model);
  EXPECT_TRUE(host.Run(batch));
}

// A consumer that poisons the CUDA context: every call answers, everything ends, the process goes on.
TEST(PoisonedContext, EveryCallAnswersAndEverythingEnds) {
  FWDMETA_SKIP_WITHOUT(kCuda);
  char self[4096];
  const ssize_t size = readlink("/proc/self/exe", self, sizeof self - 1);
  ASSERT_GT(size, 0);
  self[size] = 0;
  const std::string command = "timeout 120 '" + std::string(self) +
                              "' --gtest_also_run_disabled_tests --gtest_filter=PoisonedContext.DISABLED_InThisProcess";
  const int status = std::system(command.c_str());
  ASSERT_TRUE(WIFEXITED(status)) << "ended by a signal";
  EXPECT_EQ(0, WEXITSTATUS(status)) << "124 is a hang, above 128 a signal";
}

#endif  // FWDMETA_TEST_CUDA

}  // namespace
}  // namespace fwdmeta_test
