// One slot of a batch: its role and what is wrong with it. Both backends call this for every slot.
#pragma once

#include <cstdint>

#include "base/hd.h"
#include "fwdmeta.h"

namespace fwdmeta {

// All zero for an idle slot, and for a bad one, which adds nothing to any sum.
struct Slot {
  int32_t encoder;    // E of a prefill, with kUnfinished where a later slice has its last token
  int32_t decoder;    // D of a live slot
  int32_t this_time;  // N; > 0: live

  FWDMETA_HD bool live() const { return this_time > 0; }
  FWDMETA_HD bool prefill() const { return encoder != 0; }
  FWDMETA_HD bool decode() const { return this_time > 0 && encoder == 0; }
  FWDMETA_HD int32_t kv() const { return decoder + this_time; }
  FWDMETA_HD int32_t attn_kv() const { return this_time + (prefill() ? decoder : 0); }
  FWDMETA_HD int32_t output_rows() const { return prefill() ? encoder > 0 : this_time; }
};
constexpr int32_t kUnfinished = INT32_MIN;  // a bit

// The FWDMETA_ERROR_* bits of one slot; 0 for a good or an idle one.
FWDMETA_HD int32_t SlotErrors(int32_t encoder, int32_t decoder, int32_t this_time, int32_t max_model_len) {
  if (this_time == 0) return 0;
  if (this_time < 0) return FWDMETA_ERROR_NEGATIVE;
  int32_t errors = 0;
  if (encoder < 0 || decoder < 0) errors |= FWDMETA_ERROR_NEGATIVE;
  if (encoder > 0 && encoder != this_time) errors |= FWDMETA_ERROR_ENCODER_MISMATCH;
  if (static_cast<int64_t>(decoder) + this_time > max_model_len) errors |= FWDMETA_ERROR_MODEL_LEN;
  return errors;
}

FWDMETA_HD Slot MakeSlot(int32_t encoder, int32_t decoder, int32_t this_time, int32_t errors) {
  if (this_time <= 0 || errors != 0) return {0, 0, 0};
  return {encoder, decoder, this_time};
}

// The number that breaks the rule of the slot's lowest error bit, and the limit it breaks.
FWDMETA_HD void SlotErrorNumbers(int32_t encoder, int32_t decoder, int32_t this_time, int32_t max_model_len,
                                 int32_t errors, int64_t* value, int64_t* limit) {
  if ((errors & FWDMETA_ERROR_NEGATIVE) != 0) {
    *value = this_time < 0 ? this_time : encoder < 0 ? encoder : decoder;
    *limit = 0;
  } else if ((errors & FWDMETA_ERROR_ENCODER_MISMATCH) != 0) {
    *value = encoder;
    *limit = this_time;
  } else {
    *value = static_cast<int64_t>(decoder) + this_time;
    *limit = max_model_len;
  }
}

constexpr int32_t kSlotErrorBits = FWDMETA_ERROR_NEGATIVE | FWDMETA_ERROR_ENCODER_MISMATCH | FWDMETA_ERROR_MODEL_LEN;

}  // namespace fwdmeta
