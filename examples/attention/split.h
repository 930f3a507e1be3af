// How append attention splits the keys of a slot: in parts of as many keys, and in fewer where there are few.
#ifndef FWDMETA_EXAMPLES_ATTENTION_SPLIT_H_
#define FWDMETA_EXAMPLES_ATTENTION_SPLIT_H_

#ifdef __CUDACC__
#define ATTENTION_HOST_DEVICE __host__ __device__
#else
#define ATTENTION_HOST_DEVICE
#endif

namespace attention {

struct Split {
  int keys, parts;
};

ATTENTION_HOST_DEVICE constexpr Split split_keys(int num_keys, int most_parts) {
  constexpr int kFewestKeys = 256;  // of a part
  constexpr int kRound = 64;        // keys that the warps of a block take at a time
  const int share = (num_keys + most_parts - 1) / most_parts;
  const int rounded = (share + kRound - 1) / kRound * kRound;
  const int keys = rounded < kFewestKeys ? kFewestKeys : rounded;
  return {keys, (num_keys + keys - 1) / keys};
}

}  // namespace attention

#endif  // FWDMETA_EXAMPLES_ATTENTION_SPLIT_H_
