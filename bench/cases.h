// The batches that are measured, by name, and their inputs.
#ifndef FWDMETA_BENCH_CASES_H_
#define FWDMETA_BENCH_CASES_H_

#include <cstdint>
#include <string>
#include <vector>

#include "fwdmeta.h"

namespace fwdmeta_bench {

// The model and engine of every case: g = 8, and FastDeploy's tile sizes.
constexpr int64_t kQHeads = 64, kKvHeads = 8, kBlockSize = 64, kEncoderRows = 64, kDecoderRows = 16;
constexpr int64_t kHeadsPerKvHead = kQHeads / kKvHeads;
// Entries of the mirror and of the staging ring, so builds that may be in flight with host lengths.
constexpr int64_t kDepth = 16;

enum class Kind { kDecode, kMixed, kLongPrompt };

struct Case {
  std::string name;
  Kind kind;
  int64_t decode_slots, decode_tokens;    // N of a decode slot
  int64_t prefill_slots, prefill_tokens;  // E = N of a prefill slot
  int64_t max_model_len;
  bool mla;
  bool curve_only;  // a point of the growth curves, measured as graph alone
  uint64_t outputs = UINT64_MAX;

  int64_t slots() const { return decode_slots + prefill_slots; }
  int64_t tokens() const { return decode_slots * decode_tokens + prefill_slots * prefill_tokens; }
  // Columns of input_ids and of draft_tokens; no drafts where nothing decodes.
  int64_t ids_width() const { return prefill_slots > 0 ? prefill_tokens : decode_tokens; }
  int64_t drafts_width() const { return decode_slots > 0 ? decode_tokens : 0; }
};

const std::vector<Case>& AllCases();
Case DecodeCase(int64_t slots);
const Case& FindCase(const std::string& name);

// max_batch_size and max_num_tokens are the case's own.
fwdmeta_config_t MakeConfig(const Case& c, fwdmeta_backend_t backend, int64_t num_sms);

struct Inputs {
  std::vector<int32_t> encoder, decoder, this_time;
  std::vector<int32_t> table;
  std::vector<int64_t> ids, drafts;
};

class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}
  uint64_t Next();
  int64_t Between(int64_t least, int64_t most);

 private:
  uint64_t state_;
};

// The case itself: every slot live, contexts of random length.
Inputs MakeTimedInputs(const Case& c, int64_t table_width, Random* random);
// Anything that fits the same configuration: idle slots with stale lengths, other N, chunked prefills, bad pages.
Inputs MakeScrambledInputs(const Case& c, int64_t table_width, Random* random);

// Where the arrays of one build lie.
struct InputPointers {
  const int32_t *encoder, *decoder, *this_time;
  const int32_t* table;
  const int64_t *ids, *drafts;
};
InputPointers PointersTo(const Inputs& inputs);

// A build's arguments over the pointers. Not to be moved: the batch points into it.
struct BatchArgs {
  BatchArgs(const Case& c, int64_t table_width, const InputPointers& pointers, fwdmeta_stream_t stream);
  BatchArgs(const BatchArgs&) = delete;
  BatchArgs& operator=(const BatchArgs&) = delete;
  fwdmeta_rows_t table;
  fwdmeta_batch_t batch;
};

}  // namespace fwdmeta_bench

#endif  // FWDMETA_BENCH_CASES_H_
