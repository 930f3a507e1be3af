// Dispatchers out of bytes.
#ifndef FWDMETA_TESTS_FUZZ_DISPATCHERS_H_
#define FWDMETA_TESTS_FUZZ_DISPATCHERS_H_

#include <vector>

#include "calls.h"
#include "graph_model.h"

namespace fwdmeta_fuzz {

// A good configuration that its model is small for.
inline fwdmeta_test::GraphConfig ReadGraphConfig(ByteReader& bytes) {
  fwdmeta_test::GraphConfig config;
  config.mode = bytes.Pick({FWDMETA_GRAPH_FULL_AND_PIECEWISE, FWDMETA_GRAPH_FULL_DECODE_ONLY, FWDMETA_GRAPH_FULL,
                            FWDMETA_GRAPH_PIECEWISE, FWDMETA_GRAPH_NONE});
  config.max_num_seqs = bytes.Int(1, 16);
  config.max_num_tokens = bytes.Int(1, 64);
  config.query_lens.clear();
  for (int64_t i = bytes.Int(1, 3); i > 0; --i) config.query_lens.push_back(bytes.Int(1, 5));
  if (bytes.OneIn(3)) config.max_capture_size = bytes.Int(1, 64);
  config.default_sizes = bytes.OneIn(3);
  for (int64_t i = bytes.Int(0, 6); !config.default_sizes && i > 0; --i) {
    const int64_t size = bytes.Int(1, 64);
    if (config.max_capture_size == FWDMETA_DEFAULT || size <= config.max_capture_size) config.sizes.push_back(size);
  }
  if (bytes.OneIn(2)) config.max_loras = bytes.Int(1, 5);
  config.specialize = bytes.OneIn(2);
  if (bytes.OneIn(3)) config.max_full_reqs = bytes.Int(0, 12);
  config.round_piecewise = bytes.OneIn(3);
  return config;
}

inline std::vector<fwdmeta_graph_key_t> KeysOf(fwdmeta_dispatcher_t dispatcher) {
  int64_t count = -1;
  FUZZ_EXPECT(FWDMETA_OK, fwdmeta_dispatcher_get_keys(dispatcher, nullptr, 0, &count));
  std::vector<fwdmeta_graph_key_t> keys(static_cast<size_t>(count));
  FUZZ_EXPECT(FWDMETA_OK, fwdmeta_dispatcher_get_keys(dispatcher, keys.data(), count, &count));
  return keys;
}

}  // namespace fwdmeta_fuzz

#endif  // FWDMETA_TESTS_FUZZ_DISPATCHERS_H_
