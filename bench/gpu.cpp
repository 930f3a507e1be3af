#include "gpu.h"

#include <algorithm>
#include <cmath>
#include <fstream>

#include "floor_kernels.h"
#include "variants.h"

namespace fwdmeta_bench {
namespace {

// A graph runs about so long, which is long against its launch.
constexpr double kGraphSeconds = 400e-6;
constexpr int kFewestSteps = 8, kMostSteps = 128;
// A timed run is so long. The host gets a head start while a kernel spins, so that it never is what is timed.
constexpr double kRunSeconds = 5e-3;
constexpr int kMostReplays = 200;
constexpr double kHeadStartSeconds = 1e-3;
constexpr int kRuns = 5, kWarmRuns = 3;

int Clamp(double value, int least, int most) {
  return static_cast<int>(std::min<double>(std::max<double>(std::ceil(value), least), most));
}

// Seconds of so many replays.
double TimeReplays(const Graph& graph, int replays) {
  const Gpu& gpu = TheGpu();
  const auto head_start = static_cast<int64_t>(kHeadStartSeconds * static_cast<double>(gpu.cycles_per_second));
  BENCH_CUDA(LaunchSpin(1, head_start, gpu.stream));
  graph.Replay();  // warms what this graph needs
  BENCH_CUDA(cudaEventRecord(gpu.begin, gpu.stream));
  for (int i = 0; i < replays; ++i) graph.Replay();
  BENCH_CUDA(cudaEventRecord(gpu.end, gpu.stream));
  BENCH_CUDA(cudaEventSynchronize(gpu.end));
  float milliseconds = 0;
  BENCH_CUDA(cudaEventElapsedTime(&milliseconds, gpu.begin, gpu.end));
  return milliseconds * 1e-3;
}

std::string DriverVersion() {
  // "NVRM version: NVIDIA UNIX ... x86_64  580.65.06  Release Build ..."
  std::ifstream file("/proc/driver/nvidia/version");
  std::string word;
  while (file >> word) {
    if (word.find('.') != std::string::npos && word.find_first_not_of("0123456789.") == std::string::npos) return word;
  }
  return "unknown";
}

std::string CudaVersion(int version) {
  return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
}

}  // namespace

void CheckCuda(cudaError_t error, const char* call) {
  if (error == cudaSuccess) return;
  cudaGetLastError();
  throw Failure(std::string(call) + ": " + cudaGetErrorString(error));
}

DeviceBuffer::DeviceBuffer(size_t bytes) : size_(bytes) { BENCH_CUDA(cudaMalloc(&data_, std::max<size_t>(bytes, 1))); }

PinnedBuffer::PinnedBuffer(size_t bytes) {
  BENCH_CUDA(cudaHostAlloc(&data_, std::max<size_t>(bytes, 1), cudaHostAllocMapped));
}

const Gpu& TheGpu() {
  static const Gpu* const gpu = [] {
    auto* made = new Gpu();
    BENCH_CUDA(cudaStreamCreateWithFlags(&made->stream, cudaStreamNonBlocking));
    BENCH_CUDA(cudaStreamCreateWithFlags(&made->side, cudaStreamNonBlocking));
    BENCH_CUDA(cudaEventCreate(&made->begin));
    BENCH_CUDA(cudaEventCreate(&made->end));
    BENCH_CUDA(cudaEventCreateWithFlags(&made->fork, cudaEventDisableTiming));
    BENCH_CUDA(cudaEventCreateWithFlags(&made->join, cudaEventDisableTiming));
    int device = 0, kilohertz = 0;
    BENCH_CUDA(cudaGetDevice(&device));
    BENCH_CUDA(cudaDeviceGetAttribute(&made->num_sms, cudaDevAttrMultiProcessorCount, device));
    BENCH_CUDA(cudaDeviceGetAttribute(&kilohertz, cudaDevAttrClockRate, device));
    made->cycles_per_second = int64_t{1000} * kilohertz;
    return made;
  }();
  return *gpu;
}

GpuInfo FindGpu() {
  int devices = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
    cudaGetLastError();
    return {};
  }
  // The floors are then what they can be: a synchronisation that spins. Before the context is made by cudaSetDevice.
  BENCH_CUDA(cudaSetDeviceFlags(cudaDeviceScheduleSpin));
  BENCH_CUDA(cudaSetDevice(0));
  cudaDeviceProp properties;
  BENCH_CUDA(cudaGetDeviceProperties(&properties, 0));
  int driver = 0, runtime = 0;
  BENCH_CUDA(cudaDriverGetVersion(&driver));
  BENCH_CUDA(cudaRuntimeGetVersion(&runtime));
  GpuInfo info;
  info.num_sms = TheGpu().num_sms;
  info.context = {{"gpu", properties.name},
                  {"gpu_sms", std::to_string(info.num_sms)},
                  {"gpu_driver", DriverVersion()},
                  {"cuda_of_driver", CudaVersion(driver)},
                  {"cuda_runtime", CudaVersion(runtime)},
                  {"bytes_of_build_arguments", std::to_string(BytesOfBuildArgs())}};
  return info;
}

Graph::Graph(int steps, const std::function<void()>& enqueue) {
  const Gpu& gpu = TheGpu();
  BENCH_CUDA(cudaStreamBeginCapture(gpu.stream, cudaStreamCaptureModeThreadLocal));
  cudaGraph_t graph = nullptr;
  try {
    for (int i = 0; i < steps; ++i) enqueue();
  } catch (...) {
    cudaStreamEndCapture(gpu.stream, &graph);
    if (graph != nullptr) cudaGraphDestroy(graph);
    cudaGetLastError();
    throw;
  }
  BENCH_CUDA(cudaStreamEndCapture(gpu.stream, &graph));
  cudaError_t error = cudaGraphGetNodes(graph, nullptr, &num_nodes_);
  if (error == cudaSuccess) error = cudaGraphInstantiateWithFlags(&exec_, graph, 0);
  cudaGraphDestroy(graph);
  CheckCuda(error, "cudaGraphInstantiateWithFlags");
  const cudaError_t uploaded = cudaGraphUpload(exec_, gpu.stream);
  if (uploaded != cudaSuccess) cudaGraphExecDestroy(exec_);
  CheckCuda(uploaded, "cudaGraphUpload");
}

Graph::~Graph() {
  cudaStreamSynchronize(TheGpu().stream);
  cudaGraphExecDestroy(exec_);
}

GraphTimer::GraphTimer(std::function<void()> enqueue) : one_(1, enqueue) {
  TimeReplays(one_, 2);
  // A replay of one step takes longer than the step, so this errs towards fewer steps, but within a factor that the
  // limits allow for.
  const double one_seconds = TimeReplays(one_, 10) / 10;
  steps_ = Clamp(kGraphSeconds / one_seconds, kFewestSteps, kMostSteps);
  many_ = std::make_unique<Graph>(steps_, enqueue);
  TimeReplays(*many_, 1);
  replays_ = Clamp(kRunSeconds / TimeReplays(*many_, 1), 1, kMostReplays);
}

double GraphTimer::TimeOnce() const { return TimeReplays(*many_, replays_) / replays_ / steps_; }

double GraphTimer::Time() const {
  // The benchmark before may have left the device idle, and its clocks low.
  for (int i = 0; i < kWarmRuns; ++i) TimeOnce();
  std::vector<double> samples;
  for (int i = 0; i < kRuns; ++i) samples.push_back(TimeOnce());
  return Median(std::move(samples));
}

}  // namespace fwdmeta_bench
