#ifndef FWDMETA_COMMAND_DEVICE_MEMORY_H
#define FWDMETA_COMMAND_DEVICE_MEMORY_H

#include <fwdmeta.h>

#include <cstddef>
#include <memory>

namespace fwdmeta::command {

// Memory of the device that a builder works on. The CUDA driver is found at run time, so that the command links no
// CUDA; it copies in the default stream's order, which is the order of the command's builds.
class Device {
 public:
  // Null for a builder of the host backend, whose arrays are host memory.
  static std::unique_ptr<Device> of(const fwdmeta_builder_info_t& info);
  ~Device();

  void* allocate(size_t bytes);
  void release(void* ptr);
  void upload(void* to, const void* from, size_t bytes);
  void download(void* to, const void* from, size_t bytes);

 private:
  struct Driver;
  explicit Device(int ordinal);
  std::unique_ptr<Driver> driver_;
  int ordinal_;
};

// One input array as the builder wants it: the caller's own memory on the host backend, a copy on the device else.
class Input {
 public:
  explicit Input(Device* device) : device_(device) {}
  ~Input();
  Input(Input&& other) noexcept;
  Input(const Input&) = delete;
  Input& operator=(const Input&) = delete;

  // `host` must live until the build that uses the result is done.
  const void* place(const void* host, size_t bytes);

 private:
  Device* device_;
  void* memory_ = nullptr;
  size_t capacity_ = 0;
};

}  // namespace fwdmeta::command

#endif
