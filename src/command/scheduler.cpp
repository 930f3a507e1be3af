#include "scheduler.h"

#include <algorithm>
#include <utility>

namespace fwdmeta::command {

int32_t PagePool::take() {
  if (returned_.empty()) return static_cast<int32_t>(unused_from_++);
  const int32_t page = returned_.back();
  returned_.pop_back();
  return page;
}

Scheduler::Scheduler(std::vector<Request> requests, const SchedulerLimits& limits, uint64_t seed)
    : requests_(std::move(requests)),
      limits_(limits),
      pool_(limits.pool_blocks),
      random_(seed),
      sequences_(limits.slots),
      seq_lens_encoder_(limits.slots),
      seq_lens_decoder_(limits.slots),
      seq_lens_this_time_(limits.slots),
      block_table_(limits.slots * limits.table_width, -1) {
  for (size_t request = 0; request < requests_.size(); ++request) waiting_.push_back({request, 0});
  for (int64_t slot = limits.slots; slot-- > 0;) free_slots_.push_back(static_cast<int32_t>(slot));
}

int64_t Scheduler::final_length(int32_t slot) const {
  const Sequence& sequence = sequences_[slot];
  if (sequence.prefill_end == 0) return 0;
  const Request& request = requests_[sequence.request];
  return request.prompt_tokens + request.output_tokens - 1;
}

bool Scheduler::plan() {
  if (running_.empty() && waiting_.empty()) return false;
  std::fill(seq_lens_this_time_.begin(), seq_lens_this_time_.end(), 0);
  budget_ = limits_.token_budget;
  preempted_ = false;
  // By index: serving a slot may preempt slots from the end of the list.
  for (size_t i = 0; i < running_.size(); ++i) {
    const Sequence& sequence = sequences_[running_[i]];
    if (!sequence.is_decoding()) continue;
    const int64_t remaining = requests_[sequence.request].output_tokens - sequence.generated;
    serve(running_[i], std::min(1 + limits_.draft_tokens, remaining));
  }
  for (size_t i = 0; i < running_.size(); ++i) {
    const Sequence& sequence = sequences_[running_[i]];
    if (!sequence.is_decoding()) serve(running_[i], std::min(limits_.chunk, sequence.prefill_end - sequence.cached));
  }
  // A request that has just lost its pages would take them right back.
  if (!preempted_) admit();
  return true;
}

void Scheduler::serve(int32_t slot, int64_t wanted) {
  const Sequence& sequence = sequences_[slot];
  const int64_t tokens = std::min(wanted, budget_);
  if (tokens == 0 || !reserve(slot, sequence.cached + tokens)) return;
  seq_lens_encoder_[slot] = sequence.is_decoding() ? 0 : static_cast<int32_t>(tokens);
  seq_lens_decoder_[slot] = static_cast<int32_t>(sequence.cached);
  seq_lens_this_time_[slot] = static_cast<int32_t>(tokens);
  budget_ -= tokens;
}

// Gives the slot pages for `tokens` tokens. False when the slot itself had to be preempted.
bool Scheduler::reserve(int32_t slot, int64_t tokens) {
  Sequence& sequence = sequences_[slot];
  const int64_t wanted = pages(tokens);
  while (pool_.available() < wanted - sequence.num_pages) {
    const bool is_newest = running_.back() == slot;
    preempt_newest();
    if (is_newest) return false;
  }
  while (sequence.num_pages < wanted) block_table_[slot * limits_.table_width + sequence.num_pages++] = pool_.take();
  return true;
}

void Scheduler::admit() {
  while (budget_ > 0 && !waiting_.empty() && !free_slots_.empty()) {
    const Waiting next = waiting_.front();
    const int64_t prefill_end = requests_[next.request].prompt_tokens + next.generated;
    const int64_t tokens = std::min({limits_.chunk, prefill_end, budget_});
    if (pages(tokens) > pool_.available()) return;
    waiting_.pop_front();
    const int32_t slot = free_slots_.back();
    free_slots_.pop_back();
    sequences_[slot] = {next.request, next.generated, prefill_end, 0, 0};
    running_.push_back(slot);
    serve(slot, tokens);
  }
}

void Scheduler::preempt_newest() {
  const int32_t slot = running_.back();
  running_.pop_back();
  waiting_.push_front({sequences_[slot].request, sequences_[slot].generated});
  budget_ += std::exchange(seq_lens_this_time_[slot], 0);
  free_slot(slot);
  preempted_ = true;
}

// The slot's row of the table stays as it is, like its lengths.
void Scheduler::free_slot(int32_t slot) {
  for (int64_t i = 0; i < sequences_[slot].num_pages; ++i) {
    pool_.give_back(block_table_[slot * limits_.table_width + i]);
  }
  sequences_[slot] = {};
  free_slots_.push_back(slot);
}

void Scheduler::advance() {
  const auto is_done = [&](int32_t slot) {
    Sequence& sequence = sequences_[slot];
    const int64_t tokens = seq_lens_this_time_[slot];
    if (tokens == 0) return false;
    if (seq_lens_encoder_[slot] > 0) {
      sequence.cached += tokens;
      if (sequence.is_decoding()) ++sequence.generated;
    } else {
      const int64_t accepted = 1 + static_cast<int64_t>(random_() % tokens);
      sequence.cached += accepted;
      sequence.generated += accepted;
    }
    if (sequence.generated < requests_[sequence.request].output_tokens) return false;
    free_slot(slot);
    ++num_finished_;
    return true;
  };
  running_.erase(std::remove_if(running_.begin(), running_.end(), is_done), running_.end());
}

}  // namespace fwdmeta::command
