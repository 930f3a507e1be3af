// Exact arithmetic of non-negative numbers.
#pragma once

#include <cstdint>

namespace fwdmeta {

// ceil(a / b), b > 0, also where a + b would pass int64.
inline int64_t CeilDiv(int64_t a, int64_t b) { return a / b + (a % b != 0); }

// Up to a multiple of 256 bytes, at which every array lies from its arena's begin.
inline int64_t AlignUp(int64_t bytes) { return CeilDiv(bytes, 256) * 256; }

}  // namespace fwdmeta
