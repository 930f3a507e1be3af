// A step's fields and tensors, as JSON or as text.
#include <algorithm>
#include <charconv>
#include <cinttypes>
#include <cmath>
#include <cstdarg>
#include <cstddef>
#include <cstdio>
#include <cstring>
#include <string>

#include "build/builder.h"

namespace fwdmeta {

// Collects the dump and hands it over in pieces. The first refusal of the callback stops it.
class DumpOutput {
 public:
  DumpOutput(fwdmeta_write_callback_t write, void* user) : write_(write), user_(user) {}

  __attribute__((format(printf, 2, 3))) void Print(const char* format, ...) {
    char piece[512];
    va_list arguments;
    va_start(arguments, format);
    const int length = std::vsnprintf(piece, sizeof(piece), format, arguments);
    va_end(arguments);
    if (length > 0) text_.append(piece, std::min<size_t>(length, sizeof(piece) - 1));
  }
  void Quote(const char* text) {
    text_ += '"';
    for (; *text != '\0'; ++text) {
      const unsigned char c = *text;
      if (c == '"' || c == '\\') {
        text_ += '\\';
        text_ += *text;
      } else if (c < 0x20) {
        Print("\\u%04x", c);
      } else {
        text_ += *text;
      }
    }
    text_ += '"';
  }
  Status Flush() {
    if (!text_.empty() && write_(text_.data(), text_.size(), user_) != 0) {
      return Fail(FWDMETA_UNAVAILABLE, "the write callback stopped the dump");
    }
    text_.clear();
    return FWDMETA_OK;
  }

 private:
  fwdmeta_write_callback_t write_;
  void* user_;
  std::string text_;
};

namespace {

constexpr int64_t kShownElements = 32;

double HalfToDouble(uint16_t bits) {
  const int exponent = bits >> 10 & 31, fraction = bits & 1023;
  const double sign = bits >> 15 != 0 ? -1.0 : 1.0;
  if (exponent == 31) return fraction != 0 ? std::nan("") : sign * HUGE_VAL;
  return sign * (exponent == 0 ? std::ldexp(fraction, -24) : std::ldexp(1024 + fraction, exponent - 25));
}

double BFloatToDouble(uint16_t bits) {
  const uint32_t wide = static_cast<uint32_t>(bits) << 16;
  float value;
  std::memcpy(&value, &wide, sizeof(value));
  return value;
}

// JSON has no words for infinities and NaN. The shortest text that reads back the same, in any locale.
void PrintFloat(DumpOutput* out, double value) {
  char text[32] = "null";
  if (std::isfinite(value)) *std::to_chars(text, text + sizeof(text) - 1, value).ptr = '\0';
  out->Print("%s", text);
}

template <class T>
T Load(const unsigned char* bytes) {
  T value;
  std::memcpy(&value, bytes, sizeof(value));
  return value;
}

bool Printable(const fwdmeta_tensor_t& t) {
  if (t.dtype_lanes != 1) return false;
  switch (t.dtype_code) {
    case FWDMETA_DTYPE_INT:
    case FWDMETA_DTYPE_UINT:
      return t.dtype_bits == 8 || t.dtype_bits == 16 || t.dtype_bits == 32 || t.dtype_bits == 64;
    case FWDMETA_DTYPE_FLOAT:
      return t.dtype_bits == 16 || t.dtype_bits == 32 || t.dtype_bits == 64;
    case FWDMETA_DTYPE_BFLOAT:
      return t.dtype_bits == 16;
    case FWDMETA_DTYPE_BOOL:
      return t.dtype_bits == 8;
    default:
      return false;
  }
}

void PrintElement(DumpOutput* out, const fwdmeta_tensor_t& t, const unsigned char* p) {
  if (t.dtype_code == FWDMETA_DTYPE_FLOAT || t.dtype_code == FWDMETA_DTYPE_BFLOAT) {
    PrintFloat(out, t.dtype_code == FWDMETA_DTYPE_BFLOAT ? BFloatToDouble(Load<uint16_t>(p))
                    : t.dtype_bits == 16                 ? HalfToDouble(Load<uint16_t>(p))
                    : t.dtype_bits == 32                 ? Load<float>(p)
                                                         : Load<double>(p));
  } else if (t.dtype_code == FWDMETA_DTYPE_INT) {
    out->Print("%" PRId64, t.dtype_bits == 8    ? Load<int8_t>(p)
                           : t.dtype_bits == 16 ? Load<int16_t>(p)
                           : t.dtype_bits == 32 ? Load<int32_t>(p)
                                                : Load<int64_t>(p));
  } else {
    out->Print("%" PRIu64, t.dtype_bits == 8    ? Load<uint8_t>(p)
                           : t.dtype_bits == 16 ? Load<uint16_t>(p)
                           : t.dtype_bits == 32 ? Load<uint32_t>(p)
                                                : Load<uint64_t>(p));
  }
}

bool RowMajor(const fwdmeta_tensor_t& t) {
  // Of an empty one the other dimensions may be past int64 together.
  if (std::find(t.shape, t.shape + t.ndim, 0) != t.shape + t.ndim) return true;
  int64_t expected = 1;
  for (int i = t.ndim - 1; i >= 0; --i) {
    if (t.shape[i] != 1 && t.strides[i] != expected) return false;
    expected *= t.shape[i];
  }
  return true;
}

class Dumper {
 public:
  Dumper(const Builder& builder, bool json, DumpOutput* out) : backend_(builder.backend()), json_(json), out_(out) {}

  Status Tensor(const char* name, const char* origin, const fwdmeta_tensor_t& t) {
    constexpr const char* kCodes[] = {"int", "uint", "float", "opaque", "bfloat", "complex", "bool"};
    const char* code = t.dtype_code < 7 ? kCodes[t.dtype_code] : "unknown";
    out_->Print(json_ ? (first_ ? "\n    " : ",\n    ") : "%s", "");
    first_ = false;
    if (json_) {
      out_->Print("{\"name\": ");
      out_->Quote(name);
      out_->Print(", \"origin\": \"%s\", \"dtype\": \"%s%d\", \"shape\": [", origin, code, t.dtype_bits);
    } else {
      out_->Print("%-28s %-8s %s%d [", name, origin, code, t.dtype_bits);
    }
    int64_t count = 1;
    for (int32_t i = 0; i < t.ndim; ++i) {
      out_->Print("%s%" PRId64, i > 0 ? ", " : "", t.shape[i]);
      count *= t.shape[i];
    }
    const char* place = t.memory_kind == FWDMETA_MEMORY_HOST ? "host" : "cuda";
    if (json_) {
      out_->Print("], \"device\": \"%s", place);
      if (t.memory_kind == FWDMETA_MEMORY_DEVICE) out_->Print(":%d", t.device);
      out_->Print("\", \"address\": \"%p\", \"content\": ", t.data);
    } else {
      out_->Print("] %s", place);
      if (t.memory_kind == FWDMETA_MEMORY_DEVICE) out_->Print(":%d", t.device);
      out_->Print(" %p ", t.data);
    }
    FWDMETA_TRY(Content(t, count));
    out_->Print(json_ ? "}" : "\n");
    return out_->Flush();
  }

 private:
  // The first elements; null where the dtype, the strides or the memory are not ones this can read.
  Status Content(const fwdmeta_tensor_t& t, int64_t count) {
    const bool reachable = t.memory_kind == FWDMETA_MEMORY_HOST || backend_.device() >= 0;
    if (!Printable(t) || !RowMajor(t) || !reachable) {
      out_->Print("null");
      return FWDMETA_OK;
    }
    const int64_t shown = std::min(count, kShownElements);
    unsigned char bytes[kShownElements * 8];
    const int64_t size = t.dtype_bits / 8;
    if (shown > 0) {
      if (t.memory_kind == FWDMETA_MEMORY_DEVICE) {
        FWDMETA_TRY(backend_.CopyToHost(t.data, shown * size, bytes));
      } else {
        std::memcpy(bytes, t.data, shown * size);
      }
    }
    out_->Print("[");
    for (int64_t i = 0; i < shown; ++i) {
      if (i > 0) out_->Print(", ");
      PrintElement(out_, t, bytes + i * size);
    }
    out_->Print("]");
    if (shown < count) out_->Print(json_ ? ", \"elided\": %" PRId64 : " ... %" PRId64 " more", count - shown);
    return FWDMETA_OK;
  }

  Backend& backend_;
  bool json_;
  DumpOutput* out_;
  bool first_ = true;
};

// By fwdmeta_attr_t, as they are called without the prefix.
constexpr const char* kAttributeNames[FWDMETA_ATTR_COUNT] = {"forward_mode",
                                                             "exist_prefill",
                                                             "real_bsz",
                                                             "is_zero_size",
                                                             "step",
                                                             "generation",
                                                             "step_use_cudagraph",
                                                             "rope_already_applied",
                                                             "is_dummy_or_profile_run",
                                                             "pre_caches_length",
                                                             "moe_num_chunk",
                                                             "max_moe_num_chunk"};

}  // namespace

Status Meta::Dump(fwdmeta_dump_format_t format, fwdmeta_write_callback_t write, void* user) const {
  if (write == nullptr) return Fail(FWDMETA_INVALID_ARGUMENT, "write is null");
  if (format != FWDMETA_DUMP_JSON && format != FWDMETA_DUMP_TEXT) {
    return Fail(FWDMETA_INVALID_ARGUMENT, "format is %d", format);
  }
  const bool json = format == FWDMETA_DUMP_JSON;
  KeepLastError keep;
  const Status status = DumpAll(json, write, user);
  if (status != FWDMETA_OK) keep.Drop();
  return status;
}

// Derived ones are null where the counts cannot be read.
void Meta::DumpAttributes(bool json, DumpOutput* out) const {
  if (json) out->Print(",\n  \"attributes\": {");
  for (fwdmeta_attr_t attr = 0; attr < FWDMETA_ATTR_COUNT; ++attr) {
    int64_t value = 0;
    const bool known = GetAttr(attr, &value) == FWDMETA_OK;
    out->Print(json ? "%s\"%s\": " : "%s%-28s ", json && attr > 0 ? ", " : "", kAttributeNames[attr]);
    if (known) {
      out->Print("%" PRId64, value);
    } else {
      out->Print("null");
    }
    if (!json) out->Print("\n");
  }
  char name[kLongestName + 1];
  void* backend = nullptr;
  bool is_set = false;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    is_set = has_attn_backend_;
    if (is_set) std::memcpy(name, attn_backend_name_, sizeof(name));
    backend = attn_backend_;
  }
  out->Print(json ? "}, \"attn_backend\": " : "%-28s ", "attn_backend");
  if (!is_set) {
    out->Print("null");
  } else if (json) {
    out->Print("{\"name\": ");
    out->Quote(name);
    out->Print(", \"address\": \"%p\"}", backend);
  } else {
    out->Print("%s %p", name, backend);
  }
  if (!json) out->Print("\n");
}

Status Meta::DumpAll(bool json, fwdmeta_write_callback_t write, void* user) const {
  FWDMETA_TRY(builder_->backend().Synchronize(stream_));
  DumpOutput out(write, user);
  fwdmeta_counts_t counts = FWDMETA_COUNTS_INITIALIZER;
  // An expired or unready entry leaves them zero, as the status says; the device's copy is among the fields.
  const Status status_of_counts = Wait(0, 0, &counts);
  out.Print(json ? "{\"schema\": \"fwdmeta.dump/1\", \"step\": %" PRId64
                   ", \"generation\": %d, \"status\": \"%s\", \"counts\": "
                 : "step %" PRId64 ", generation %d, status %s\n",
            step_, generation_, StatusName(status_of_counts));
  constexpr const char* kNames[kNumCounts] = {"batch_size",
                                              "num_live",
                                              "num_prefill",
                                              "num_decode",
                                              "num_tokens",
                                              "num_padded_tokens",
                                              "num_kv_tokens",
                                              "num_attn_kv_tokens",
                                              "decoder_num_blocks",
                                              "encoder_num_blocks",
                                              "kv_num_blocks",
                                              "pre_cache_num_blocks",
                                              "num_output_tokens",
                                              "num_invalid_slots",
                                              "num_invalid_ids",
                                              "warnings",
                                              "error",
                                              "error_slot"};
  int32_t values[kNumCounts];  // they lie one behind the other
  std::memcpy(values, reinterpret_cast<const char*>(&counts) + offsetof(fwdmeta_counts_t, batch_size), sizeof(values));
  for (int i = 0; i < kNumCounts; ++i) {
    out.Print(json ? "%s\"%s\": %d" : "%s%-28s %d\n", json ? (i == 0 ? "{" : ", ") : "", kNames[i], values[i]);
  }
  if (json) out.Print("}");
  DumpAttributes(json, &out);
  if (json) out.Print(", \"fields\": [");
  Dumper dumper(*builder_, json, &out);
  for (int32_t i = 0; i < FWDMETA_FIELD_COUNT; ++i) {
    const bool by_group = kFields[i].shape == Shape::kTokensByGroup;
    const int32_t groups = by_group ? builder_->plan().num_groups : 1;
    for (int32_t group = 0; group < groups; ++group) {
      fwdmeta_tensor_t tensor;
      const Status status = GetField(i, group, &tensor);
      if (status == FWDMETA_NOT_FOUND || status == FWDMETA_EXPIRED) continue;
      FWDMETA_TRY(status);
      char name[kLongestName + 1];
      std::snprintf(name, sizeof(name), groups > 1 ? "%s[%d]" : "%s", kFields[i].name, group);
      FWDMETA_TRY(dumper.Tensor(name, "built", tensor));
    }
  }
  std::vector<TensorTable::Entry> set;  // copied, so that no lock is held during the callback
  {
    std::lock_guard<std::mutex> lock(mutex_);
    set = tensors_.entries();
  }
  {
    std::lock_guard<std::mutex> lock(builder_->tensors_mutex());
    for (const TensorTable::Entry& entry : builder_->tensors().entries()) {
      bool hidden = false;
      for (const TensorTable::Entry& own : set) hidden = hidden || std::strcmp(own.name, entry.name) == 0;
      if (!hidden) set.push_back(entry);
    }
  }
  for (const TensorTable::Entry& entry : set) FWDMETA_TRY(dumper.Tensor(entry.name, "engine", entry.tensor));
  if (json) out.Print("\n  ]}\n");
  return out.Flush();
}

}  // namespace fwdmeta
