// Division by a constant that is known when the builder is created, by a multiplication and a shift.
#pragma once

#include <cstdint>

#include "base/hd.h"

namespace fwdmeta {

// Exact for numerators in [0, 2^31). With s = ceil(log2 d) and m = floor(2^(31+s) / d) + 1 the product m*d exceeds
// 2^(31+s) by at most 2^s, which is the condition of Granlund and Montgomery (PLDI 1994, theorem 4.2) for 31 bits.
struct FastDiv {
  uint32_t divisor;  // 0: larger than any numerator, so the quotient is 0
  uint32_t multiplier;
  uint32_t shift;

  FWDMETA_HD uint32_t Quotient(uint32_t n) const {
    return divisor == 0 ? 0 : static_cast<uint32_t>((static_cast<uint64_t>(n) * multiplier) >> shift);
  }
  // For products that may pass 31 bits.
  FWDMETA_HD uint64_t Quotient64(uint64_t n) const {
    if (n < (uint64_t{1} << 31)) return Quotient(static_cast<uint32_t>(n));
    return divisor == 0 ? 0 : n / divisor;
  }
  FWDMETA_HD uint32_t Remainder(uint32_t n) const { return n - Quotient(n) * divisor; }
};

inline FastDiv MakeFastDiv(int64_t divisor) {
  if (divisor > INT32_MAX) return {0, 0, 0};
  uint32_t log2 = 0;
  while ((int64_t{1} << log2) < divisor) ++log2;
  const uint64_t multiplier = (uint64_t{1} << (31 + log2)) / static_cast<uint64_t>(divisor) + 1;
  return {static_cast<uint32_t>(divisor), static_cast<uint32_t>(multiplier), 31 + log2};
}

}  // namespace fwdmeta
