// Loops that are compiled twice: for the baseline of the architecture, and for wider vectors where the machine has
// them. Their body is a function marked FWDMETA_ALWAYS_INLINE, which two others call, one of them marked FWDMETA_AVX2.
#pragma once

#define FWDMETA_ALWAYS_INLINE __attribute__((always_inline)) inline

#ifdef __x86_64__
#define FWDMETA_AVX2 __attribute__((target("avx2")))
#else
#define FWDMETA_AVX2
#endif

namespace fwdmeta {

inline bool HasAvx2() {
#ifdef __x86_64__
  static const bool has = __builtin_cpu_supports("avx2") != 0;
  return has;
#else
  return false;
#endif
}

}  // namespace fwdmeta
