#ifndef FWDMETA_COMMAND_SCHEDULER_H
#define FWDMETA_COMMAND_SCHEDULER_H

#include <cstdint>
#include <deque>
#include <random>
#include <vector>

#include "trace.h"

namespace fwdmeta::command {

struct SchedulerLimits {
  int64_t slots;
  int64_t token_budget;  // tokens of one step
  int64_t chunk;         // prompt tokens of one request and step
  int64_t block_size;
  int64_t pool_blocks;   // pages there are; enough for the longest request
  int64_t table_width;   // pages that a slot's row of the block table holds
  int64_t draft_tokens;  // per decoding slot and step
};

// Pages 0..size-1 of the KV cache, handed out and taken back.
class PagePool {
 public:
  explicit PagePool(int64_t size) : size_(size) {}
  int64_t available() const { return size_ - unused_from_ + static_cast<int64_t>(returned_.size()); }
  int32_t take();
  void give_back(int32_t page) { returned_.push_back(page); }

 private:
  int64_t size_;
  int64_t unused_from_ = 0;
  std::vector<int32_t> returned_;
};

/*
 * Continuous batching over fixed slots. A step serves decoding requests first, oldest first, then prompts in chunks,
 * then admits waiting requests. Where the pool runs dry, waiting requests wait and the newest running one goes back
 * to the front of the queue, to be prefilled again with all it has generated. Slots that are not served in a step are
 * idle and keep the lengths of the last step that served them.
 */
class Scheduler {
 public:
  // All requests are waiting from the start. Each has at least one prompt and one output token, and fits the table.
  Scheduler(std::vector<Request> requests, const SchedulerLimits& limits, uint64_t seed);

  // Fills the lengths and the table for the next step. False when no request is left.
  bool plan();

  // Takes the step as done: a random number of each slot's drafts has been accepted.
  void advance();

  const std::vector<int32_t>& seq_lens_encoder() const { return seq_lens_encoder_; }
  const std::vector<int32_t>& seq_lens_decoder() const { return seq_lens_decoder_; }
  const std::vector<int32_t>& seq_lens_this_time() const { return seq_lens_this_time_; }
  const std::vector<int32_t>& block_table() const { return block_table_; }  // [slots, table_width]
  int64_t num_finished() const { return num_finished_; }
  // Tokens that the cache holds when the slot's request is done; 0 for a free slot. The last one is never stored.
  int64_t final_length(int32_t slot) const;

 private:
  struct Waiting {
    size_t request;
    int64_t generated;
  };
  struct Sequence {
    size_t request = 0;
    int64_t generated = 0;
    int64_t prefill_end = 0;  // tokens to prefill before the first token is generated
    int64_t cached = 0;       // tokens in the KV cache
    int64_t num_pages = 0;
    bool is_decoding() const { return cached >= prefill_end; }
  };

  int64_t pages(int64_t tokens) const { return (tokens + limits_.block_size - 1) / limits_.block_size; }
  void serve(int32_t slot, int64_t wanted);
  bool reserve(int32_t slot, int64_t tokens);
  void admit();
  void preempt_newest();
  void free_slot(int32_t slot);

  std::vector<Request> requests_;
  SchedulerLimits limits_;
  PagePool pool_;
  std::mt19937_64 random_;
  std::deque<Waiting> waiting_;
  std::vector<Sequence> sequences_;  // by slot
  std::vector<int32_t> running_;     // slots, oldest admission first
  std::vector<int32_t> free_slots_;
  int64_t budget_ = 0;
  bool preempted_ = false;  // in this step
  int64_t num_finished_ = 0;
  std::vector<int32_t> seq_lens_encoder_, seq_lens_decoder_, seq_lens_this_time_, block_table_;
};

}  // namespace fwdmeta::command

#endif
