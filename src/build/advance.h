// The next decode step of one slot (contract 5), for both backends.
#pragma once

#include "build/backend.h"

namespace fwdmeta {

struct AdvancedSlot {
  int32_t decoder, this_time;
  bool changed, stopped, length_limited, clamped;
};

FWDMETA_HD AdvancedSlot AdvanceSlot(const Plan& plan, const AdvanceRequest& request, int32_t b) {
  const int32_t encoder = request.encoder[b], decoder = request.decoder[b], this_time = request.this_time[b];
  AdvancedSlot next = {decoder, this_time, false, false, false, false};
  // A slot that the next build will refuse stays as it is, for the build to name.
  if (this_time <= 0 || SlotErrors(encoder, decoder, this_time, plan.max_model_len) != 0) return next;
  const bool prefill = encoder > 0;
  const int32_t reached = decoder + this_time;
  if (prefill && request.prompt_lens != nullptr && reached < request.prompt_lens[b]) return next;
  int32_t rejected = 0;
  if (!prefill && request.num_rejected != nullptr) {
    const int32_t given = request.num_rejected[b];
    rejected = given < 0 ? 0 : given > this_time - 1 ? this_time - 1 : given;
    next.clamped = rejected != given;
  }
  next.changed = true;
  next.decoder = reached - rejected;
  next.stopped = request.stop != nullptr && request.stop[b] != 0;
  const int32_t room = plan.max_model_len - next.decoder;
  next.length_limited = !next.stopped && room == 0;
  next.this_time = next.stopped ? 0 : room < request.tokens_per_step ? room : request.tokens_per_step;
  return next;
}

}  // namespace fwdmeta
