// What the fuzzers hold against every call of the library: a status that exists, with a message where it is an error,
// structs read and written no further than they say.
#ifndef FWDMETA_TESTS_FUZZ_CALLS_H_
#define FWDMETA_TESTS_FUZZ_CALLS_H_

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>

#include "byte_reader.h"
#include "fwdmeta.h"

namespace fwdmeta_fuzz {

// Ends the process, which is a finding.
[[noreturn]] inline void Die(const char* file, int line, const std::string& what) {
  std::fprintf(stderr, "%s:%d: %s\nlast error: %s\n", file, line, what.c_str(), fwdmeta_last_error());
  std::abort();
}
#define FUZZ_CHECK(condition) ((condition) ? static_cast<void>(0) : ::fwdmeta_fuzz::Die(__FILE__, __LINE__, #condition))

inline fwdmeta_status_t Checked(const char* file, int line, const char* call, fwdmeta_status_t status) {
  if (status < 0 || status >= FWDMETA_STATUS_COUNT || status == FWDMETA_INTERNAL ||
      (status != FWDMETA_OK && fwdmeta_last_error()[0] == '\0')) {
    Die(file, line, std::string(call) + " is " + fwdmeta_status_name(status));
  }
  return status;
}
// The status of any call.
#define FUZZ_CALL(call) ::fwdmeta_fuzz::Checked(__FILE__, __LINE__, #call, call)

inline void Expect(const char* file, int line, const char* call, fwdmeta_status_t want, fwdmeta_status_t got) {
  if (Checked(file, line, call, got) == want) return;
  Die(file, line, std::string(call) + " is " + fwdmeta_status_name(got) + ", expected " + fwdmeta_status_name(want));
}
#define FUZZ_EXPECT(want, call) ::fwdmeta_fuzz::Expect(__FILE__, __LINE__, #call, want, call)

// A struct whose struct_size may be any, in memory that ends where it says. With kStep = 8, for structs with pointers,
// it does not end in the middle of one.
template <class T, int64_t kStep = 1>
class Sized {
 public:
  Sized(ByteReader& bytes, T value) : value_(value) {
    constexpr uint64_t kMost = 1 << 16;
    uint64_t size = sizeof(T);
    if (bytes.OneIn(16)) {
      size = bytes.OneIn(2) ? static_cast<uint64_t>(bytes.Number()) : bytes.Int(0, int64_t{sizeof(T)} + 16);
    }
    if (size < sizeof(T)) size -= size % kStep;
    value_.struct_size = size;
    const size_t memory = size > kMost ? sizeof(T) : std::max<size_t>(size, sizeof(size));
    memory_.reset(new char[memory]());
    std::memcpy(memory_.get(), &value_, std::min(memory, sizeof(T)));
    if (size > sizeof(T) && size <= kMost) tail_ = &memory_[size - 1];
    if (tail_ != nullptr && bytes.OneIn(2)) *tail_ = tail_value_ = 1;
    known_ = std::min<uint64_t>(size, sizeof(T));
    readable_ = size >= sizeof(size) && size <= kMost && tail_value_ == 0;
  }

  T* get() { return reinterpret_cast<T*>(memory_.get()); }
  // Whether an input of this size is read, and an output written.
  bool readable() const { return readable_; }
  bool writable() const { return value_.struct_size >= sizeof(uint64_t); }
  bool whole() const { return value_.struct_size == sizeof(T); }
  // What the library has from it, or has given: its own value where the struct ends before.
  T value() const {
    FUZZ_CHECK(tail_ == nullptr || *tail_ == tail_value_);
    T value = value_;
    if (known_ >= sizeof(uint64_t)) std::memcpy(&value, memory_.get(), known_);
    FUZZ_CHECK(value.struct_size == value_.struct_size);
    return value;
  }

 private:
  T value_;
  std::unique_ptr<char[]> memory_;
  char* tail_ = nullptr;
  char tail_value_ = 0;
  uint64_t known_ = 0;
  bool readable_ = false;
};

}  // namespace fwdmeta_fuzz

#endif  // FWDMETA_TESTS_FUZZ_CALLS_H_
