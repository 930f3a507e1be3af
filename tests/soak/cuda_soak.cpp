// The CUDA backend: two builders on streams of their own. Each replays a graph of many steps (the soak's kernel puts a
// batch in place, the build, the soak's kernel compares), with a few eager steps between whose comparisons run on
// another stream as readers. Lives are short, so that what creation and destruction lose shows too.
#include <cuda_runtime_api.h>

#include <cstring>
#include <memory>
#include <thread>

#include "check_kernels.h"
#include "harness.h"
#include "random_batch.h"
#include "soak.h"

namespace fwdmeta_soak {
namespace {

using fwdmeta_test::CountingAllocator;
using fwdmeta_test::Memory;

constexpr int kGraphSteps = 256, kEagerSteps = 4, kRoundsOfALife = 64;
constexpr int64_t kCapturedSets = 2;  // sets 0 and 1; the last one is left to eager builds
constexpr int64_t kTimeoutUs = 60 * 1000 * 1000;

void CheckCuda(cudaError_t error, const char* call) {
  if (error == cudaSuccess) return;
  throw std::runtime_error(std::string(call) + ": " + cudaGetErrorString(error));
}
#define SOAK_CUDA(call) ::fwdmeta_soak::CheckCuda((call), #call)

class DeviceBytes {
 public:
  explicit DeviceBytes(size_t bytes) { SOAK_CUDA(cudaMalloc(&data_, bytes)); }
  ~DeviceBytes() { cudaFree(data_); }
  DeviceBytes(const DeviceBytes&) = delete;
  DeviceBytes& operator=(const DeviceBytes&) = delete;
  char* data() const { return static_cast<char*>(data_); }

 private:
  void* data_ = nullptr;
};

int64_t UsedDeviceBytes() {
  size_t free_bytes = 0, total = 0;
  SOAK_CUDA(cudaMemGetInfo(&free_bytes, &total));
  return static_cast<int64_t>(total - free_bytes);
}

// The pools of a case on the device.
struct DeviceCase {
  explicit DeviceCase(const Case& made) : of(made) {
    for (const Pool& pool : made.pools) {
      inputs.push_back(std::make_unique<DeviceBytes>(pool.inputs.size()));
      arrays.push_back(std::make_unique<DeviceBytes>(pool.arrays.size()));
      SOAK_CUDA(cudaMemcpy(inputs.back()->data(), pool.inputs.data(), pool.inputs.size(), cudaMemcpyHostToDevice));
      SOAK_CUDA(cudaMemcpy(arrays.back()->data(), pool.arrays.data(), pool.arrays.size(), cudaMemcpyHostToDevice));
    }
  }
  const Case& of;
  std::vector<std::unique_ptr<DeviceBytes>> inputs, arrays;
};

struct Streams {
  cudaStream_t build = nullptr, read = nullptr;
  Streams() {
    SOAK_CUDA(cudaStreamCreateWithFlags(&build, cudaStreamNonBlocking));
    SOAK_CUDA(cudaStreamCreateWithFlags(&read, cudaStreamNonBlocking));
  }
};

struct Allocators {
  CountingAllocator device{Memory::kDevice}, pinned{Memory::kPinned};
  int64_t bytes() const { return static_cast<int64_t>(device.bytes() + pinned.bytes()); }
};

// The arrays of a step by their addresses.
void PointAtArrays(const Case& of, fwdmeta_meta_t meta, CheckArgs* args) {
  args->num_arrays = static_cast<int32_t>(of.places.size());
  if (of.places.size() > kMaxCheckedArrays) throw std::runtime_error("more arrays than the check has room for");
  for (size_t i = 0; i < of.places.size(); ++i) {
    const ArrayPlace& place = of.places[i];
    fwdmeta_tensor_t tensor = FWDMETA_TENSOR_INITIALIZER;
    SOAK_OK(fwdmeta_meta_get_field(meta, place.field, place.group, &tensor));
    if (tensor.shape[0] != place.count || tensor.dtype_bits != 8 * place.element_size) {
      throw std::runtime_error(std::string(fwdmeta_field_name(place.field)) + " is of another size or type");
    }
    args->array[i] = {tensor.data, place.offset, place.count, place.element_size,
                      place.field == FWDMETA_FIELD_COUNTS_I64};
  }
}

// One builder's life.
class Lane {
 public:
  Lane(const DeviceCase& made, uint64_t seed, const Streams& streams, Findings* findings, Allocators* memory)
      : made_(made), of_(made.of), seed_(seed), streams_(streams), findings_(findings), state_(sizeof(ReplayState)) {
    SOAK_CUDA(cudaMemset(state_.data(), 0, sizeof(ReplayState)));
    std::vector<fwdmeta_group_config_t> groups;
    fwdmeta_config_t config = fwdmeta_test::ToC(of_.config, FWDMETA_BACKEND_CUDA, &groups);
    config.device_allocator = memory->device.Get();
    config.pinned_allocator = memory->pinned.Get();
    SOAK_OK(fwdmeta_builder_create(&config, &builder_));
    for (const Pool& pool : of_.pools) places_.push_back(std::make_unique<DeviceBytes>(pool.input_bytes));
    SOAK_CUDA(cudaDeviceSynchronize());  // the memsets are the default stream's
  }
  ~Lane() {
    cudaStreamSynchronize(streams_.build);
    cudaStreamSynchronize(streams_.read);
    if (exec_ != nullptr) cudaGraphExecDestroy(exec_);
    for (fwdmeta_meta_t meta : set_metas_) fwdmeta_meta_destroy(meta);
    fwdmeta_builder_destroy(builder_);
  }
  Lane(const Lane&) = delete;
  Lane& operator=(const Lane&) = delete;

  // A graph of steps of all shapes and of both captured sets, in random order.
  void Capture() {
    fwdmeta_test::Random random(seed_);
    SOAK_CUDA(cudaStreamBeginCapture(streams_.build, cudaStreamCaptureModeThreadLocal));
    for (int step = 0; step < kGraphSteps; ++step) {
      const auto which = static_cast<size_t>(random.Int(0, static_cast<int64_t>(of_.pools.size()) - 1));
      const int64_t set = step < kCapturedSets ? step : random.Int(0, kCapturedSets - 1);
      const Pool& pool = of_.pools[which];
      auto* state = reinterpret_cast<ReplayState*>(state_.data());
      SOAK_CUDA(LaunchPick(made_.inputs[which]->data(), pool.input_bytes, pool.num_batches, seed_,
                           places_[which]->data(), state, streams_.build));
      BatchArgs args;
      Point(of_, pool, places_[which]->data(), &args);
      args.batch.stream = streams_.build;
      args.batch.generation = set;
      fwdmeta_meta_t& meta = set_metas_[set];
      const bool first = meta == 0;
      SOAK_OK(fwdmeta_build(builder_, &args.batch, first ? &meta : nullptr, nullptr));
      CheckArgs& check = set_checks_[set];
      if (first) PointAtArrays(of_, meta, &check);
      check.want = made_.arrays[which]->data();
      check.want_bytes = pool.array_bytes;
      check.replay = state;
      check.findings = findings_;
      SOAK_CUDA(LaunchCheck(check, streams_.build));
      last_pool_ = &pool;
    }
    cudaGraph_t graph = nullptr;
    SOAK_CUDA(cudaStreamEndCapture(streams_.build, &graph));
    const cudaError_t error = cudaGraphInstantiate(&exec_, graph, 0);
    cudaGraphDestroy(graph);
    SOAK_CUDA(error);
  }

  // Enqueues a replay of the graph and some eager steps.
  void Start(Progress* progress) {
    SOAK_CUDA(cudaGraphLaunch(exec_, streams_.build));
    replays_ += kGraphSteps;
    progress->Add(kGraphSteps);
    checks_ += kGraphSteps;
    for (int i = 0; i < kEagerSteps; ++i) {
      const int64_t number = ++eager_;
      const auto which = static_cast<size_t>(PickBatch(seed_ + 1, number, static_cast<int64_t>(of_.pools.size())));
      BuildEager(which, of_.pools[which].Pick(seed_ + 2, number), i % 2 == 0, progress);
    }
  }

  // Waits for what Start has enqueued, and compares what the mirror says.
  void Finish(Progress* progress) {
    SOAK_CUDA(cudaStreamSynchronize(streams_.build));
    SOAK_CUDA(cudaStreamSynchronize(streams_.read));
    fwdmeta_counts_t counts = FWDMETA_COUNTS_INITIALIZER;
    const fwdmeta_status_t status = fwdmeta_replay_wait(builder_, replays_, FWDMETA_WAIT_FINAL, kTimeoutUs, &counts);
    See(CompareCounts(*last_pool_, last_pool_->Pick(seed_, replays_), replays_, status, counts), progress);
    for (const Eager& eager : in_flight_) {
      counts = FWDMETA_COUNTS_INITIALIZER;
      const fwdmeta_status_t of_step =
          fwdmeta_counts_wait(builder_, eager.step, FWDMETA_WAIT_FINAL, kTimeoutUs, &counts);
      See(CompareCounts(*eager.pool, eager.picked, eager.step, of_step, counts), progress);
    }
    in_flight_.clear();
  }

  int64_t arrays_checked() const { return checks_ * static_cast<int64_t>(of_.places.size()); }
  const Case& of() const { return of_; }

  // Whether the comparison sees one wrong entry in each array.
  void Probe() {
    const Pool& pool = of_.pools[0];
    int64_t good = 0;
    while (pool.statuses[static_cast<size_t>(good)] != FWDMETA_OK) ++good;
    std::vector<char> arrays(pool.arrays.begin() + good * pool.array_bytes,
                             pool.arrays.begin() + (good + 1) * pool.array_bytes);
    for (const ArrayPlace& place : of_.places) {
      char& byte = arrays[static_cast<size_t>(place.offset + (place.count - 1) * place.element_size)];
      byte = static_cast<char>(~byte);
    }
    DeviceBytes wrong(arrays.size());
    SOAK_CUDA(cudaMemcpy(wrong.data(), arrays.data(), arrays.size(), cudaMemcpyHostToDevice));
    BatchArgs args;
    Point(of_, pool, made_.inputs[0]->data() + good * pool.input_bytes, &args);
    args.batch.stream = streams_.build;
    fwdmeta_meta_t meta = 0;
    int64_t step = 0;
    SOAK_OK(fwdmeta_build(builder_, &args.batch, &meta, &step));
    CheckArgs check = {};
    PointAtArrays(of_, meta, &check);
    check.want = wrong.data();
    check.step = step;
    check.findings = findings_;
    SOAK_CUDA(LaunchCheck(check, streams_.build));
    SOAK_CUDA(cudaStreamSynchronize(streams_.build));
    SOAK_OK(fwdmeta_meta_destroy(meta));
    Findings found;
    SOAK_CUDA(cudaMemcpy(&found, findings_, sizeof found, cudaMemcpyDeviceToHost));
    // The last entry of counts_i64 is the step, which the comparison puts in itself.
    if (found.mismatches != of_.places.size() - 1 || found.arrays != of_.places.size()) {
      throw std::runtime_error("the comparison saw " + std::to_string(found.mismatches) + " of " +
                               std::to_string(of_.places.size() - 1) + " wrong entries");
    }
    SOAK_CUDA(cudaMemset(findings_, 0, sizeof *findings_));
    SOAK_CUDA(cudaDeviceSynchronize());
  }

 private:
  struct Eager {
    const Pool* pool;
    int64_t picked, step;
  };

  void BuildEager(size_t which, int64_t picked, bool host_lengths, Progress* progress) {
    const Pool& pool = of_.pools[which];
    BatchArgs args;
    Point(of_, pool, made_.inputs[which]->data() + picked * pool.input_bytes, &args);
    args.batch.stream = streams_.build;
    std::vector<char> lengths;
    if (host_lengths) {
      BatchArgs on_host;
      lengths.assign(pool.inputs.begin() + picked * pool.input_bytes,
                     pool.inputs.begin() + (picked + 1) * pool.input_bytes);
      Point(of_, pool, lengths.data(), &on_host);
      args.batch.memory_kind = FWDMETA_MEMORY_HOST;
      args.batch.seq_lens_encoder = on_host.batch.seq_lens_encoder;
      args.batch.seq_lens_decoder = on_host.batch.seq_lens_decoder;
      args.batch.seq_lens_this_time = on_host.batch.seq_lens_this_time;
    }
    fwdmeta_meta_t meta = 0;
    int64_t step = 0;
    const fwdmeta_status_t status = fwdmeta_build(builder_, &args.batch, &meta, &step);
    if (!lengths.empty()) std::memset(lengths.data(), 0x77, lengths.size());  // the caller may, as soon as it returns
    progress->Add(1);
    const fwdmeta_status_t want = pool.statuses[static_cast<size_t>(picked)];
    if (host_lengths && want != FWDMETA_OK) {  // refused, and nothing is enqueued
      if (status != want) progress->AddMismatches(1, std::string("a refused build: ") + fwdmeta_status_name(status));
      return;
    }
    Check(status, "fwdmeta_build");
    CheckArgs check = {};
    PointAtArrays(of_, meta, &check);
    check.want = made_.arrays[which]->data();
    check.want_bytes = pool.array_bytes;
    check.batch = picked;
    check.step = step;
    check.findings = findings_;
    SOAK_OK(fwdmeta_meta_reader_begin(meta, streams_.read));
    SOAK_CUDA(LaunchCheck(check, streams_.read));
    SOAK_OK(fwdmeta_meta_reader_end(meta, streams_.read));
    SOAK_OK(fwdmeta_meta_destroy(meta));
    ++checks_;
    in_flight_.push_back({&pool, picked, step});
  }

  void See(const std::string& differ, Progress* progress) {
    if (!differ.empty()) progress->AddMismatches(1, differ + ", case " + of_.name);
  }

  const DeviceCase& made_;
  const Case& of_;
  const uint64_t seed_;
  const Streams& streams_;
  Findings* const findings_;
  DeviceBytes state_;
  std::vector<std::unique_ptr<DeviceBytes>> places_;  // of each pool's shape: what captured builds read
  fwdmeta_builder_t builder_ = 0;
  fwdmeta_meta_t set_metas_[kCapturedSets] = {};
  CheckArgs set_checks_[kCapturedSets] = {};
  cudaGraphExec_t exec_ = nullptr;
  const Pool* last_pool_ = nullptr;  // of the graph's last step
  int64_t replays_ = 0, eager_ = 0, checks_ = 0;
  std::vector<Eager> in_flight_;
};

// What the comparisons have found so far in this life; false once there is something.
bool SeeFindings(const Findings* findings, const Lane& first, const Lane& second, cudaStream_t stream,
                 Progress* progress, unsigned long long* arrays) {
  Findings found;
  SOAK_CUDA(cudaMemcpyAsync(&found, findings, sizeof found, cudaMemcpyDeviceToHost, stream));
  SOAK_CUDA(cudaStreamSynchronize(stream));
  *arrays = found.arrays;
  if (found.mismatches == 0) return true;
  const auto name = [&found](const Lane& lane) {
    const auto at = static_cast<size_t>(found.array);
    return at < lane.of().places.size() ? fwdmeta_field_name(lane.of().places[at].field) : "";
  };
  progress->AddMismatches(static_cast<int64_t>(found.mismatches),
                          "array " + std::to_string(found.array) + " (" + name(first) + " of " + first.of().name +
                              " or " + name(second) + " of " + second.of().name + "), entry " +
                              std::to_string(found.index) + ": got " + std::to_string(found.got) + ", want " +
                              std::to_string(found.want) + ", batch " + std::to_string(found.batch) + ", step " +
                              std::to_string(found.step));
  return false;
}

}  // namespace

int RunOnCuda(const std::vector<Case>& cases, const Options& options) {
  std::vector<std::unique_ptr<DeviceCase>> made;
  for (const Case& of : cases) made.push_back(std::make_unique<DeviceCase>(of));
  Allocators memory;
  DeviceBytes findings_memory(sizeof(Findings));
  auto* findings = reinterpret_cast<Findings*>(findings_memory.data());
  SOAK_CUDA(cudaMemset(findings, 0, sizeof *findings));
  const Streams streams[2];
  Progress progress(options);
  for (const auto& of : made) Lane(*of, options.seed, streams[0], findings, &memory).Probe();
  progress.Show(UsedDeviceBytes());

  int64_t lives = 0;
  const auto rest = [&] {
    SOAK_CUDA(cudaDeviceSynchronize());
    memory.device.WaitUntilEmpty();
    memory.pinned.WaitUntilEmpty();
    progress.Rest(UsedDeviceBytes());
  };
  while (!progress.Done()) {
    {
      const auto at = static_cast<size_t>(lives);
      const uint64_t seed = options.seed + at * 100;
      Lane first(*made[at % made.size()], seed, streams[0], findings, &memory);
      Lane second(*made[(at + 1) % made.size()], seed + 50, streams[1], findings, &memory);
      Lane* lanes[] = {&first, &second};
      for (Lane* lane : lanes) lane->Capture();
      unsigned long long arrays = 0;
      for (Lane* lane : lanes) lane->Start(&progress);
      bool going = true;
      for (int round = 1; going; ++round) {
        going = round < kRoundsOfALife && !progress.Done();
        for (int i = 0; i < 2; ++i) {
          lanes[i]->Finish(&progress);
          going = SeeFindings(findings, first, second, streams[i].build, &progress, &arrays) && going;
          if (going) lanes[i]->Start(&progress);
        }
        progress.Show(UsedDeviceBytes());
      }
      for (Lane* lane : lanes) lane->Finish(&progress);
      SeeFindings(findings, first, second, streams[0].build, &progress, &arrays);
      const int64_t want = first.arrays_checked() + second.arrays_checked();
      if (static_cast<int64_t>(arrays) != want) {
        progress.AddMismatches(1, std::to_string(arrays) + " arrays were compared, not " + std::to_string(want));
      }
      progress.AddArrays(static_cast<int64_t>(arrays));
      SOAK_CUDA(cudaMemset(findings, 0, sizeof *findings));
      lives += 1;
    }
    // All cases have had two lives.
    if (static_cast<size_t>(lives) % made.size() == 0) rest();
  }
  rest();
  return progress.Report("cuda", memory.bytes(), 2 * lives) ? 0 : 1;
}

}  // namespace fwdmeta_soak
