// CUDA objects that own what they name, and the timing of graphs.
#ifndef FWDMETA_BENCH_GPU_H_
#define FWDMETA_BENCH_GPU_H_

#include <cuda_runtime_api.h>

#include <functional>

#include "measure.h"

namespace fwdmeta_bench {

void CheckCuda(cudaError_t error, const char* call);
#define BENCH_CUDA(call) ::fwdmeta_bench::CheckCuda((call), #call)

class DeviceBuffer {
 public:
  explicit DeviceBuffer(size_t bytes);
  ~DeviceBuffer() { cudaFree(data_); }
  DeviceBuffer(const DeviceBuffer&) = delete;
  DeviceBuffer& operator=(const DeviceBuffer&) = delete;
  template <class T = void>
  T* data() const {
    return static_cast<T*>(data_);
  }
  size_t size() const { return size_; }

 private:
  void* data_ = nullptr;
  const size_t size_;
};

class PinnedBuffer {
 public:
  explicit PinnedBuffer(size_t bytes);
  ~PinnedBuffer() { cudaFreeHost(data_); }
  PinnedBuffer(const PinnedBuffer&) = delete;
  PinnedBuffer& operator=(const PinnedBuffer&) = delete;
  template <class T = void>
  T* data() const {
    return static_cast<T*>(data_);
  }

 private:
  void* data_ = nullptr;
};

// The device's streams and events, made at first use and kept to the end of the process: builders ask that the stream
// of their latest build outlives them.
struct Gpu {
  cudaStream_t stream, side;
  cudaEvent_t begin, end, fork, join;
  int num_sms;
  int64_t cycles_per_second;
};
const Gpu& TheGpu();

class Graph {
 public:
  // Captures `steps` calls of `enqueue`, one after the other, on the main stream.
  Graph(int steps, const std::function<void()>& enqueue);
  ~Graph();
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;
  int64_t num_nodes() const { return num_nodes_; }
  void Replay() const { BENCH_CUDA(cudaGraphLaunch(exec_, TheGpu().stream)); }

 private:
  cudaGraphExec_t exec_ = nullptr;
  size_t num_nodes_ = 0;
};

// GPU time of a step in a replayed graph of so many steps that the launch of the graph itself does not show.
class GraphTimer {
 public:
  explicit GraphTimer(std::function<void()> enqueue);
  const Graph& one() const { return one_; }  // a graph of one step
  int steps() const { return steps_; }
  // Seconds per step: of one timed run of replays, and the median of some.
  double TimeOnce() const;
  double Time() const;

 private:
  Graph one_;
  int steps_ = 0, replays_ = 0;
  std::unique_ptr<Graph> many_;
};

}  // namespace fwdmeta_bench

#endif  // FWDMETA_BENCH_GPU_H_
