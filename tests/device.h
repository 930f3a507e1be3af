// The memory of a backend: plain memory on the host backend, the CUDA runtime's on the CUDA backend.
#ifndef FWDMETA_TESTS_DEVICE_H_
#define FWDMETA_TESTS_DEVICE_H_

#include <atomic>
#include <cstddef>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "fwdmeta.h"

namespace fwdmeta_test {

// Why the CUDA backend cannot be tested here, "" where it can. With FWDMETA_TEST_REQUIRE_CUDA=1 in the environment
// the tests fail instead of skipping.
const std::string& NoCudaReason();

// Copies between this process's plain memory and a backend's, after all work on the device.
void Upload(fwdmeta_backend_t backend, void* dst, const void* src, size_t bytes);
void Download(fwdmeta_backend_t backend, void* dst, const void* src, size_t bytes);
void Synchronize(fwdmeta_backend_t backend);
int CurrentDevice();

enum class Memory { kHost, kDevice, kPinned };
void* Allocate(Memory memory, size_t bytes, size_t alignment = 256);  // null where there is none
void Release(Memory memory, void* ptr);

// Memory of a backend that lives as long as the object.
class Buffer {
 public:
  Buffer(fwdmeta_backend_t backend, size_t bytes);
  ~Buffer();
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  void* data() const { return data_; }
  size_t size() const { return bytes_; }

 private:
  Memory memory_;
  size_t bytes_;
  void* data_;
};

// An allocator for fwdmeta_config_t that counts, can fail, and knows what is alive.
class CountingAllocator {
 public:
  explicit CountingAllocator(Memory memory) : memory_(memory) {}
  ~CountingAllocator();
  CountingAllocator(const CountingAllocator&) = delete;
  CountingAllocator& operator=(const CountingAllocator&) = delete;

  fwdmeta_allocator_t Get();
  void FailAfter(int allocations) { fail_after_ = allocations; }

  int allocs() const { return allocs_; }
  int frees() const { return frees_; }
  size_t bytes() const;        // alive
  int live() const;            // blocks alive
  std::string misuse() const;  // a free of another size or of a foreign pointer, a wrong alignment; "" for none
  // True once nothing is alive; waits for the library's threads.
  bool WaitUntilEmpty(double seconds = 20) const;

  // Copies every live block to plain memory, and back.
  void Snapshot();
  void Restore();
  // Where `ptr`, an address in a live block, lies in the snapshot; null elsewhere.
  void* InSnapshot(const void* ptr);

 private:
  static void* Alloc(size_t bytes, size_t alignment, void* user);
  static void Free(void* ptr, size_t bytes, void* user);

  struct Block {
    size_t bytes;
    std::vector<char> copy;
  };
  const Memory memory_;
  mutable std::mutex mutex_;
  std::map<char*, Block> blocks_;
  std::string misuse_;
  std::atomic<int> allocs_{0}, frees_{0}, fail_after_{-1};
};

}  // namespace fwdmeta_test

#endif  // FWDMETA_TESTS_DEVICE_H_
