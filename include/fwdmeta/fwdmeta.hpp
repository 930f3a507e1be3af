// The C++17 layer over fwdmeta.h: owners that release their handle, and statuses as exceptions. It adds no behaviour;
// what each call does, which threads may make it and what may be captured is written in fwdmeta.h.
#ifndef FWDMETA_FWDMETA_HPP
#define FWDMETA_FWDMETA_HPP

#include <fwdmeta.h>

#include <cstddef>
#include <cstdint>
#include <exception>
#include <iterator>
#include <optional>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>

namespace fwdmeta {

// A call that did not return FWDMETA_OK. what() is "INVALID_BATCH: ..." with the offending numbers.
class Error : public std::runtime_error {
 public:
  Error(fwdmeta_status_t status, const char* message)
      : std::runtime_error(std::string(fwdmeta_status_name(status)) + ": " + message), status_(status) {}
  fwdmeta_status_t status() const noexcept { return status_; }

 private:
  fwdmeta_status_t status_;
};

inline void check(fwdmeta_status_t status) {
  if (status != FWDMETA_OK) throw Error(status, fwdmeta_last_error());
}

// The C structs, complete with their defaults. They convert to what the C calls take, and back.
struct Config : fwdmeta_config_t {
  Config() : fwdmeta_config_t FWDMETA_CONFIG_INITIALIZER {}
};
struct CapacityQuery : fwdmeta_capacity_query_t {
  CapacityQuery() : fwdmeta_capacity_query_t FWDMETA_CAPACITY_QUERY_INITIALIZER {}
};
struct Capacities : fwdmeta_capacities_t {
  Capacities() : fwdmeta_capacities_t FWDMETA_CAPACITIES_INITIALIZER {}
};
struct BuilderInfo : fwdmeta_builder_info_t {
  BuilderInfo() : fwdmeta_builder_info_t FWDMETA_BUILDER_INFO_INITIALIZER {}
};
struct Batch : fwdmeta_batch_t {
  Batch() : fwdmeta_batch_t FWDMETA_BATCH_INITIALIZER {}
};
struct Counts : fwdmeta_counts_t {
  Counts() : fwdmeta_counts_t FWDMETA_COUNTS_INITIALIZER {}
};
struct AdvanceArgs : fwdmeta_advance_args_t {
  AdvanceArgs() : fwdmeta_advance_args_t FWDMETA_ADVANCE_ARGS_INITIALIZER {}
};
struct AdvanceCounts : fwdmeta_advance_counts_t {
  AdvanceCounts() : fwdmeta_advance_counts_t FWDMETA_ADVANCE_COUNTS_INITIALIZER {}
};
struct DlpackArgs : fwdmeta_dlpack_args_t {
  DlpackArgs() : fwdmeta_dlpack_args_t FWDMETA_DLPACK_ARGS_INITIALIZER {}
};
struct Tensor : fwdmeta_tensor_t {
  Tensor() : fwdmeta_tensor_t FWDMETA_TENSOR_INITIALIZER {}
  bool on_host() const noexcept { return memory_kind == FWDMETA_MEMORY_HOST; }
  int64_t size() const noexcept {
    int64_t n = 1;
    for (int32_t i = 0; i < ndim; ++i) n *= shape[i];
    return n;
  }
};

// A pointer and a number of elements; std::span without C++20. The memory may be the device's.
template <class T>
class Span {
 public:
  Span() = default;
  Span(T* data, std::size_t size) noexcept : data_(data), size_(size) {}
  // Of a container or an array, which must outlive it.
  template <class C, class Data = decltype(std::data(std::declval<C&>())),
            class = std::enable_if_t<std::is_convertible_v<std::remove_pointer_t<Data> (*)[], T (*)[]>>>
  Span(C&& container) noexcept : data_(std::data(container)), size_(std::size(container)) {}
  T* data() const noexcept { return data_; }
  std::size_t size() const noexcept { return size_; }
  bool empty() const noexcept { return size_ == 0; }
  T* begin() const noexcept { return data_; }
  T* end() const noexcept { return data_ + size_; }
  T& operator[](std::size_t i) const noexcept { return data_[i]; }

 private:
  T* data_ = nullptr;
  std::size_t size_ = 0;
};

namespace detail {

// One owned handle. Destroy is the C call that ends it; it refuses what is in use (a
// context that is pushed, a transport that gathers), whose handle is then lost.
template <fwdmeta_status_t (*Destroy)(uint64_t)>
class Handle {
 public:
  Handle() = default;
  explicit Handle(uint64_t handle) noexcept : handle_(handle) {}
  Handle(Handle&& other) noexcept : handle_(other.release()) {}
  Handle& operator=(Handle&& other) noexcept {
    if (this != &other) reset(other.release());
    return *this;
  }
  ~Handle() { reset(); }

  uint64_t handle() const noexcept { return handle_; }
  explicit operator bool() const noexcept { return handle_ != 0; }
  // Gives the handle up; the caller destroys it.
  uint64_t release() noexcept { return std::exchange(handle_, 0); }
  void reset(uint64_t handle = 0) noexcept { Destroy(std::exchange(handle_, handle)); }

 private:
  uint64_t handle_ = 0;
};

template <class T>
struct Dtype;
template <>
struct Dtype<int32_t> {
  static constexpr fwdmeta_dtype_code_t code = FWDMETA_DTYPE_INT;
};
template <>
struct Dtype<int64_t> {
  static constexpr fwdmeta_dtype_code_t code = FWDMETA_DTYPE_INT;
};
template <>
struct Dtype<uint8_t> {
  static constexpr fwdmeta_dtype_code_t code = FWDMETA_DTYPE_UINT;
};

// Nothing may throw through the C library, so a failure of append is kept and rethrown behind the call.
struct Text {
  std::string text;
  std::exception_ptr failure;
  // With the status of the call that wrote.
  std::string finish(fwdmeta_status_t status) {
    if (failure) std::rethrow_exception(failure);
    check(status);
    return std::move(text);
  }
  static int32_t write(const char* data, size_t size, void* user) {
    auto* self = static_cast<Text*>(user);
    try {
      self->text.append(data, size);
      return 0;
    } catch (...) {
      self->failure = std::current_exception();
      return 1;
    }
  }
};

}  // namespace detail

// The view of one step.
class Meta : public detail::Handle<&fwdmeta_meta_destroy> {
 public:
  using Handle::Handle;

  // The counts of the step; waits for ever with the default timeout.
  Counts wait(int64_t timeout_us = -1, fwdmeta_wait_flags_t flags = 0) const {
    Counts out;
    check(fwdmeta_meta_wait(handle(), flags, timeout_us, &out));
    return out;
  }
  // The counts, or nothing while they are not there yet. Never waits.
  std::optional<Counts> counts(fwdmeta_wait_flags_t flags = 0) const {
    Counts out;
    const fwdmeta_status_t status = fwdmeta_meta_wait(handle(), flags, 0, &out);
    if (status == FWDMETA_NOT_READY) return std::nullopt;
    check(status);
    return out;
  }

  // The whole capacity of a built array. T is int32_t, int64_t or uint8_t as the table in fwdmeta.h says; another one
  // is refused. On the CUDA backend all but the *_cpu fields are device memory.
  template <class T>
  Span<const T> field(fwdmeta_field_t field, int32_t group = 0) const {
    Tensor t;
    check(fwdmeta_meta_get_field(handle(), field, group, &t));
    if (t.dtype_code != detail::Dtype<T>::code || t.dtype_bits != 8 * sizeof(T))
      throw Error(FWDMETA_INVALID_ARGUMENT, (std::string(fwdmeta_field_name(field)) + " has " +
                                             std::to_string(t.dtype_bits) + "-bit elements, not the asked-for type")
                                                .c_str());
    return {static_cast<const T*>(t.data), static_cast<std::size_t>(t.size())};
  }
  Tensor get(const char* name) const {
    Tensor t;
    check(fwdmeta_meta_get(handle(), name, &t));
    return t;
  }
  void set(const char* name, const fwdmeta_tensor_t& tensor) {
    check(fwdmeta_meta_set_tensor(handle(), name, &tensor));
  }
  void unset(const char* name) { check(fwdmeta_meta_set_tensor(handle(), name, nullptr)); }

  int64_t attr(fwdmeta_attr_t attr) const {
    int64_t value = 0;
    check(fwdmeta_meta_get_attr(handle(), attr, &value));
    return value;
  }
  void set_attr(fwdmeta_attr_t attr, int64_t value) { check(fwdmeta_meta_set_attr(handle(), attr, value)); }
  // 0 for a captured build.
  int64_t step() const { return attr(FWDMETA_ATTR_STEP); }

  void set_attn_backend(const char* name, void* backend) {
    check(fwdmeta_meta_set_attn_backend(handle(), name, backend));
  }
  std::pair<std::string, void*> attn_backend() const {
    const char* name = nullptr;
    void* backend = nullptr;
    check(fwdmeta_meta_get_attn_backend(handle(), &name, &backend));
    return {name, backend};
  }

  void reader_begin(fwdmeta_stream_t stream) const { check(fwdmeta_meta_reader_begin(handle(), stream)); }
  void reader_end(fwdmeta_stream_t stream) const { check(fwdmeta_meta_reader_end(handle(), stream)); }

  // The argument of kernels that fwdmeta/device.cuh has functions for.
  fwdmeta_device_view_v1_t device_view() const {
    fwdmeta_device_view_v1_t view;
    check(fwdmeta_device_view_v1(handle(), &view));
    return view;
  }

  // A built array as a DLPack tensor, which the caller owns: its deleter ends it. `stream` as in Python's __dlpack__.
  DLManagedTensorVersioned* dlpack(const fwdmeta_dlpack_args_t& args, int64_t stream) const {
    DLManagedTensorVersioned* tensor = nullptr;
    check(fwdmeta_meta_to_dlpack_versioned(handle(), &args, stream, &tensor));
    return tensor;
  }

  std::string dump(fwdmeta_dump_format_t format = FWDMETA_DUMP_TEXT) const {
    detail::Text out;
    return out.finish(fwdmeta_meta_dump(handle(), format, &detail::Text::write, &out));
  }
};

// The owner of a step's arrays.
class Builder : public detail::Handle<&fwdmeta_builder_destroy> {
 public:
  using Handle::Handle;
  // Creates one.
  explicit Builder(const fwdmeta_config_t& config) : Handle(create(config)) {}

  // Enqueues a build and returns the view of its step.
  Meta build(const fwdmeta_batch_t& batch) {
    fwdmeta_meta_t meta = 0;
    check(fwdmeta_build(handle(), &batch, &meta, nullptr));
    return Meta(meta);
  }
  // The same without a view: the step number, 0 for a captured build.
  int64_t enqueue(const fwdmeta_batch_t& batch) {
    int64_t step = 0;
    check(fwdmeta_build(handle(), &batch, nullptr, &step));
    return step;
  }
  Counts wait(int64_t step, int64_t timeout_us = -1, fwdmeta_wait_flags_t flags = 0) const {
    Counts out;
    check(fwdmeta_counts_wait(handle(), step, flags, timeout_us, &out));
    return out;
  }
  // replay 0: the newest that has published.
  Counts wait_replay(int64_t replay = 0, int64_t timeout_us = -1, fwdmeta_wait_flags_t flags = 0) const {
    Counts out;
    check(fwdmeta_replay_wait(handle(), replay, flags, timeout_us, &out));
    return out;
  }

  void advance(const fwdmeta_advance_args_t& args) { check(fwdmeta_advance(handle(), &args)); }
  // advance 0: the newest that has completed.
  AdvanceCounts wait_advance(int64_t advance = 0, int64_t timeout_us = -1) const {
    AdvanceCounts out;
    check(fwdmeta_advance_wait(handle(), advance, timeout_us, &out));
    return out;
  }

  void reset_arrays(fwdmeta_stream_t stream = nullptr) { check(fwdmeta_builder_reset(handle(), stream)); }
  void set(const char* name, const fwdmeta_tensor_t& tensor) {
    check(fwdmeta_builder_set_tensor(handle(), name, &tensor));
  }
  void unset(const char* name) { check(fwdmeta_builder_set_tensor(handle(), name, nullptr)); }
  BuilderInfo info() const {
    BuilderInfo out;
    check(fwdmeta_builder_get_info(handle(), &out));
    return out;
  }

 private:
  static fwdmeta_builder_t create(const fwdmeta_config_t& config) {
    fwdmeta_builder_t builder = 0;
    check(fwdmeta_builder_create(&config, &builder));
    return builder;
  }
};

// The counters of the process in the text form of Prometheus.
inline std::string metrics() {
  detail::Text out;
  return out.finish(fwdmeta_metrics_write(&detail::Text::write, &out));
}

// What a builder of this configuration would hold; with a query, the bounds of a bucket.
inline Capacities capacities(const fwdmeta_config_t& config, const fwdmeta_capacity_query_t* query = nullptr) {
  Capacities out;
  check(fwdmeta_get_capacities(&config, query, &out));
  return out;
}

}  // namespace fwdmeta

#endif  // FWDMETA_FWDMETA_HPP
