// What serves the steps that the scheduler plans: on a GPU, attention included, or on the host, metadata alone.
#ifndef FWDMETA_EXAMPLES_SERVE_LOOP_ENGINE_H_
#define FWDMETA_EXAMPLES_SERVE_LOOP_ENGINE_H_

#include <cstdint>
#include <fwdmeta/fwdmeta.hpp>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace serve_loop {

struct Options {
  fwdmeta_attention_t attention = FWDMETA_ATTENTION_APPEND;
  int64_t mla_chunk = 512;
  int64_t slots = 32, token_budget = 2048, page_size = 64, num_pages = 0, max_model_len = 0;
  int64_t head_dim = 128, num_q_heads = 32, num_kv_heads = 8;
  std::string dtype = "bf16";
  int64_t check_every = 1000;  // steps from one check with dense attention to the next; 0: none
  uint64_t seed = 1;
};

// A step, by slot.
struct Plan {
  const std::vector<int32_t>&encoder, &decoder, &this_time;
  const std::vector<int32_t>& table;          // [slots, columns]
  const std::vector<int32_t>& final_lengths;  // D at which a slot's request is done
  const std::vector<uint64_t>& seeds;         // of a slot's sequence
  int64_t num_tokens = 0, num_slots = 0;      // slots up to the last live one
  bool has_prefill = false;
};

// The lengths as a backend's arrays hold them: what the host need not write because advance has.
class Lengths {
 public:
  explicit Lengths(const Options& options);
  bool hold(const Plan& plan) const;
  void set(const Plan& plan);
  void advance(const Plan& plan);  // as fwdmeta_advance with a stop at the final length
  const std::vector<int32_t>& encoder() const { return encoder_; }
  const std::vector<int32_t>& decoder() const { return decoder_; }
  const std::vector<int32_t>& this_time() const { return this_time_; }

 private:
  int32_t max_model_len_;
  std::vector<int32_t> encoder_, decoder_, this_time_;
};

// A configuration that both backends share, but for the backend itself.
fwdmeta::Config builder_config(const Options& options);

using Rows = std::vector<std::pair<std::string, std::string>>;  // of the summary
std::string format(const char* pattern, ...) __attribute__((format(printf, 1, 2)));

class Engine {
 public:
  virtual ~Engine() = default;
  // std::runtime_error where the metadata says that the step cannot be served, or a check fails.
  virtual void step(const Plan& plan) = 0;
  // Waits for what is under way.
  virtual void finish() = 0;
  virtual Rows summary() const = 0;
};

std::unique_ptr<Engine> make_host_engine(const Options& options);
// Only where CUDA and cuBLAS were found.
std::unique_ptr<Engine> make_gpu_engine(const Options& options);

}  // namespace serve_loop

#endif  // FWDMETA_EXAMPLES_SERVE_LOOP_ENGINE_H_
