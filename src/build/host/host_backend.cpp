// The host backend: plain C++, one pass per output, complete when the call returns.
#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <new>

#include "base/metrics.h"
#include "base/vectorize.h"
#include "build/advance.h"
#include "build/cut.h"

namespace fwdmeta {
namespace {

void* DefaultAlloc(size_t bytes, size_t alignment, void*) {
  return ::operator new(bytes, std::align_val_t(alignment), std::nothrow);
}
void DefaultFree(void* ptr, size_t, void*) { ::operator delete(ptr, std::align_val_t(256)); }

// What the previous step of a set left: the extents that the next build erases.
struct Extents {
  int32_t mapping[kNumMappings] = {};
  int32_t rows = 0, tokens = 0;
};

// The invalid counters of a step.
struct Invalid {
  uint64_t slots = 0, ids = 0;
};

// Fills [begin, end) of an array that may not be wanted.
template <class T>
void Fill(T* array, int64_t begin, int64_t end, T value) {
  if (array != nullptr && begin < end) std::fill(array + begin, array + end, value);
}
// The same where most runs have one entry.
template <class T>
FWDMETA_ALWAYS_INLINE void FillRun(T* array, int64_t begin, int64_t count, T value) {
  array[begin] = value;
  for (int64_t i = 1; i < count; ++i) array[begin + i] = value;
}

// Writes one step of one set, an output to a pass. Steps without a prefill, and outside slices, know more of their
// slots: every token is an output row, and only the decoder mapping has tiles.
template <bool kGeneral>
class StepWriter {
 public:
  StepWriter(const Plan& plan, const Inputs& inputs, const Summary& summary, const Outputs& out, Extents* extents)
      : plan_(plan), in_(inputs), summary_(summary), out_(out), previous_(*extents) {
    num_slots_ = summary.block.counts[kError] == 0 ? inputs.batch_size : 0;
    for (int i = 0; i < kNumMappings; ++i) extents->mapping[i] = Count(kDecoderNumBlocks + i);
    extents->rows = Count(kNumOutputTokens);
    extents->tokens = Count(kNumTokens);
  }

  void Write(Invalid* invalid) {
    WriteLengths();
    WriteMappings();
    WriteRows();
    WriteTokens(invalid);
  }

 private:
  int32_t Count(int32_t index) const { return summary_.block.counts[index]; }

  // Calls visit(b, slot) for every slot. The pointers are copies, so that no store to an output may change them.
  template <class Visit>
  FWDMETA_ALWAYS_INLINE void EverySlot(Visit visit) const {
    const int32_t *encoder = in_.encoder, *decoder = in_.decoder, *this_time = in_.this_time;
    const int32_t num_slots = num_slots_;
    for (int32_t b = 0; b < num_slots; ++b) {
      if constexpr (kGeneral) {
        visit(b, SlotOfSlice(in_, b, MakeSlot(encoder[b], decoder[b], this_time[b], 0)));
      } else {
        visit(b, Slot{0, this_time[b] > 0 ? decoder[b] : 0, this_time[b]});
      }
    }
  }

  // An exclusive prefix sum over the slots, repeated past them.
  template <class Rule>
  void WriteCu(int32_t* cu, Rule rule) {
    if (cu == nullptr) return;
    int32_t sum = 0;
    EverySlot([&](int32_t b, const Slot& slot) {
      cu[b] = sum;
      sum += static_cast<int32_t>(rule(slot));
    });
    Fill(cu, num_slots_, int64_t{plan_.max_batch_size} + 1, sum);
  }

  template <class Rule>
  void WritePerSlot(int32_t* array, int32_t idle, Rule rule) {
    if (array == nullptr) return;
    EverySlot([&](int32_t b, const Slot& slot) { array[b] = slot.live() ? rule(slot) : idle; });
    Fill(array, num_slots_, plan_.max_batch_size, idle);
  }

  void WriteLengths() {
    WriteCu(out_.i32(FWDMETA_FIELD_CU_SEQLENS_Q), [](const Slot& slot) { return slot.this_time; });
    WriteCu(out_.i32(FWDMETA_FIELD_CU_SEQLENS_K), [](const Slot& slot) { return slot.kv(); });
    WriteCu(out_.i32(FWDMETA_FIELD_ATTN_CU_SEQLENS_K), [](const Slot& slot) { return slot.attn_kv(); });
    WriteCu(out_.i32(FWDMETA_FIELD_CU_SEQLENS_Q_OUTPUT), [](const Slot& slot) { return slot.output_rows(); });
    WritePerSlot(out_.i32(FWDMETA_FIELD_SEQ_LENS_KV), plan_.pad_seq_len, [](const Slot& slot) { return slot.kv(); });
    WritePerSlot(out_.i32(FWDMETA_FIELD_SEQ_LENS_KV_LOCAL), 0,
                 [this](const Slot& slot) { return LocalKvLength(plan_, slot.kv()); });
    WritePerSlot(out_.i32(FWDMETA_FIELD_SEQ_LENS_OUTPUT), 0, [](const Slot& slot) { return slot.output_rows(); });
    int32_t tokens = 0;
    WritePerSlot(out_.i32(FWDMETA_FIELD_LAST_TOKEN_INDEX), -1, [&tokens](const Slot& slot) {
      tokens += slot.this_time;
      return tokens - 1;
    });
  }

  template <class Rule>
  void WriteMapping(Mapping mapping, Rule tiles_of) {
    const MappingFields& fields = kMappingFields[mapping];
    int32_t *batch_ids = out_.i32(fields.batch_ids), *tile_ids = out_.i32(fields.tile_ids);
    const int32_t total = Count(kDecoderNumBlocks + mapping);
    if (total > 0) {
      int32_t position = 0;
      if (batch_ids != nullptr) {
        EverySlot([&](int32_t b, const Slot& slot) {
          const int32_t tiles = static_cast<int32_t>(tiles_of(slot));
          if (tiles == 0) return;
          FillRun(batch_ids, position, tiles, b);
          position += tiles;
        });
      }
      position = 0;
      if (tile_ids != nullptr) {
        EverySlot([&](int32_t, const Slot& slot) {
          const int32_t tiles = static_cast<int32_t>(tiles_of(slot));
          for (int32_t tile = 0; tile < tiles; ++tile) tile_ids[position + tile] = tile;
          position += tiles;
        });
      }
      WriteCu(out_.i32(fields.cu_tiles), tiles_of);
    } else {
      Fill(out_.i32(fields.cu_tiles), 0, int64_t{plan_.max_batch_size} + 1, 0);
    }
    Fill(batch_ids, total, previous_.mapping[mapping], -1);
    Fill(tile_ids, total, previous_.mapping[mapping], -1);
  }

  void WriteMappings() {
    const MlaChunk chunk = summary_.chunk;
    WriteMapping(kDecoder, [this, chunk](const Slot& slot) { return DecoderTiles(plan_, slot, chunk); });
    WriteMapping(kEncoder, [this](const Slot& slot) { return EncoderTiles(plan_, slot); });
    WriteMapping(kKv, [this](const Slot& slot) { return KvTiles(plan_, slot); });
    WriteMapping(kPreCache, [this](const Slot& slot) { return PreCacheTiles(plan_, slot); });
  }

  void WriteRows() {
    int32_t* slots = out_.i32(FWDMETA_FIELD_BATCH_ID_PER_TOKEN_OUTPUT);
    int32_t* indices = out_.i32(FWDMETA_FIELD_LOGITS_INDICES);
    const int32_t total = Count(kNumOutputTokens);
    if (slots != nullptr) {
      int32_t row = 0;
      EverySlot([&](int32_t b, const Slot& slot) {
        const int32_t rows = slot.output_rows();
        if (rows == 0) return;
        FillRun(slots, row, rows, b);
        row += rows;
      });
    }
    if (indices != nullptr) {
      int32_t row = 0, token = 0;
      EverySlot([&](int32_t, const Slot& slot) {
        const int32_t rows = slot.output_rows();
        token += slot.this_time;
        for (int32_t i = 0; i < rows; ++i) indices[row + i] = token - rows + i;
        row += rows;
      });
    }
    Fill(slots, total, previous_.rows, -1);
    Fill(indices, total, previous_.rows, -1);
  }

  void WriteTokens(Invalid* invalid) {
    int32_t* batch_ids = out_.i32(FWDMETA_FIELD_BATCH_ID_PER_TOKEN);
    int64_t* positions = out_.i64(FWDMETA_FIELD_POSITION_IDS);
    uint8_t* is_padding = out_.u8(FWDMETA_FIELD_IS_PADDING);
    int32_t* mask = out_.i32(FWDMETA_FIELD_MASK_ENCODER_BATCH);
    int64_t* ids = out_.i64(FWDMETA_FIELD_IDS_REMOVE_PADDING);
    const int64_t total = Count(kNumTokens), end = std::max(Count(kNumTokens), previous_.tokens);
    const bool has_ids = ids != nullptr && (in_.input_ids.data != nullptr || in_.draft_tokens.data != nullptr);
    if (batch_ids != nullptr) {
      EveryRun([&](int64_t token, int32_t b, const Slot& slot) { FillRun(batch_ids, token, slot.this_time, b); });
    }
    if (mask != nullptr && kGeneral) {
      EveryRun([&](int64_t token, int32_t, const Slot& slot) {
        FillRun<int32_t>(mask, token, slot.this_time, slot.prefill());
      });
    }
    if (positions != nullptr) {
      EveryRun([&](int64_t token, int32_t, const Slot& slot) {
        for (int64_t i = 0; i < slot.this_time; ++i) positions[token + i] = slot.decoder + i;
      });
    }
    for (int32_t group = 0; group < plan_.num_groups; ++group) {
      if (out_.slot_mapping[group] != nullptr && in_.tables[group].data != nullptr) WriteSlots(group, invalid);
    }
    if (has_ids) WriteIds(ids, invalid);
    Fill<uint8_t>(is_padding, 0, total, 0);
    Fill<uint8_t>(is_padding, total, end, 1);
    Fill(batch_ids, total, end, -1);
    Fill(mask, kGeneral ? total : 0, end, 0);
    Fill<int64_t>(positions, total, end, 0);
    for (int32_t group = 0; group < plan_.num_groups; ++group) {
      Fill<int64_t>(out_.slot_mapping[group], in_.tables[group].data != nullptr ? total : 0, end, -1);
    }
    Fill<int64_t>(ids, has_ids ? total : 0, end, plan_.pad_token_id);
  }

  // Calls visit(first token, b, slot) for every live slot.
  template <class Visit>
  FWDMETA_ALWAYS_INLINE void EveryRun(Visit visit) const {
    int64_t token = 0;
    EverySlot([&](int32_t b, const Slot& slot) {
      if (slot.this_time == 0) return;
      visit(token, b, slot);
      token += slot.this_time;
    });
  }

  void WriteSlots(int32_t index, Invalid* invalid) {
    const PlanGroup group = plan_.groups[index];
    const Rows<int32_t> table = in_.tables[index];
    int64_t* out = out_.slot_mapping[index];
    uint64_t num_bad = 0;
    if (group.ranks > 1 || group.pages_per_block > 1) {
      EveryRun([&](int64_t token, int32_t b, const Slot& slot) {
        for (int32_t i = 0; i < slot.this_time; ++i) {
          bool bad;
          out[token + i] = SlotOfPosition(group, table, b, static_cast<uint32_t>(slot.decoder) + i, &bad);
          num_bad += bad;
        }
      });
    } else {
      // Page by page: the table is read once for each.
      EveryRun([&](int64_t token, int32_t b, const Slot& slot) {
        for (int64_t i = 0; i < slot.this_time;) {
          const uint32_t position = static_cast<uint32_t>(slot.decoder + i);
          const PageOfPosition at = LoadPage(group, table, b, position);
          bool bad;
          const int64_t first = SlotOfPage(group, at, &bad);
          const int64_t end = std::min<int64_t>(i + group.page.divisor - at.offset, slot.this_time);
          if (bad) num_bad += end - i;
          const int64_t step = bad ? 0 : 1;
          out[token + i] = first;
          for (int64_t begin = i++; i < end; ++i) out[token + i] = first + (i - begin) * step;
        }
      });
    }
    invalid->slots += num_bad;
  }

  void WriteIds(int64_t* ids, Invalid* invalid) {
    const Inputs in = in_;
    const int32_t pad = plan_.pad_token_id;
    uint64_t num_bad = 0;
    EveryRun([&](int64_t token, int32_t b, const Slot& slot) {
      for (int32_t i = 0; i < slot.this_time; ++i) {
        bool bad;
        ids[token + i] = IdOfToken(in, pad, b, slot.prefill(), i, &bad);
        num_bad += bad;
      }
    });
    invalid->ids += num_bad;
  }

  const Plan& plan_;
  const Inputs& in_;
  const Summary& summary_;
  const Outputs& out_;
  const Extents previous_;
  int32_t num_slots_;  // none in an error step
};

class HostBackend final : public Backend {
 public:
  HostBackend(const Config& config, const Plan& plan)
      : config_(config), plan_(plan), allocator_(config.host_allocator) {
    if (allocator_.alloc == nullptr) allocator_ = {DefaultAlloc, DefaultFree, nullptr};
    bytes_ = HostArenaBytes(config, plan);
  }
  ~HostBackend() override {
    if (arena_ == nullptr) return;
    allocator_.free(arena_, bytes_.host, allocator_.user);
    AddBytes(Memory::kHost, -bytes_.host);
  }

  Status Allocate() {
    arena_ = static_cast<unsigned char*>(allocator_.alloc(bytes_.host, 256, allocator_.user));
    if (arena_ == nullptr) {
      return Fail(FWDMETA_OUT_OF_MEMORY, "the host allocator gave none of %lld bytes", (long long)bytes_.host);
    }
    AddBytes(Memory::kHost, bytes_.host);
    FWDMETA_TRY(CheckArenaAlignment(arena_, "host"));
    const int64_t mirror = MirrorBytes(config_);
    std::memset(arena_, 0, mirror);
    ring_ = reinterpret_cast<MirrorEntry*>(arena_);
    tail_ = reinterpret_cast<MirrorTail*>(ring_ + config_.depth);
    unsigned char* base = arena_ + AlignUp(mirror);
    for (int32_t i = 0; i < config_.generations; ++i) base += PlaceOutputs(config_, plan_, base, &outputs_[i]);
    if (config_.of_slice) slice_arrays_ = host_slice_arrays_ = PlaceSliceArrays(config_, base);
    return Reset(nullptr);
  }

  fwdmeta_backend_t kind() const override { return FWDMETA_BACKEND_HOST; }
  int32_t device() const override { return -1; }
  int64_t single_launch_slots() const override { return 0; }
  int32_t* advance_counts() const override { return const_cast<int32_t*>(advance_counts_); }

  Status IsCapturing(fwdmeta_stream_t, bool* capturing) override {
    *capturing = false;
    return FWDMETA_OK;
  }
  Status HoldByCapture(fwdmeta_stream_t, std::shared_ptr<void>) override { return FWDMETA_OK; }

  Status CheckDevice() override { return FWDMETA_OK; }

  Status Build(const BuildRequest& request) override {
    const Outputs& out = outputs_[request.generation];
    Summary summary;
    if (request.summary != nullptr) {
      summary = *request.summary;
    } else {
      Summarize(plan_, request.inputs, &summary);
    }
    Invalid invalid;
    Extents* extents = &extents_[request.generation];
    if (summary.block.counts[kNumPrefill] > 0 || request.inputs.offsets != nullptr) {
      StepWriter<true>(plan_, request.inputs, summary, out, extents).Write(&invalid);
    } else {
      StepWriter<false>(plan_, request.inputs, summary, out, extents).Write(&invalid);
    }
    CountsBlock& block = summary.block;
    const uint32_t bad_slots = SaturateCount(invalid.slots), bad_ids = SaturateCount(invalid.ids);
    const bool good = block.counts[kError] == 0;
    const bool clamped = good && pending_clamped_;
    if (good) pending_clamped_ = false;
    MirrorEntry& entry = ring_[request.step % config_.depth];
    StoreView(block, &entry.view);
    StoreInvalid(MakeInvalidWords(request.step, bad_slots, bad_ids, clamped), &entry);
    entry.inputs_read = request.step;
    StoreCounts(block, request.step, &entry);
    block.counts[kNumInvalidSlots] = static_cast<int32_t>(bad_slots);
    block.counts[kNumInvalidIds] = static_cast<int32_t>(bad_ids);
    block.counts[kWarnings] = WarningsOf(bad_slots, bad_ids, clamped);
    WriteScalars(out, block, request.step);
    return FWDMETA_OK;
  }

  Status Cut(const CutRequest& request) override {
    Summary summary;
    Summarize(plan_, *request.batch, &summary);
    CutOnHost(request, summary.block.counts[kError] == 0 ? summary.block.counts[kNumTokens] : -1);
    return FWDMETA_OK;
  }

  void NoteWork(fwdmeta_stream_t) override {}

  Status Advance(const AdvanceRequest& request) override {
    int32_t stopped = 0, limited = 0;
    for (int32_t b = 0; b < request.batch_size; ++b) {
      const AdvancedSlot next = AdvanceSlot(plan_, request, b);
      if (!next.changed) continue;
      request.encoder[b] = 0;
      request.decoder[b] = next.decoder;
      request.this_time[b] = next.this_time;
      stopped += next.stopped;
      limited += next.length_limited;
      if (next.clamped) pending_clamped_ = true;
    }
    advance_counts_[0] = stopped;
    advance_counts_[1] = limited;
    const int64_t ordinal = ++advances_;
    AdvanceEntry& entry = tail_->advance[ordinal & 1];
    entry.num_stopped = stopped;
    entry.num_length_limited = limited;
    StoreStamp(&entry.stamp, ordinal);
    return FWDMETA_OK;
  }

  Status Reset(fwdmeta_stream_t) override {
    for (int32_t generation = 0; generation < config_.generations; ++generation) {
      extents_[generation] = {};
      for (int32_t i = 0; i < FWDMETA_FIELD_COUNT; ++i) FillField(outputs_[generation], i);
    }
    return FWDMETA_OK;
  }

  Status ReaderBegin(int32_t, fwdmeta_stream_t, fwdmeta_stream_t) override { return FWDMETA_OK; }
  Status ReaderEnd(int32_t, fwdmeta_stream_t) override { return FWDMETA_OK; }
  int32_t open_readers(int32_t) const override { return 0; }
  int32_t pending_readers(int32_t) const override { return 0; }
  Status OrderAfterBuild(int32_t, fwdmeta_stream_t, fwdmeta_stream_t) override { return FWDMETA_OK; }
  Status Synchronize(fwdmeta_stream_t) override { return FWDMETA_OK; }
  Status CopyToHost(const void* source, int64_t bytes, void* target) override {
    std::memcpy(target, source, bytes);
    return FWDMETA_OK;
  }

 private:
  void FillField(const Outputs& out, int32_t index) {
    const Field& field = kFields[index];
    const int64_t count = ElementCount(plan_, field.shape);
    const int64_t value = TailValue(plan_, field.tail);
    const int32_t copies = field.shape == Shape::kTokensByGroup ? plan_.num_groups : 1;
    for (int32_t copy = 0; copy < copies; ++copy) {
      void* array = field.shape == Shape::kTokensByGroup ? out.slot_mapping[copy] : out.array[index];
      switch (field.dtype) {
        case DType::kI32:
          Fill(static_cast<int32_t*>(array), 0, count, static_cast<int32_t>(value));
          break;
        case DType::kI64:
          Fill(static_cast<int64_t*>(array), 0, count, value);
          break;
        case DType::kU8:
          Fill(static_cast<uint8_t*>(array), 0, count, static_cast<uint8_t>(value));
          break;
      }
    }
  }

  static void WriteScalars(const Outputs& out, const CountsBlock& block, int64_t step) {
    for (int i = 0; i < kNumMappings; ++i) {
      *out.i32(kMappingFields[i].num_blocks) = block.counts[kDecoderNumBlocks + i];
    }
    *out.i32(FWDMETA_FIELD_DECODER_CHUNK_SIZE_DEVICE) = block.decoder_chunk_size;
    std::copy(std::begin(block.max_len), std::end(block.max_len), out.i32(FWDMETA_FIELD_MAX_LEN_TENSOR));
    std::copy(std::begin(block.counts), std::end(block.counts), out.i32(FWDMETA_FIELD_COUNTS));
    int64_t* wide = out.i64(FWDMETA_FIELD_COUNTS_I64);
    wide[0] = block.error_value;
    wide[1] = block.error_limit;
    wide[2] = step;
  }

  const Config config_;
  const Plan plan_;
  fwdmeta_allocator_t allocator_;
  unsigned char* arena_ = nullptr;
  Extents extents_[64];
  bool pending_clamped_ = false;  // an advance since the last good step has clamped a rejected count
  int64_t advances_ = 0;
  int32_t advance_counts_[2] = {};
};

}  // namespace

ArenaBytes HostArenaBytes(const Config& config, const Plan& plan) {
  const int64_t mirror = AlignUp(MirrorBytes(config));
  return {0, 0, mirror + config.generations * PlaceOutputs(config, plan, nullptr, nullptr) + SliceArraysBytes(config)};
}

Status CreateHostBackend(const Config& config, const Plan& plan, BackendPtr* out) {
  std::unique_ptr<HostBackend> backend(new HostBackend(config, plan));
  FWDMETA_TRY(backend->Allocate());
  *out = BackendPtr(backend.release(), [](Backend* ended) { delete ended; });
  return FWDMETA_OK;
}

}  // namespace fwdmeta
