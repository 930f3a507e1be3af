// Owners of what the CUDA runtime hands out, and its errors as exceptions.
#ifndef FWDMETA_EXAMPLES_ATTENTION_CUDA_OBJECTS_H_
#define FWDMETA_EXAMPLES_ATTENTION_CUDA_OBJECTS_H_

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstddef>
#include <stdexcept>
#include <string>
#include <vector>

namespace attention {

inline void check_cuda(cudaError_t error, const char* call) {
  if (error != cudaSuccess) throw std::runtime_error(std::string(call) + ": " + cudaGetErrorString(error));
}
#define ATTENTION_CUDA(call) ::attention::check_cuda((call), #call)

// Device memory for `size` elements. Its calls are over when they return, so that a stream of any kind comes after
// them.
template <class T>
class DeviceArray {
 public:
  DeviceArray() = default;
  explicit DeviceArray(size_t size) : size_(size) {
    ATTENTION_CUDA(cudaMalloc(reinterpret_cast<void**>(&data_), std::max<size_t>(bytes(), 1)));
  }
  explicit DeviceArray(const std::vector<T>& values) : DeviceArray(values.size()) { upload(values); }
  DeviceArray(DeviceArray&& other) noexcept { swap(other); }
  DeviceArray& operator=(DeviceArray&& other) noexcept {
    swap(other);
    return *this;
  }
  ~DeviceArray() { cudaFree(data_); }

  T* data() const { return data_; }
  size_t size() const { return size_; }
  size_t bytes() const { return size_ * sizeof(T); }
  void fill(int byte) {
    ATTENTION_CUDA(cudaMemset(data_, byte, bytes()));
    ATTENTION_CUDA(cudaStreamSynchronize(nullptr));
  }
  void upload(const std::vector<T>& values) {
    ATTENTION_CUDA(cudaMemcpy(data_, values.data(), values.size() * sizeof(T), cudaMemcpyHostToDevice));
    ATTENTION_CUDA(cudaStreamSynchronize(nullptr));
  }
  std::vector<T> download() const {
    std::vector<T> values(size_);
    ATTENTION_CUDA(cudaMemcpy(values.data(), data_, bytes(), cudaMemcpyDeviceToHost));
    return values;
  }

 private:
  void swap(DeviceArray& other) {
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
  }
  T* data_ = nullptr;
  size_t size_ = 0;
};

class Stream {
 public:
  Stream() { ATTENTION_CUDA(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking)); }
  ~Stream() { cudaStreamDestroy(stream_); }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  cudaStream_t get() const { return stream_; }
  void synchronize() const { ATTENTION_CUDA(cudaStreamSynchronize(stream_)); }

 private:
  cudaStream_t stream_ = nullptr;
};

}  // namespace attention

#endif  // FWDMETA_EXAMPLES_ATTENTION_CUDA_OBJECTS_H_
