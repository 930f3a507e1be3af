// Pinned memory that the host writes a step's inputs to, for copies in the stream. An entry is used again only when the
// step that it was used for is done: that is the one place where the host waits, and it bounds how far it runs ahead.
#ifndef FWDMETA_EXAMPLES_SERVE_LOOP_STAGING_H_
#define FWDMETA_EXAMPLES_SERVE_LOOP_STAGING_H_

#include <cuda_objects.h>

#include <cstring>

namespace serve_loop {

class Staging {
 public:
  explicit Staging(size_t bytes_per_step) : bytes_(bytes_per_step) {
    ATTENTION_CUDA(cudaHostAlloc(reinterpret_cast<void**>(&data_), kDepth * bytes_, cudaHostAllocDefault));
    for (cudaEvent_t& event : done_) ATTENTION_CUDA(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
  }
  ~Staging() {
    for (const cudaEvent_t event : done_) cudaEventDestroy(event);
    cudaFreeHost(data_);
  }
  Staging(const Staging&) = delete;
  Staging& operator=(const Staging&) = delete;

  void begin_step() {
    entry_ = (entry_ + 1) % kDepth;
    ATTENTION_CUDA(cudaEventSynchronize(done_[entry_]));
    used_ = 0;
  }
  void end_step(cudaStream_t stream) const { ATTENTION_CUDA(cudaEventRecord(done_[entry_], stream)); }

  template <class T>
  void copy(const std::vector<T>& from, T* to, cudaStream_t stream) {
    const size_t bytes = from.size() * sizeof(T);
    if (used_ + bytes > bytes_) throw std::logic_error("serve_loop: a staging entry is too small");
    char* const at = data_ + entry_ * bytes_ + used_;
    std::memcpy(at, from.data(), bytes);
    ATTENTION_CUDA(cudaMemcpyAsync(to, at, bytes, cudaMemcpyHostToDevice, stream));
    used_ += (bytes + 15) / 16 * 16;
  }

 private:
  static constexpr size_t kDepth = 32;
  const size_t bytes_;
  char* data_ = nullptr;
  cudaEvent_t done_[kDepth] = {};
  size_t entry_ = 0, used_ = 0;
};

}  // namespace serve_loop

#endif  // FWDMETA_EXAMPLES_SERVE_LOOP_STAGING_H_
