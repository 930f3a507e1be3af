// The C API of builders, steps and slicers: calls in any order, over good and bad configurations, batches and handles,
// each held against the model.
#include <deque>
#include <map>
#include <optional>

#include "calls.h"
#include "steps.h"

// DLPack's structs as far as their deleters, which the header leaves to dlpack.h.
struct DLManagedTensor {
  char tensor[48];
  void* manager;
  void (*deleter)(DLManagedTensor*);
};
struct DLManagedTensorVersioned {
  uint32_t major, minor;
  void* manager;
  void (*deleter)(DLManagedTensorVersioned*);
};

namespace fwdmeta_fuzz {
namespace {

constexpr int kMostOps = 48;

int32_t Write(const char*, size_t, void* user) { return --*static_cast<int*>(user) < 0; }

// What a builder's arrays hold: the model's step, unless a build has been that the model does not follow.
struct Held {
  std::optional<reference::Result> result;
  int64_t step = 0;
};

struct BuilderState {
  fwdmeta_builder_t handle = 0;
  bool alive = true, of_slicer = false;
  reference::Config config;
  bool modelled = false;
  int64_t step = 0, next_set = 0;
  int64_t live_metas = 0;
  int64_t advances = 0;
  bool clamped = false;
  std::vector<Held> sets;
  std::map<int64_t, Held> ring;  // by step

  bool Expired(int64_t of) const { return of + config.depth <= step; }
};

struct MetaState {
  fwdmeta_meta_t handle = 0;
  BuilderState* builder = nullptr;
  int64_t set = 0, step = 0;
  int64_t open_readers = 0;
};

struct SlicerState {
  fwdmeta_slicer_t handle = 0;
  std::vector<BuilderState*> slices;
};

class World {
 public:
  explicit World(const uint8_t* data, size_t size) : bytes_(data, size) {}

  void Run() {
    CreateBuilder();
    for (int op = 0; op < kMostOps && !bytes_.empty(); ++op) {
      switch (bytes_.Byte() % 24) {
        case 0:
          CreateBuilder();
          break;
        case 1:
          DestroyBuilder();
          break;
        case 2:
          CreateSlicer();
          break;
        case 3:
          SlicerCalls();
          break;
        case 4:
        case 5:
          BuildSlices();
          break;
        case 6:
          DestroyMeta();
          break;
        case 7:
          WaitForCounts();
          break;
        case 8:
          GetTensor();
          break;
        case 9:
          Attributes();
          break;
        case 10:
          SetTensor();
          break;
        case 11:
          AttnBackend();
          break;
        case 12:
          Readers();
          break;
        case 13:
          Dump();
          break;
        case 14:
          Dlpack();
          break;
        case 15:
          Advance();
          break;
        case 16:
          Reset();
          break;
        case 17:
          Info();
          break;
        case 18:
          CheckMeta();
          break;
        default:
          Build();
      }
    }
    End();
  }

 private:
  // ---- handles

  // One of `alive`, or one that is none of its type.
  template <class Alive>
  typename Alive::value_type* Choose(Alive& alive, uint64_t* handle) {
    if (!alive.empty() && !bytes_.OneIn(16)) {
      auto& chosen = alive[bytes_.Int(0, static_cast<int64_t>(alive.size()) - 1)];
      *handle = chosen.handle;
      return &chosen;
    }
    switch (bytes_.Byte() % 3) {
      case 0:
        *handle = 0;
        break;
      case 1:
        *handle = dead_.empty() ? 0 : dead_[bytes_.Int(0, static_cast<int64_t>(dead_.size()) - 1)];
        break;
      default:
        *handle = static_cast<uint64_t>(bytes_.Int(INT64_MIN, INT64_MAX));
    }
    for (auto& one : alive) {
      if (one.handle == *handle) return &one;
    }
    return nullptr;
  }
  BuilderState* ChooseBuilder(uint64_t* handle) {
    std::vector<BuilderRef> alive;
    for (BuilderState& builder : builders_) {
      if (builder.alive) alive.push_back({builder.handle, &builder});
    }
    const BuilderRef* chosen = Choose(alive, handle);
    return chosen != nullptr ? chosen->state : nullptr;
  }
  struct BuilderRef {
    uint64_t handle;
    BuilderState* state;
  };

  BuilderState* Add(fwdmeta_builder_t handle, const fwdmeta_config_t& c) {
    BuilderState& builder = builders_.emplace_back();
    builder.handle = handle;
    builder.modelled = HasModel(c);
    if (builder.modelled) builder.config = ModelOf(c);
    builder.config.generations = c.generations;
    builder.config.depth = c.depth;
    builder.config.max_metas = c.max_metas;
    builder.sets.resize(c.generations);
    if (builder.modelled) {
      for (Held& set : builder.sets) set.result = Tails(builder.config);
    }
    return &builder;
  }

  // ---- builders and slicers

  void CreateBuilder() {
    std::vector<fwdmeta_group_config_t> groups;
    fwdmeta_config_t c = ReadConfig(bytes_, &groups);
    CheckCapacities(c);
    if (live_ == 4) return;
    c.host_allocator = memory_.allocator();
    Sized<fwdmeta_config_t, 8> config(bytes_, c);
    if (!config.whole() && config.readable()) {  // perhaps without the allocator that bounds it
      fwdmeta_capacities_t out = FWDMETA_CAPACITIES_INITIALIZER;
      if (FUZZ_CALL(fwdmeta_get_capacities(config.get(), nullptr, &out)) != FWDMETA_OK || out.host_bytes > 1 << 18)
        return;
    }
    const int64_t refused = memory_.refused();
    fwdmeta_builder_t handle = 0;
    const fwdmeta_status_t status = FUZZ_CALL(fwdmeta_builder_create(config.get(), &handle));
    FUZZ_CHECK((status == FWDMETA_OK) == (handle != 0));
    if (memory_.refused() > refused) FUZZ_CHECK(status == FWDMETA_OUT_OF_MEMORY);
    if (!config.readable()) FUZZ_CHECK(status == FWDMETA_INVALID_ARGUMENT);
    if (config.whole() && config.readable() && status != FWDMETA_OUT_OF_MEMORY) {
      fwdmeta_capacities_t out = FWDMETA_CAPACITIES_INITIALIZER;
      FUZZ_EXPECT(status, fwdmeta_get_capacities(&c, nullptr, &out));
    }
    if (status != FWDMETA_OK) return;
    // A struct that ends early has defaults, with which it may be created elsewhere too.
    if (!config.whole()) {
      FUZZ_EXPECT(FWDMETA_OK, fwdmeta_builder_destroy(handle));
      dead_.push_back(handle);
      return;
    }
    Add(handle, c);
    ++live_;
  }

  void CheckCapacities(const fwdmeta_config_t& c) {
    fwdmeta_capacity_query_t q = FWDMETA_CAPACITY_QUERY_INITIALIZER;
    if (bytes_.OneIn(2)) q.slots = bytes_.OneIn(4) ? bytes_.Number() : bytes_.Int(1, 8);
    if (bytes_.OneIn(2)) q.tokens = bytes_.OneIn(4) ? bytes_.Number() : bytes_.Int(1, 64);
    if (bytes_.OneIn(4)) q.block_table_alignment = bytes_.Number();
    Sized<fwdmeta_capacity_query_t> query(bytes_, q);
    Sized<fwdmeta_capacities_t> out(bytes_, FWDMETA_CAPACITIES_INITIALIZER);
    const fwdmeta_status_t status = FUZZ_CALL(fwdmeta_get_capacities(&c, query.get(), out.get()));
    if (status != FWDMETA_OK) return;
    FUZZ_CHECK(query.readable() && out.writable());
    if (!query.whole() || !out.whole() || !HasModel(c)) return;
    const int64_t slots = q.slots == FWDMETA_DEFAULT ? c.max_batch_size : q.slots;
    const int64_t tokens = q.tokens == FWDMETA_DEFAULT ? c.max_num_tokens : q.tokens;
    const reference::Capacities want = reference::GetCapacities(ModelOf(c), slots, tokens, q.block_table_alignment);
    const fwdmeta_capacities_t got = out.value();
    FUZZ_CHECK(got.decoder == want.decoder && got.encoder == want.encoder && got.kv == want.kv &&
               got.pre_cache == want.pre_cache);
    for (size_t i = 0; i < want.block_table_width.size(); ++i) {
      FUZZ_CHECK(got.block_table_width[i] == want.block_table_width[i]);
    }
  }

  void DestroyBuilder() {
    uint64_t handle = 0;
    BuilderState* builder = ChooseBuilder(&handle);
    const fwdmeta_status_t status = FUZZ_CALL(fwdmeta_builder_destroy(handle));
    if (builder == nullptr) {
      FUZZ_CHECK(status == (handle == 0 ? FWDMETA_OK : FWDMETA_INVALID_HANDLE));
    } else if (builder->of_slicer) {
      FUZZ_CHECK(status == FWDMETA_INVALID_ARGUMENT);
    } else {
      FUZZ_CHECK(status == FWDMETA_OK);
      builder->alive = false;
      dead_.push_back(handle);
      --live_;
    }
  }

  void CreateSlicer() {
    if (!slicers_.empty()) {
      uint64_t handle = 0;
      const SlicerState* slicer = Choose(slicers_, &handle);
      const fwdmeta_status_t status = FUZZ_CALL(fwdmeta_slicer_destroy(handle));
      FUZZ_CHECK(status == (slicer != nullptr || handle == 0 ? FWDMETA_OK : FWDMETA_INVALID_HANDLE));
      if (slicer != nullptr) EndSlicer();
      return;
    }
    std::vector<fwdmeta_group_config_t> groups;
    fwdmeta_config_t c = ReadConfig(bytes_, &groups);
    c.host_allocator = memory_.allocator();
    const int64_t slices = bytes_.OneIn(8) ? bytes_.Number() : bytes_.Int(1, 4);
    SlicerState slicer;
    const fwdmeta_status_t status = FUZZ_CALL(fwdmeta_slicer_create(&c, slices, &slicer.handle));
    FUZZ_CHECK((status == FWDMETA_OK) == (slicer.handle != 0));
    if (status != FWDMETA_OK) return;
    for (int64_t i = 0; i < slices; ++i) {
      fwdmeta_builder_t handle = 0;
      FUZZ_EXPECT(FWDMETA_OK, fwdmeta_slicer_get_builder(slicer.handle, i, &handle));
      slicer.slices.push_back(Add(handle, c));
      slicer.slices.back()->of_slicer = true;
    }
    slicers_.push_back(std::move(slicer));
  }

  void EndSlicer() {
    dead_.push_back(slicers_[0].handle);
    for (BuilderState* slice : slicers_[0].slices) {
      slice->alive = false;
      dead_.push_back(slice->handle);
    }
    slicers_.clear();
  }

  void SlicerCalls() {
    uint64_t handle = 0;
    const SlicerState* slicer = Choose(slicers_, &handle);
    const int64_t slice = bytes_.Number();
    fwdmeta_builder_t builder = 0;
    const fwdmeta_status_t status = FUZZ_CALL(fwdmeta_slicer_get_builder(handle, slice, &builder));
    if (slicer == nullptr) {
      FUZZ_CHECK(status == FWDMETA_INVALID_HANDLE);
    } else if (slice < 0 || slice >= static_cast<int64_t>(slicer->slices.size())) {
      FUZZ_CHECK(status == FWDMETA_OUT_OF_RANGE);
    } else {
      FUZZ_CHECK(status == FWDMETA_OK && builder == slicer->slices[slice]->handle);
    }
  }

  // ---- builds

  // The set that a build takes, or why there is none.
  fwdmeta_status_t ChooseSet(const BuilderState& builder, int64_t generation, int64_t* set) const {
    const int64_t sets = builder.config.generations;
    if (generation != FWDMETA_DEFAULT && (generation < 0 || generation >= sets)) return FWDMETA_OUT_OF_RANGE;
    *set = generation == FWDMETA_DEFAULT ? builder.next_set : generation;
    return FWDMETA_OK;
  }

  int64_t ReadGeneration(const BuilderState& builder) {
    if (!bytes_.OneIn(3)) return FWDMETA_DEFAULT;
    return bytes_.OneIn(8) ? bytes_.Number() : bytes_.Int(0, builder.config.generations - 1);
  }

  // Breaks the struct in one place. False: it is as good as it was.
  bool Spoil(fwdmeta_batch_t* c) {
    if (!bytes_.OneIn(8)) return false;
    const auto misaligned = [](const void* pointer) {
      return reinterpret_cast<const int32_t*>(reinterpret_cast<uintptr_t>(pointer) + 1);
    };
    switch (bytes_.Byte() % 10) {
      case 0:
        c->memory_kind = bytes_.Number32();
        break;
      case 1:
        c->flags = bytes_.Number32();
        break;
      case 2: {
        const int64_t size = bytes_.Number();
        if (size < c->batch_size || size > 256) c->batch_size = size;
        break;
      }
      case 3:
        c->num_padded_tokens = bytes_.Number();
        break;
      case 4:
        c->seq_lens_decoder = nullptr;
        break;
      case 5:
        c->seq_lens_this_time = misaligned(c->seq_lens_this_time);
        break;
      case 6:
        c->num_block_tables = c->block_tables != nullptr ? 0 : bytes_.Number();
        break;
      case 7:
        if (c->input_ids.width > 0) c->input_ids.row_stride = bytes_.Int(0, c->input_ids.width) - 1;
        break;
      case 8:
        c->draft_tokens.width = bytes_.OneIn(2) ? -1 : int64_t{INT32_MAX} + 1;
        break;
      default:
        c->input_ids.data = misaligned(c->input_ids.data);
    }
    return true;
  }

  MetaState* Take(BuilderState* builder, fwdmeta_meta_t handle, int64_t set) {
    metas_.push_back({handle, builder, set, builder->step, 0});
    ++builder->live_metas;
    return &metas_.back();
  }

  void Store(BuilderState* builder, int64_t set, int64_t generation, std::optional<reference::Result> result) {
    if (result.has_value() && result->counts.error == 0 && builder->clamped) {
      result->counts.warnings |= FWDMETA_WARNING_REJECTED_CLAMPED;
      if (result->present[FWDMETA_FIELD_COUNTS]) {
        result->fields[FWDMETA_FIELD_COUNTS][15] |= FWDMETA_WARNING_REJECTED_CLAMPED;
      }
      builder->clamped = false;
    }
    ++builder->step;
    if (generation == FWDMETA_DEFAULT) builder->next_set = (set + 1) % builder->config.generations;
    builder->sets[set] = {std::move(result), builder->step};
    builder->ring[builder->step] = builder->sets[set];
    builder->ring.erase(builder->step - builder->config.depth);
  }

  void CheckStep(const MetaState& meta) const {
    const BuilderState& builder = *meta.builder;
    const Held& held = builder.sets[meta.set];
    if (!held.result.has_value()) return;
    CheckArrays(meta.handle, builder.config, *held.result, held.step);
    if (held.step != meta.step) return;
    if (builder.Expired(meta.step)) return;
    fwdmeta_counts_t counts = FWDMETA_COUNTS_INITIALIZER;
    FUZZ_EXPECT(held.result->status(), fwdmeta_meta_wait(meta.handle, FWDMETA_WAIT_FINAL, 0, &counts));
    CheckCounts(*held.result, held.step, counts);
    CheckMirror(meta.handle, *held.result);
  }

  void Build() {
    uint64_t handle = 0;
    BuilderState* builder = ChooseBuilder(&handle);
    const bool modelled = builder != nullptr && builder->modelled;
    const reference::Batch batch = ReadBatch(bytes_, modelled ? builder->config : reference::Config());
    BatchArgs args(batch);
    args.c.memory_kind = bytes_.OneIn(2) ? FWDMETA_MEMORY_HOST : FWDMETA_MEMORY_DEVICE;
    const bool host = args.c.memory_kind == FWDMETA_MEMORY_HOST;
    if (builder != nullptr) args.c.generation = ReadGeneration(*builder);
    const int64_t generation = args.c.generation;
    if (!modelled) {
      // Tables that such a builder has another number of, or whose rows another configuration would read further.
      args.c.num_block_tables = 0;
      args.c.block_tables = nullptr;
    }
    const bool spoilt = Spoil(&args.c);
    Sized<fwdmeta_batch_t, 8> c(bytes_, args.c);
    const bool wants_meta = !bytes_.OneIn(4) && metas_.size() < 8;
    fwdmeta_meta_t meta = 0;
    int64_t step = -7;
    const fwdmeta_status_t status =
        FUZZ_CALL(fwdmeta_build(handle, c.get(), wants_meta ? &meta : nullptr, bytes_.OneIn(4) ? nullptr : &step));
    FUZZ_CHECK((status == FWDMETA_OK && wants_meta) == (meta != 0));
    FUZZ_CHECK(step == -7 || (status == FWDMETA_OK && step == builder->step + 1));
    if (builder == nullptr) {
      FUZZ_CHECK(status == FWDMETA_INVALID_HANDLE);
      return;
    }
    if (builder->of_slicer || !c.readable()) {
      FUZZ_CHECK(status == FWDMETA_INVALID_ARGUMENT);
      return;
    }
    if (!modelled || spoilt || !c.whole()) {
      if (status != FWDMETA_OK) return;
      Forget(builder);
      if (meta != 0) TakeUnknown(builder, meta);
      return;
    }
    int64_t set = 0;
    reference::Result want;
    const fwdmeta_status_t expected = [&]() -> fwdmeta_status_t {
      if (batch.num_padded_tokens < -1) return FWDMETA_INVALID_ARGUMENT;
      if (batch.size() > builder->config.max_batch_size || batch.num_padded_tokens > builder->config.max_num_tokens) {
        return FWDMETA_CAPACITY_EXCEEDED;
      }
      const fwdmeta_status_t refused = ChooseSet(*builder, generation, &set);
      if (refused != FWDMETA_OK) return refused;
      want = reference::Build(builder->config, batch);
      if (host && want.status() != FWDMETA_OK) return want.status();
      return wants_meta && builder->live_metas == builder->config.max_metas ? FWDMETA_BUSY : FWDMETA_OK;
    }();
    if (status != expected) Expect(__FILE__, __LINE__, "fwdmeta_build", expected, status);
    if (status != FWDMETA_OK) {
      // The outputs keep the previous step.
      for (const MetaState& one : metas_) {
        if (one.builder == builder) return CheckStep(one);
      }
      return;
    }
    Store(builder, set, generation, std::move(want));
    if (meta != 0) CheckStep(*Take(builder, meta, set));
  }

  // After a build that the model does not follow.
  void Forget(BuilderState* builder) {
    ++builder->step;
    for (Held& set : builder->sets) set.result.reset();
    builder->ring.clear();
    builder->modelled = false;
  }
  void TakeUnknown(BuilderState* builder, fwdmeta_meta_t meta) {
    int64_t set = 0;
    FUZZ_EXPECT(FWDMETA_OK, fwdmeta_meta_get_attr(meta, FWDMETA_ATTR_GENERATION, &set));
    FUZZ_CHECK(set >= 0 && set < builder->config.generations);
    Take(builder, meta, set);
  }

  void BuildSlices() {
    uint64_t handle = 0;
    SlicerState* slicer = Choose(slicers_, &handle);
    const bool modelled = slicer != nullptr && slicer->slices[0]->modelled;
    const reference::Config config = modelled ? slicer->slices[0]->config : reference::Config();
    const reference::Batch batch = ReadBatch(bytes_, config);
    BatchArgs args(batch);
    args.c.memory_kind = bytes_.OneIn(2) ? FWDMETA_MEMORY_HOST : FWDMETA_MEMORY_DEVICE;
    const bool host = args.c.memory_kind == FWDMETA_MEMORY_HOST;
    if (slicer != nullptr) args.c.generation = ReadGeneration(*slicer->slices[0]);
    const int64_t generation = args.c.generation;
    if (!modelled) {
      args.c.num_block_tables = 0;
      args.c.block_tables = nullptr;
    }
    const bool spoilt = Spoil(&args.c);
    const int64_t most = slicer != nullptr ? static_cast<int64_t>(slicer->slices.size()) : 4;
    const int64_t count = bytes_.OneIn(8) ? bytes_.Number() : bytes_.Int(1, most);
    int64_t split = FWDMETA_DEFAULT;
    if (bytes_.OneIn(2)) split = bytes_.OneIn(4) ? bytes_.Number() : bytes_.Int(1, 20);
    const bool wants_metas = !bytes_.OneIn(4) && metas_.size() < 8;
    fwdmeta_meta_t metas[FWDMETA_MAX_SLICES] = {};
    const fwdmeta_status_t status =
        FUZZ_CALL(fwdmeta_build_slices(handle, &args.c, count, split, wants_metas ? metas : nullptr));
    for (int64_t i = 0; i < FWDMETA_MAX_SLICES; ++i) {
      FUZZ_CHECK((metas[i] != 0) == (status == FWDMETA_OK && wants_metas && i < count));
    }
    if (slicer == nullptr) {
      FUZZ_CHECK(status == FWDMETA_INVALID_HANDLE);
      return;
    }
    if (!modelled || spoilt) {
      if (status != FWDMETA_OK) return;
      // The others stand where they were, but the rotation has moved on.
      for (int64_t i = 0; i < most; ++i) {
        if (i < count) Forget(slicer->slices[i]);
        slicer->slices[i]->modelled = false;
        if (metas[i] != 0) TakeUnknown(slicer->slices[i], metas[i]);
      }
      return;
    }
    int64_t set = 0;
    const fwdmeta_status_t expected = [&]() -> fwdmeta_status_t {
      if (count < 1 || count > most || batch.num_padded_tokens < -1) return FWDMETA_INVALID_ARGUMENT;
      if (batch.size() > config.max_batch_size || batch.num_padded_tokens > config.max_num_tokens) {
        return FWDMETA_CAPACITY_EXCEEDED;
      }
      if (host) {
        const fwdmeta_status_t refused = reference::Build(config, batch).status();
        if (refused != FWDMETA_OK) return refused;
      }
      if (split != FWDMETA_DEFAULT && (split < 1 || split > INT32_MAX)) return FWDMETA_INVALID_ARGUMENT;
      if (split == FWDMETA_DEFAULT && !host && batch.num_padded_tokens < 0) return FWDMETA_INVALID_ARGUMENT;
      for (int64_t i = 0; i < count; ++i) {
        // The slicer's own rotation, which is the first slice's: that one is in every build.
        BuilderState& slice = *slicer->slices[i];
        slice.next_set = slicer->slices[0]->next_set;
        const fwdmeta_status_t refused = ChooseSet(slice, generation, &set);
        if (refused != FWDMETA_OK) return refused;
        if (wants_metas && slice.live_metas == config.max_metas) return FWDMETA_BUSY;
      }
      return FWDMETA_OK;
    }();
    if (status != expected) Expect(__FILE__, __LINE__, "fwdmeta_build_slices", expected, status);
    if (status != FWDMETA_OK) return;
    for (int64_t i = 0; i < count; ++i) {
      BuilderState* slice = slicer->slices[i];
      Store(slice, set, FWDMETA_DEFAULT, BuildSlice(config, batch, i, count, split));
      if (metas[i] != 0) CheckStep(*Take(slice, metas[i], set));
    }
  }

  void CheckMeta() {
    if (!metas_.empty()) CheckStep(metas_[bytes_.Int(0, static_cast<int64_t>(metas_.size()) - 1)]);
  }

  // ---- steps

  void DestroyMeta() {
    uint64_t handle = 0;
    const MetaState* meta = Choose(metas_, &handle);
    const fwdmeta_status_t status = FUZZ_CALL(fwdmeta_meta_destroy(handle));
    if (meta == nullptr) {
      FUZZ_CHECK(status == (handle == 0 ? FWDMETA_OK : FWDMETA_INVALID_HANDLE));
    } else if (meta->open_readers > 0) {
      FUZZ_CHECK(status == FWDMETA_BUSY);
    } else {
      FUZZ_CHECK(status == FWDMETA_OK);
      --meta->builder->live_metas;
      dead_.push_back(handle);
      metas_.erase(metas_.begin() + (meta - metas_.data()));
    }
  }

  void WaitForCounts() {
    uint64_t handle = 0;
    BuilderState* builder = ChooseBuilder(&handle);
    const int64_t step = bytes_.OneIn(4) ? bytes_.Number() : bytes_.Int(0, builder != nullptr ? builder->step + 1 : 3);
    const fwdmeta_wait_flags_t flags = bytes_.OneIn(8) ? bytes_.Number32() : FWDMETA_WAIT_FINAL;
    Sized<fwdmeta_counts_t> out(bytes_, FWDMETA_COUNTS_INITIALIZER);
    // A wait for ever is for steps that have been built, which are ready.
    const bool known = builder != nullptr && step >= 1 && step <= builder->step;
    const int64_t timeout = known && bytes_.OneIn(2) ? -1 : bytes_.Int(0, 3);
    if (bytes_.OneIn(8)) {  // nothing has been captured
      FUZZ_CHECK(FUZZ_CALL(fwdmeta_replay_wait(handle, step, flags, bytes_.Int(0, 3), out.get())) != FWDMETA_OK);
      return;
    }
    const fwdmeta_status_t status = FUZZ_CALL(fwdmeta_counts_wait(handle, step, flags, timeout, out.get()));
    const fwdmeta_counts_t counts = out.value();
    if (builder == nullptr) {
      FUZZ_CHECK(status != FWDMETA_OK);
    } else if ((flags & ~FWDMETA_WAIT_FINAL) != 0 || !out.writable()) {
      FUZZ_CHECK(status == FWDMETA_INVALID_ARGUMENT);
    } else if (!known) {
      FUZZ_CHECK(status == FWDMETA_OUT_OF_RANGE);
    } else if (builder->Expired(step)) {
      FUZZ_CHECK(status == FWDMETA_EXPIRED);
    } else {
      const auto held = builder->ring.find(step);
      if (held == builder->ring.end() || !held->second.result.has_value()) return;
      FUZZ_CHECK(status == held->second.result->status());
      if (out.whole() && flags == FWDMETA_WAIT_FINAL) CheckCounts(*held->second.result, step, counts);
    }
  }

  void GetTensor() {
    uint64_t handle = 0;
    const MetaState* meta = Choose(metas_, &handle);
    Sized<fwdmeta_tensor_t, 8> out(bytes_, FWDMETA_TENSOR_INITIALIZER);
    fwdmeta_status_t status;
    if (bytes_.OneIn(2)) {
      const std::string name = ReadName();
      status = FUZZ_CALL(fwdmeta_meta_get(handle, bytes_.OneIn(16) ? nullptr : name.c_str(), out.get()));
    } else {
      const int32_t field = bytes_.OneIn(8) ? bytes_.Number32() : static_cast<int32_t>(bytes_.Int(0, 41));
      const int32_t group = bytes_.OneIn(4) ? bytes_.Number32() : 0;
      status = FUZZ_CALL(fwdmeta_meta_get_field(handle, field, group, out.get()));
      if (fwdmeta_field_name(field) == nullptr) FUZZ_CHECK(status != FWDMETA_OK);
    }
    out.value();
    if (meta == nullptr || !out.writable()) FUZZ_CHECK(status != FWDMETA_OK);
  }

  std::string ReadName() {
    static constexpr const char* kNames[] = {"rotary_embs",
                                             "block_tables",
                                             "caches[0]",
                                             "caches[12]",
                                             "attn_mask",
                                             "slot_mapping",
                                             "slot_mapping[0]",
                                             "slot_mapping[7]",
                                             "slot_mapping[8]",
                                             "slot_mapping[",
                                             "decoder_batch_ids",
                                             "max_len_tensor_cpu",
                                             ""};
    const int64_t which = bytes_.Int(0, std::size(kNames) + 1);
    if (which < static_cast<int64_t>(std::size(kNames))) return kNames[which];
    return bytes_.OneIn(4) ? std::string(bytes_.Int(60, 70), 'x') : bytes_.Text(8);
  }

  void Attributes() {
    uint64_t handle = 0;
    const MetaState* meta = Choose(metas_, &handle);
    const int32_t attr = bytes_.OneIn(8) ? bytes_.Number32() : static_cast<int32_t>(bytes_.Int(0, 12));
    int64_t value = bytes_.Number();
    if (bytes_.OneIn(2)) {
      const fwdmeta_status_t status = FUZZ_CALL(fwdmeta_meta_set_attr(handle, attr, value));
      if (status != FWDMETA_OK) return;
      int64_t got = 0;
      const fwdmeta_status_t read = FUZZ_CALL(fwdmeta_meta_get_attr(handle, attr, &got));
      FUZZ_CHECK(meta != nullptr && (attr == FWDMETA_ATTR_FORWARD_MODE || (read == FWDMETA_OK && got == value)));
      return;
    }
    const fwdmeta_status_t status = FUZZ_CALL(fwdmeta_meta_get_attr(handle, attr, &value));
    if (meta == nullptr) {
      FUZZ_CHECK(status == FWDMETA_INVALID_HANDLE);
    } else if (attr == FWDMETA_ATTR_STEP || attr == FWDMETA_ATTR_GENERATION) {
      FUZZ_CHECK(status == FWDMETA_OK && value == (attr == FWDMETA_ATTR_STEP ? meta->step : meta->set));
    }
  }

  void SetTensor() {
    // Tensors of the engine that a dump may read: whatever their strides, in the middle of this.
    alignas(16) static char memory[1 << 13];
    fwdmeta_tensor_t t = FWDMETA_TENSOR_INITIALIZER;
    t.memory_kind = FWDMETA_MEMORY_HOST;
    t.data = memory + sizeof(memory) / 2;
    t.dtype_code = bytes_.Pick<uint8_t>({0, 1, 2, 4, 6, bytes_.Byte()});
    t.dtype_bits = bytes_.Pick<uint8_t>({8, 16, 32, 64, bytes_.Byte()});
    t.ndim = static_cast<int32_t>(bytes_.Int(0, 3));
    int64_t stride = 1;
    for (int i = t.ndim - 1; i >= 0; --i) {
      t.shape[i] = bytes_.Int(0, 5);
      t.strides[i] = bytes_.OneIn(4) ? bytes_.Int(-5, 5) : stride;
      stride *= t.shape[i];
    }
    memory[sizeof(memory) / 2 + bytes_.Int(0, 15)] = static_cast<char>(bytes_.Byte());
    if (bytes_.OneIn(8)) {
      // Any shape, where there is nothing to read: a dimension is 0, or the data null.
      t.ndim = bytes_.OneIn(8) ? bytes_.Number32() : static_cast<int32_t>(bytes_.Int(1, FWDMETA_MAX_DIMS));
      for (int i = 0; i < FWDMETA_MAX_DIMS; ++i) t.shape[i] = bytes_.Number();
      stride = 1;  // row-major as far as that goes
      for (int i = std::clamp(t.ndim, 0, FWDMETA_MAX_DIMS) - 1; i >= 0; --i) {
        t.strides[i] = bytes_.OneIn(4) ? bytes_.Number() : stride;
        if (__builtin_mul_overflow(stride, t.shape[i], &stride)) stride = 0;
      }
      if (bytes_.OneIn(2)) {
        t.data = nullptr;
      } else {
        t.shape[0] = 0;
        if (t.ndim < 1) t.ndim = 1;
      }
      t.memory_kind = bytes_.OneIn(4) ? bytes_.Number32() : FWDMETA_MEMORY_HOST;
      t.dtype_lanes = static_cast<uint16_t>(bytes_.Int(0, 4));
    }
    Sized<fwdmeta_tensor_t, 8> tensor(bytes_, t);
    // A struct that ends early would leave the defaults of the rest, with no data to read.
    const std::string name = ReadName();
    fwdmeta_tensor_t* given = bytes_.OneIn(6) ? nullptr : tensor.get();
    uint64_t handle = 0;
    if (bytes_.OneIn(2)) {
      const MetaState* meta = Choose(metas_, &handle);
      const fwdmeta_status_t status = FUZZ_CALL(fwdmeta_meta_set_tensor(handle, name.c_str(), given));
      if (status != FWDMETA_OK) return;
      FUZZ_CHECK(meta != nullptr && (given == nullptr || tensor.readable()));
      fwdmeta_tensor_t got = FWDMETA_TENSOR_INITIALIZER;
      if (given != nullptr) {
        FUZZ_EXPECT(FWDMETA_OK, fwdmeta_meta_get(handle, name.c_str(), &got));
        FUZZ_CHECK(!tensor.whole() || std::memcmp(&got, &t, sizeof(t)) == 0);
      }
    } else {
      const BuilderState* builder = ChooseBuilder(&handle);
      const fwdmeta_status_t status = FUZZ_CALL(fwdmeta_builder_set_tensor(handle, name.c_str(), given));
      if (status == FWDMETA_OK) FUZZ_CHECK(builder != nullptr);
    }
  }

  void AttnBackend() {
    uint64_t handle = 0;
    const MetaState* meta = Choose(metas_, &handle);
    const std::string name = ReadName();
    const fwdmeta_status_t status = FUZZ_CALL(fwdmeta_meta_set_attn_backend(handle, name.c_str(), this));
    const char* got = nullptr;
    void* backend = nullptr;
    const fwdmeta_status_t read = FUZZ_CALL(fwdmeta_meta_get_attn_backend(handle, &got, &backend));
    if (meta == nullptr) FUZZ_CHECK(status != FWDMETA_OK && read == FWDMETA_INVALID_HANDLE);
    if (status == FWDMETA_OK) FUZZ_CHECK(read == FWDMETA_OK && std::strcmp(name.c_str(), got) == 0 && backend == this);
  }

  void Readers() {
    uint64_t handle = 0;
    MetaState* meta = Choose(metas_, &handle);
    const bool end = bytes_.OneIn(2);
    const fwdmeta_status_t status =
        FUZZ_CALL(end ? fwdmeta_meta_reader_end(handle, nullptr) : fwdmeta_meta_reader_begin(handle, nullptr));
    if (meta == nullptr) {
      FUZZ_CHECK(status == FWDMETA_INVALID_HANDLE);
    } else if (end && meta->open_readers == 0) {
      FUZZ_CHECK(status == FWDMETA_INVALID_ARGUMENT);
    } else {  // on this backend they are only counted, and keep the meta alone
      FUZZ_CHECK(status == FWDMETA_OK);
      meta->open_readers += end ? -1 : 1;
    }
  }

  void Dump() {
    uint64_t handle = 0;
    const MetaState* meta = Choose(metas_, &handle);
    int pieces = bytes_.OneIn(4) ? static_cast<int>(bytes_.Int(0, 8)) : 1 << 20;
    const int32_t format = bytes_.OneIn(16) ? bytes_.Number32() : static_cast<int32_t>(bytes_.Int(0, 1));
    const fwdmeta_status_t status = FUZZ_CALL(fwdmeta_meta_dump(handle, format, &Write, &pieces));
    if (status == FWDMETA_OK) FUZZ_CHECK(meta != nullptr && pieces >= 0);
    if (bytes_.OneIn(8)) FUZZ_EXPECT(FWDMETA_OK, fwdmeta_metrics_write(&Write, &(pieces = 1 << 20)));
  }

  void Dlpack() {
    uint64_t handle = 0;
    const MetaState* meta = Choose(metas_, &handle);
    fwdmeta_dlpack_args_t a = FWDMETA_DLPACK_ARGS_INITIALIZER;
    a.field = bytes_.OneIn(8) ? bytes_.Number32() : static_cast<int32_t>(bytes_.Int(0, 41));
    a.group = bytes_.OneIn(4) ? bytes_.Number32() : 0;
    a.shape = bytes_.OneIn(8) ? bytes_.Number32() : static_cast<int32_t>(bytes_.Int(0, 1));
    a.device_type = bytes_.OneIn(4) ? bytes_.Number32() : 0;
    Sized<fwdmeta_dlpack_args_t> args(bytes_, a);
    const int64_t stream = bytes_.OneIn(4) ? bytes_.Number() : 1;
    DLManagedTensor* tensor = nullptr;
    DLManagedTensorVersioned* versioned = nullptr;
    int32_t type = 0, id = 0;
    fwdmeta_status_t status;
    switch (bytes_.Byte() % 5) {
      case 0:
        status = FUZZ_CALL(fwdmeta_meta_to_dlpack(handle, args.get(), stream, &tensor));
        break;
      case 1:
        status = FUZZ_CALL(fwdmeta_meta_to_dlpack_versioned(handle, args.get(), stream, &versioned));
        break;
      case 2:
        status = FUZZ_CALL(fwdmeta_meta_to_dlpack_no_sync(handle, args.get(), &tensor));
        break;
      case 3:
        status = FUZZ_CALL(fwdmeta_meta_to_dlpack_versioned_no_sync(handle, args.get(), &versioned));
        break;
      default:
        status = FUZZ_CALL(fwdmeta_meta_dlpack_device(handle, args.get(), &type, &id));
        if (status == FWDMETA_OK) FUZZ_CHECK(meta != nullptr && type == FWDMETA_DLPACK_CPU && id == 0);
        return;
    }
    FUZZ_CHECK((status == FWDMETA_OK) == (tensor != nullptr || versioned != nullptr));
    if (status != FWDMETA_OK) return;
    FUZZ_CHECK(meta != nullptr && args.readable());
    if (tensor != nullptr) tensors_.push_back(tensor);
    if (versioned != nullptr) versioned_.push_back(versioned);
  }

  void Advance() {
    uint64_t handle = 0;
    BuilderState* builder = ChooseBuilder(&handle);
    const reference::Config config = builder != nullptr && builder->modelled ? builder->config : reference::Config();
    const reference::Batch batch = ReadBatch(bytes_, config);
    BatchArgs lengths(batch);
    reference::Advance advance;
    const auto maybe = [&](auto* values, auto read) {
      if (!bytes_.OneIn(2)) return;
      for (int64_t b = 0; b < batch.size(); ++b) values->push_back(read());
    };
    maybe(&advance.num_rejected, [&] { return bytes_.OneIn(8) ? bytes_.Number32() : bytes_.Byte() % 4; });
    maybe(&advance.stop, [&] { return static_cast<uint8_t>(bytes_.OneIn(3)); });
    maybe(&advance.prompt_lens, [&] { return bytes_.OneIn(8) ? bytes_.Number32() : bytes_.Byte(); });
    advance.num_draft_tokens = bytes_.OneIn(8) ? bytes_.Number() : bytes_.Int(0, 4);
    fwdmeta_advance_args_t a = FWDMETA_ADVANCE_ARGS_INITIALIZER;
    a.batch_size = batch.size();
    a.seq_lens_encoder = lengths.encoder;
    a.seq_lens_decoder = lengths.decoder;
    a.seq_lens_this_time = lengths.this_time;
    a.num_rejected = advance.num_rejected.empty() ? nullptr : advance.num_rejected.data();
    a.stop = advance.stop.empty() ? nullptr : advance.stop.data();
    a.prompt_lens = advance.prompt_lens.empty() ? nullptr : advance.prompt_lens.data();
    a.num_draft_tokens = advance.num_draft_tokens;
    Sized<fwdmeta_advance_args_t, 8> args(bytes_, a);
    const fwdmeta_status_t status = FUZZ_CALL(fwdmeta_advance(handle, args.get()));
    if (status != FWDMETA_OK) {
      for (int64_t b = 0; b < batch.size(); ++b) {
        FUZZ_CHECK(lengths.encoder[b] == batch.encoder[b] && lengths.decoder[b] == batch.decoder[b] &&
                   lengths.this_time[b] == batch.this_time[b]);
      }
    }
    if (builder == nullptr) {
      FUZZ_CHECK(status == FWDMETA_INVALID_HANDLE);
      return;
    }
    if (status == FWDMETA_OK) ++builder->advances;
    if (!args.whole() || !builder->modelled) {
      if (status == FWDMETA_OK) builder->modelled = false;
      return;
    }
    const fwdmeta_status_t expected = !args.readable() || advance.num_draft_tokens < 0 ? FWDMETA_INVALID_ARGUMENT
                                      : batch.size() > config.max_batch_size           ? FWDMETA_CAPACITY_EXCEEDED
                                                                                       : FWDMETA_OK;
    FUZZ_CHECK(status == expected);
    if (status != FWDMETA_OK) return;
    // A slot that a build would refuse stays as it is.
    reference::Batch want = batch;
    std::vector<bool> refused;
    for (int64_t b = 0; b < batch.size(); ++b) {
      const int64_t e = batch.encoder[b], d = batch.decoder[b], n = batch.this_time[b];
      refused.push_back(n > 0 && (e < 0 || d < 0 || (e > 0 && e != n) || d + n > config.max_model_len));
      if (refused.back()) want.this_time[b] = 0;
    }
    advance.num_draft_tokens = std::min<int64_t>(advance.num_draft_tokens, INT32_MAX);
    const reference::Advanced advanced = reference::AdvanceLengths(config, advance, &want);
    for (int64_t b = 0; b < batch.size(); ++b) {
      if (refused[b]) want.this_time[b] = batch.this_time[b];
      FUZZ_CHECK(lengths.encoder[b] == want.encoder[b] && lengths.decoder[b] == want.decoder[b] &&
                 lengths.this_time[b] == want.this_time[b]);
    }
    builder->clamped |= advanced.clamped;
    fwdmeta_advance_counts_t counts = FWDMETA_ADVANCE_COUNTS_INITIALIZER;
    FUZZ_EXPECT(FWDMETA_OK, fwdmeta_advance_wait(handle, builder->advances, 0, &counts));
    FUZZ_CHECK(counts.advance == builder->advances && counts.num_stopped == advanced.num_stopped &&
               counts.num_length_limited == advanced.num_length_limited);
  }

  void Reset() {
    uint64_t handle = 0;
    BuilderState* builder = ChooseBuilder(&handle);
    const fwdmeta_status_t status = FUZZ_CALL(fwdmeta_builder_reset(handle, nullptr));
    if (builder == nullptr) {
      FUZZ_CHECK(status == FWDMETA_INVALID_HANDLE);
      return;
    }
    FUZZ_CHECK(status == FWDMETA_OK);
    for (Held& set : builder->sets) {
      set.step = 0;
      set.result.reset();
      if (builder->modelled) set.result = Tails(builder->config);
    }
  }

  void Info() {
    uint64_t handle = 0;
    const BuilderState* builder = ChooseBuilder(&handle);
    Sized<fwdmeta_builder_info_t> out(bytes_, FWDMETA_BUILDER_INFO_INITIALIZER);
    const fwdmeta_status_t status = FUZZ_CALL(fwdmeta_builder_get_info(handle, out.get()));
    const fwdmeta_builder_info_t info = out.value();
    FUZZ_CHECK((status == FWDMETA_OK) == (builder != nullptr && out.writable()));
    if (status != FWDMETA_OK || !out.whole()) return;
    FUZZ_CHECK(info.backend == FWDMETA_BACKEND_HOST && info.last_step == builder->step &&
               info.last_advance == builder->advances && info.generations == builder->config.generations &&
               info.depth == builder->config.depth);
  }

  // Lets go of everything, in an order of the input's.
  void End() {
    const bool builders_first = bytes_.OneIn(2);
    const auto end_builders = [&] {
      if (!slicers_.empty()) {
        FUZZ_EXPECT(FWDMETA_OK, fwdmeta_slicer_destroy(slicers_[0].handle));
        EndSlicer();
      }
      for (BuilderState& builder : builders_) {
        if (builder.alive) FUZZ_EXPECT(FWDMETA_OK, fwdmeta_builder_destroy(builder.handle));
      }
    };
    if (builders_first) end_builders();
    for (MetaState& meta : metas_) {
      for (; meta.open_readers > 0; --meta.open_readers) {
        FUZZ_EXPECT(FWDMETA_OK, fwdmeta_meta_reader_end(meta.handle, nullptr));
      }
      FUZZ_EXPECT(FWDMETA_OK, fwdmeta_meta_destroy(meta.handle));
    }
    if (!builders_first) end_builders();
    for (DLManagedTensor* tensor : tensors_) tensor->deleter(tensor);
    for (DLManagedTensorVersioned* tensor : versioned_) tensor->deleter(tensor);
  }

  ByteReader bytes_;
  BoundedMemory memory_;
  std::deque<BuilderState> builders_;  // ended ones too
  int live_ = 0;
  std::vector<SlicerState> slicers_;  // one at most
  std::vector<MetaState> metas_;
  std::vector<DLManagedTensor*> tensors_;
  std::vector<DLManagedTensorVersioned*> versioned_;
  std::vector<uint64_t> dead_;
};

}  // namespace
}  // namespace fwdmeta_fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  fwdmeta_fuzz::World(data, size).Run();
  return 0;
}
