// Numbers, choices and texts out of a fuzzer's bytes, in order. Past their end everything is 0, so any input is a whole
// one, and a shorter one does less.
#ifndef FWDMETA_TESTS_FUZZ_BYTE_READER_H_
#define FWDMETA_TESTS_FUZZ_BYTE_READER_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <string>

namespace fwdmeta_fuzz {

class ByteReader {
 public:
  ByteReader(const uint8_t* data, size_t size) : at_(data), end_(data + size) {}

  bool empty() const { return at_ == end_; }
  uint8_t Byte() { return empty() ? 0 : *at_++; }

  // In [low, high], of as few bytes as the range needs.
  int64_t Int(int64_t low, int64_t high) {
    const uint64_t most = static_cast<uint64_t>(high) - static_cast<uint64_t>(low);
    uint64_t value = 0;
    for (uint64_t rest = most; rest > 0; rest >>= 8) value = value << 8 | Byte();
    return static_cast<int64_t>(static_cast<uint64_t>(low) + (most == UINT64_MAX ? value : value % (most + 1)));
  }
  // False past the end.
  bool OneIn(int n) { return Byte() % n == n - 1; }
  template <class T>
  T Pick(std::initializer_list<T> of) {
    return of.begin()[Int(0, static_cast<int64_t>(of.size()) - 1)];
  }

  // Small, at a limit of a type, or any.
  int64_t Number() {
    switch (Byte() % 4) {
      case 0:
        return Int(0, 15);
      case 1:
        return Int(-128, 127);
      case 2:
        return Pick({int64_t{INT32_MAX}, int64_t{INT32_MAX} + 1, int64_t{INT32_MIN}, int64_t{INT32_MIN} - 1, INT64_MAX,
                     INT64_MAX - 1, INT64_MIN, INT64_MIN + 1, int64_t{UINT32_MAX}, int64_t{UINT32_MAX} + 1,
                     int64_t{1} << 30, int64_t{1} << 62});
      default:
        return Int(INT64_MIN, INT64_MAX);
    }
  }
  int32_t Number32() { return static_cast<int32_t>(std::clamp<int64_t>(Number(), INT32_MIN, INT32_MAX)); }

  std::string Text(size_t longest) {
    std::string text(static_cast<size_t>(Int(0, static_cast<int64_t>(longest))), '\0');
    for (char& c : text) c = static_cast<char>(Byte());
    return text;
  }

 private:
  const uint8_t* at_;
  const uint8_t* end_;
};

}  // namespace fwdmeta_fuzz

#endif  // FWDMETA_TESTS_FUZZ_BYTE_READER_H_
