#include "device.h"

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <stdexcept>
#include <thread>

#if FWDMETA_TEST_CUDA
#include <cuda_runtime_api.h>
#endif

namespace fwdmeta_test {
namespace {

#if FWDMETA_TEST_CUDA
void Check(cudaError_t error, const char* what) {
  if (error != cudaSuccess) throw std::runtime_error(std::string(what) + ": " + cudaGetErrorString(error));
}
#endif

std::string AskForCuda() {
#if FWDMETA_TEST_CUDA
  fwdmeta_config_t config = FWDMETA_CONFIG_INITIALIZER;
  config.backend = FWDMETA_BACKEND_CUDA;
  config.max_batch_size = config.max_num_tokens = config.max_model_len = 1;
  config.num_q_heads = config.num_kv_heads = 1;
  fwdmeta_builder_t builder = 0;
  const fwdmeta_status_t status = fwdmeta_builder_create(&config, &builder);
  fwdmeta_builder_destroy(builder);
  if (status == FWDMETA_OK) return "";
  // Anything else is a fault of the library, which the tests that use the backend then show.
  if (status == FWDMETA_NO_DEVICE) {
    return std::string("no CUDA device: ") + fwdmeta_last_error();
  }
  return "";
#else
  return "no CUDA device: built without CUDA";
#endif
}

}  // namespace

const std::string& NoCudaReason() {
  static const std::string reason = AskForCuda();
  return reason;
}

void Synchronize(fwdmeta_backend_t backend) {
#if FWDMETA_TEST_CUDA
  if (backend == FWDMETA_BACKEND_CUDA) Check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
#else
  (void)backend;
#endif
}

void Upload(fwdmeta_backend_t backend, void* dst, const void* src, size_t bytes) {
  if (bytes == 0) return;
#if FWDMETA_TEST_CUDA
  if (backend == FWDMETA_BACKEND_CUDA) {
    Synchronize(backend);
    Check(cudaMemcpy(dst, src, bytes, cudaMemcpyDefault), "cudaMemcpy");
    Synchronize(backend);  // a small copy from pageable memory may return before it is there
    return;
  }
#endif
  (void)backend;
  std::memcpy(dst, src, bytes);
}

void Download(fwdmeta_backend_t backend, void* dst, const void* src, size_t bytes) { Upload(backend, dst, src, bytes); }

int CurrentDevice() {
  int device = -1;
#if FWDMETA_TEST_CUDA
  Check(cudaGetDevice(&device), "cudaGetDevice");
#endif
  return device;
}

void* Allocate(Memory memory, size_t bytes, size_t alignment) {
  if (bytes == 0) bytes = 1;
  if (memory == Memory::kHost) {
    void* ptr = nullptr;
    if (alignment < sizeof(void*)) alignment = sizeof(void*);
    return posix_memalign(&ptr, alignment, bytes) == 0 ? ptr : nullptr;
  }
#if FWDMETA_TEST_CUDA
  void* ptr = nullptr;
  const cudaError_t error = memory == Memory::kDevice
                                ? cudaMalloc(&ptr, bytes)
                                : cudaHostAlloc(&ptr, bytes, cudaHostAllocMapped | cudaHostAllocPortable);
  if (error == cudaSuccess) return ptr;
  cudaGetLastError();
#endif
  return nullptr;
}

void Release(Memory memory, void* ptr) {
  if (memory == Memory::kHost) {
    std::free(ptr);
    return;
  }
#if FWDMETA_TEST_CUDA
  if (memory == Memory::kDevice) {
    cudaFree(ptr);
  } else {
    cudaFreeHost(ptr);
  }
#endif
}

Buffer::Buffer(fwdmeta_backend_t backend, size_t bytes)
    : memory_(backend == FWDMETA_BACKEND_CUDA ? Memory::kDevice : Memory::kHost),
      bytes_(bytes),
      data_(Allocate(memory_, bytes)) {
  if (data_ == nullptr) throw std::bad_alloc();
}

Buffer::~Buffer() { Release(memory_, data_); }

CountingAllocator::~CountingAllocator() {
  for (auto& block : blocks_) Release(memory_, block.first);
}

fwdmeta_allocator_t CountingAllocator::Get() { return {&Alloc, &Free, this}; }

void* CountingAllocator::Alloc(size_t bytes, size_t alignment, void* user) {
  auto* self = static_cast<CountingAllocator*>(user);
  if (self->fail_after_ >= 0 && self->allocs_ >= self->fail_after_) return nullptr;
  void* ptr = Allocate(self->memory_, bytes, alignment);
  if (ptr == nullptr) return nullptr;
  // Fresh memory is not zero.
  if (self->memory_ == Memory::kHost) std::memset(ptr, 0xA5, bytes);
#if FWDMETA_TEST_CUDA
  if (self->memory_ == Memory::kDevice) {
    cudaMemset(ptr, 0xA5, bytes);
    cudaStreamSynchronize(cudaStreamLegacy);  // or it would land on what the library's own stream has written by then
  }
#endif
  std::lock_guard<std::mutex> lock(self->mutex_);
  if (alignment == 0 || alignment > 256 || (alignment & (alignment - 1)) != 0) {
    self->misuse_ = "alignment " + std::to_string(alignment);
  }
  if (bytes == 0) self->misuse_ = "an allocation of 0 bytes";
  self->blocks_[static_cast<char*>(ptr)] = Block{bytes, {}};
  ++self->allocs_;
  return ptr;
}

void CountingAllocator::Free(void* ptr, size_t bytes, void* user) {
  auto* self = static_cast<CountingAllocator*>(user);
  {
    std::lock_guard<std::mutex> lock(self->mutex_);
    const auto block = self->blocks_.find(static_cast<char*>(ptr));
    if (block == self->blocks_.end()) {
      self->misuse_ = "free of a pointer that is not alive";
      return;
    }
    if (block->second.bytes != bytes) {
      self->misuse_ = "free of " + std::to_string(bytes) + " bytes, allocated " + std::to_string(block->second.bytes);
    }
  }
  Release(self->memory_, ptr);
  // The last thing done, under the lock: whoever waits for an empty allocator may then destroy it.
  std::lock_guard<std::mutex> lock(self->mutex_);
  ++self->frees_;
  self->blocks_.erase(static_cast<char*>(ptr));
}

size_t CountingAllocator::bytes() const {
  std::lock_guard<std::mutex> lock(mutex_);
  size_t sum = 0;
  for (const auto& block : blocks_) sum += block.second.bytes;
  return sum;
}

int CountingAllocator::live() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return static_cast<int>(blocks_.size());
}

std::string CountingAllocator::misuse() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return misuse_;
}

bool CountingAllocator::WaitUntilEmpty(double seconds) const {
  const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
  while (live() != 0) {
    if (std::chrono::steady_clock::now() > end) return false;
    std::this_thread::sleep_for(std::chrono::microseconds(50));
  }
  return true;
}

void CountingAllocator::Snapshot() {
  std::lock_guard<std::mutex> lock(mutex_);
  for (auto& block : blocks_) {
    block.second.copy.resize(block.second.bytes);
    Download(memory_ == Memory::kHost ? FWDMETA_BACKEND_HOST : FWDMETA_BACKEND_CUDA, block.second.copy.data(),
             block.first, block.second.bytes);
  }
}

void CountingAllocator::Restore() {
  std::lock_guard<std::mutex> lock(mutex_);
  for (auto& block : blocks_) {
    Upload(memory_ == Memory::kHost ? FWDMETA_BACKEND_HOST : FWDMETA_BACKEND_CUDA, block.first,
           block.second.copy.data(), block.second.bytes);
  }
}

void* CountingAllocator::InSnapshot(const void* ptr) {
  std::lock_guard<std::mutex> lock(mutex_);
  char* address = const_cast<char*>(static_cast<const char*>(ptr));
  auto block = blocks_.upper_bound(address);
  if (block == blocks_.begin()) return nullptr;
  --block;
  const size_t offset = static_cast<size_t>(address - block->first);
  return offset < block->second.bytes ? block->second.copy.data() + offset : nullptr;
}

}  // namespace fwdmeta_test
