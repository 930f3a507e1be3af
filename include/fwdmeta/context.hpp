// The C++17 layer over fwdmeta_context.h, in the manner of fwdmeta.hpp: owners, views and scope guards, and statuses as
// exceptions. It adds no behaviour and no rule; those are written in fwdmeta_context.h.
//
// An array with a count of its own is a Span. Arrays that share a count, and those whose size follows from a rule, are
// pointers, as large as fwdmeta_context.h says. Calls that return no status, such as fwdmeta_graph_mode_name, are used
// as they are.
#ifndef FWDMETA_CONTEXT_HPP
#define FWDMETA_CONTEXT_HPP

#include <cstddef>
#include <cstdint>
#include <fwdmeta/fwdmeta.hpp>
#include <optional>
#include <type_traits>
#include <utility>
#include <vector>

namespace fwdmeta {

// The C structs, complete with their defaults.
struct GraphModeInfo : fwdmeta_graph_mode_info_t {
  GraphModeInfo() : fwdmeta_graph_mode_info_t FWDMETA_GRAPH_MODE_INFO_INITIALIZER {}
};
struct DispatcherConfig : fwdmeta_dispatcher_config_t {
  DispatcherConfig() : fwdmeta_dispatcher_config_t FWDMETA_DISPATCHER_CONFIG_INITIALIZER {}
};
struct DispatcherInfo : fwdmeta_dispatcher_info_t {
  DispatcherInfo() : fwdmeta_dispatcher_info_t FWDMETA_DISPATCHER_INFO_INITIALIZER {}
};
struct DispatchArgs : fwdmeta_dispatch_args_t {
  DispatchArgs() : fwdmeta_dispatch_args_t FWDMETA_DISPATCH_ARGS_INITIALIZER {}
};
struct DispatchResult : fwdmeta_dispatch_result_t {
  DispatchResult() : fwdmeta_dispatch_result_t FWDMETA_DISPATCH_RESULT_INITIALIZER {}
};
struct DummyBatch : fwdmeta_dummy_batch_t {
  DummyBatch() : fwdmeta_dummy_batch_t FWDMETA_DUMMY_BATCH_INITIALIZER {}
};
struct DpMetadataArgs : fwdmeta_dp_metadata_args_t {
  DpMetadataArgs() : fwdmeta_dp_metadata_args_t FWDMETA_DP_METADATA_ARGS_INITIALIZER {}
};
struct DpMetadata : fwdmeta_dp_metadata_t {
  DpMetadata() : fwdmeta_dp_metadata_t FWDMETA_DP_METADATA_INITIALIZER {}
  Span<const int64_t> table() const noexcept { return {num_tokens, static_cast<std::size_t>(dp_size)}; }
};
struct Agreement : fwdmeta_agreement_t {
  Agreement() : fwdmeta_agreement_t FWDMETA_AGREEMENT_INITIALIZER {}
};
struct TransportConfig : fwdmeta_transport_config_t {
  TransportConfig() : fwdmeta_transport_config_t FWDMETA_TRANSPORT_CONFIG_INITIALIZER {}
};
struct SliceArgs : fwdmeta_slice_args_t {
  SliceArgs() : fwdmeta_slice_args_t FWDMETA_SLICE_ARGS_INITIALIZER {}
};
struct SliceConflict : fwdmeta_slice_conflict_t {
  SliceConflict() : fwdmeta_slice_conflict_t FWDMETA_SLICE_CONFLICT_INITIALIZER {}
};
struct ContextConfig : fwdmeta_context_config_t {
  ContextConfig() : fwdmeta_context_config_t FWDMETA_CONTEXT_CONFIG_INITIALIZER {}
};
struct BatchSplit : fwdmeta_batch_split_t {
  BatchSplit() : fwdmeta_batch_split_t FWDMETA_BATCH_SPLIT_INITIALIZER {}
};
struct LengthSplitArgs : fwdmeta_length_split_args_t {
  LengthSplitArgs() : fwdmeta_length_split_args_t FWDMETA_LENGTH_SPLIT_ARGS_INITIALIZER {}
};
struct LocalAttentionArgs : fwdmeta_local_attention_args_t {
  LocalAttentionArgs() : fwdmeta_local_attention_args_t FWDMETA_LOCAL_ATTENTION_ARGS_INITIALIZER {}
};

namespace detail {

// False for what is not there; other failures throw.
inline bool found(fwdmeta_status_t status) {
  if (status == FWDMETA_NOT_SET || status == FWDMETA_NOT_FOUND) return false;
  check(status);
  return true;
}

}  // namespace detail

// ---- modes and keys

[[nodiscard]] inline GraphModeInfo graph_mode_info(fwdmeta_graph_mode_t mode) {
  GraphModeInfo out;
  check(fwdmeta_graph_mode_get_info(mode, &out));
  return out;
}

// The mode that can be had, and why it is another than the one asked for.
struct ResolvedMode {
  fwdmeta_graph_mode_t mode;        // resolved
  fwdmeta_resolve_reason_t reason;  // AS_ASKED where it is the same
};
[[nodiscard]] inline ResolvedMode resolve_graph_mode(fwdmeta_graph_mode_t mode, fwdmeta_graph_support_t support,
                                                     int64_t query_len, bool piecewise_available) {
  ResolvedMode out{};
  check(fwdmeta_graph_mode_resolve(mode, support, query_len, piecewise_available, &out.mode, &out.reason));
  return out;
}

// For containers of the standard library with descriptors as keys.
struct BatchDescriptorHash {
  std::size_t operator()(const fwdmeta_batch_descriptor_t& descriptor) const noexcept {
    return static_cast<std::size_t>(fwdmeta_batch_descriptor_hash(&descriptor));
  }
};
// The equality that goes with it.
struct BatchDescriptorEqual {
  bool operator()(const fwdmeta_batch_descriptor_t& a, const fwdmeta_batch_descriptor_t& b) const noexcept {
    return fwdmeta_batch_descriptor_equal(&a, &b) != 0;
  }
};

// ---- dispatcher

// The graphs of a configuration.
class Dispatcher : public detail::Handle<&fwdmeta_dispatcher_destroy> {
 public:
  using Handle::Handle;
  // Creates one.
  explicit Dispatcher(const fwdmeta_dispatcher_config_t& config) : Handle(create(config)) {}

  [[nodiscard]] DispatchResult dispatch(const fwdmeta_dispatch_args_t& args) const {
    DispatchResult out;
    check(fwdmeta_dispatch(handle(), &args, &out));
    return out;
  }
  void mark_captured(const fwdmeta_graph_key_t& key) { check(fwdmeta_dispatcher_mark_captured(handle(), &key)); }
  void mark_all_captured() { check(fwdmeta_dispatcher_mark_captured(handle(), nullptr)); }

  [[nodiscard]] DispatcherInfo info() const {
    DispatcherInfo out;
    check(fwdmeta_dispatcher_get_info(handle(), &out));
    return out;
  }
  [[nodiscard]] std::vector<int64_t> sizes() const { return list<int64_t>(&fwdmeta_dispatcher_get_sizes); }
  // In the order to capture them.
  [[nodiscard]] std::vector<fwdmeta_graph_key_t> keys() const {
    return list<fwdmeta_graph_key_t>(&fwdmeta_dispatcher_get_keys);
  }

 private:
  static fwdmeta_dispatcher_t create(const fwdmeta_dispatcher_config_t& config) {
    fwdmeta_dispatcher_t dispatcher = 0;
    check(fwdmeta_dispatcher_create(&config, &dispatcher));
    return dispatcher;
  }
  template <class T>
  std::vector<T> list(fwdmeta_status_t (*get)(fwdmeta_dispatcher_t, T*, int64_t, int64_t*)) const {
    int64_t count = 0;
    check(get(handle(), nullptr, 0, &count));
    std::vector<T> out(static_cast<std::size_t>(count));
    check(get(handle(), out.data(), count, &count));
    return out;
  }
};

inline void dispatch_args_from_lengths(const int32_t* seq_lens_encoder, const int32_t* seq_lens_this_time,
                                       int64_t batch_size, int64_t query_len, fwdmeta_dispatch_args_t& out) {
  check(fwdmeta_dispatch_args_from_lengths(seq_lens_encoder, seq_lens_this_time, batch_size, query_len, &out));
}

inline void make_dummy(const fwdmeta_dummy_batch_t& dummy) { check(fwdmeta_make_dummy(&dummy)); }

// ---- ranks

[[nodiscard]] inline DpMetadata make_dp_metadata(const fwdmeta_dp_metadata_args_t& args) {
  DpMetadata out;
  check(fwdmeta_dp_metadata_make(&args, &out));
  return out;
}
inline void sp_sizes(Span<const int64_t> num_tokens, int64_t sp_size, int64_t* out) {
  check(fwdmeta_sp_sizes(num_tokens.data(), static_cast<int64_t>(num_tokens.size()), sp_size, out));
}
inline void cu_sizes(Span<const int64_t> sizes, int64_t* out) {
  check(fwdmeta_cu_sizes(sizes.data(), static_cast<int64_t>(sizes.size()), out));
}
inline void chunk_sizes(Span<const int64_t> sizes, int64_t max_chunk, int64_t index, int64_t* out) {
  check(fwdmeta_chunk_sizes(sizes.data(), static_cast<int64_t>(sizes.size()), max_chunk, index, out));
}
[[nodiscard]] inline int64_t num_chunks(Span<const int64_t> sizes, int64_t max_chunk) {
  int64_t out = 0;
  check(fwdmeta_num_chunks(sizes.data(), static_cast<int64_t>(sizes.size()), max_chunk, &out));
  return out;
}
inline void shard_sizes(int64_t num_tokens, int64_t num_ranks, bool padded, int64_t* sizes, int64_t* starts = nullptr,
                        int64_t* live = nullptr, uint8_t* mask = nullptr) {
  check(fwdmeta_shard_sizes(num_tokens, num_ranks, padded, sizes, starts, live, mask));
}

// RANK_MISMATCH, with the rank that the message names.
class RankMismatch : public Error {
 public:
  RankMismatch(const char* message, int32_t rank) : Error(FWDMETA_RANK_MISMATCH, message), rank_(rank) {}
  int32_t rank() const noexcept { return rank_; }

 private:
  int32_t rank_;
};

namespace detail {

inline Agreement agreed(fwdmeta_status_t status, const Agreement& agreement) {
  if (status == FWDMETA_RANK_MISMATCH) throw RankMismatch(fwdmeta_last_error(), agreement.mismatch_rank);
  check(status);
  return agreement;
}

}  // namespace detail

// num_tokens: [rows.size()] or null.
[[nodiscard]] inline Agreement agree(const Dispatcher& dispatcher, Span<const fwdmeta_rank_row_t> rows,
                                     int64_t* num_tokens = nullptr, int64_t num_slices = 1) {
  Agreement out;
  const fwdmeta_status_t status =
      fwdmeta_agree(dispatcher.handle(), rows.data(), static_cast<int64_t>(rows.size()), num_slices, num_tokens, &out);
  return detail::agreed(status, out);
}

// A gather of it must not run when it ends.
class Transport : public detail::Handle<&fwdmeta_transport_destroy> {
 public:
  using Handle::Handle;
  explicit Transport(const fwdmeta_transport_config_t& config) : Handle(create(config)) {}

  // Over a function object: fwdmeta_status_t(const void* send, void* recv, size_t bytes, int64_t deadline_ns) noexcept,
  // as fwdmeta_gather_callback_t. It is borrowed until the transport's end.
  template <class Gather>
  [[nodiscard]] static Transport over(Gather& gather, int64_t num_ranks, int64_t rank) {
    static_assert(std::is_nothrow_invocable_r_v<fwdmeta_status_t, Gather&, const void*, void*, size_t, int64_t>,
                  "a gather takes (send, recv, bytes, deadline_ns), returns a status and is noexcept");
    TransportConfig config;
    config.num_ranks = num_ranks;
    config.rank = rank;
    config.gather = &call<Gather>;
    config.user = const_cast<void*>(static_cast<const void*>(&gather));
    return Transport(config);
  }
  // Over the engine's ncclComm_t, by the plug-in.
  [[nodiscard]] static Transport over_nccl(void* nccl_comm, fwdmeta_stream_t stream, int64_t num_ranks, int64_t rank,
                                           const char* plugin_path = nullptr) {
    TransportConfig config;
    config.num_ranks = num_ranks;
    config.rank = rank;
    config.nccl_comm = nccl_comm;
    config.stream = stream;
    config.plugin_path = plugin_path;
    return Transport(config);
  }

  // num_tokens: [num_ranks] or null. Waits for the other ranks, for ever with the default timeout.
  [[nodiscard]] Agreement agree(const Dispatcher& dispatcher, const fwdmeta_rank_row_t& row,
                                int64_t* num_tokens = nullptr, int64_t num_slices = 1, int64_t timeout_us = -1) {
    Agreement out;
    const fwdmeta_status_t status =
        fwdmeta_agree_through(handle(), dispatcher.handle(), &row, num_slices, timeout_us, num_tokens, &out);
    return detail::agreed(status, out);
  }

 private:
  static fwdmeta_transport_t create(const fwdmeta_transport_config_t& config) {
    fwdmeta_transport_t transport = 0;
    check(fwdmeta_transport_create(&config, &transport));
    return transport;
  }
  template <class Gather>
  static fwdmeta_status_t call(const void* send, void* recv, size_t bytes, int64_t deadline_ns, void* user) {
    return (*static_cast<Gather*>(user))(send, recv, bytes, deadline_ns);
  }
};

// ---- slices

// The microbatches of a step, by value: there are at most 16.
class Slices {
 public:
  std::size_t size() const noexcept { return static_cast<std::size_t>(count_); }
  const fwdmeta_slice_t* data() const noexcept { return slices_; }
  const fwdmeta_slice_t* begin() const noexcept { return slices_; }
  const fwdmeta_slice_t* end() const noexcept { return slices_ + count_; }
  const fwdmeta_slice_t& operator[](std::size_t i) const noexcept { return slices_[i]; }

 private:
  friend Slices plan_slices(const fwdmeta_slice_args_t& args);
  template <class Derived>
  friend class ContextCalls;

  fwdmeta_slice_t slices_[FWDMETA_MAX_SLICES] = {};
  int64_t count_ = 0;
};

[[nodiscard]] inline Slices plan_slices(const fwdmeta_slice_args_t& args) {
  Slices out;
  check(fwdmeta_plan_slices(&args, out.slices_));
  out.count_ = args.num_slices;
  return out;
}
inline void slice_lengths(const fwdmeta_slice_args_t& args, const fwdmeta_slice_t& slice, int32_t* query_start_loc,
                          int32_t* seq_lens, int32_t* computed) {
  check(fwdmeta_slice_lengths(&args, &slice, query_start_loc, seq_lens, computed));
}
[[nodiscard]] inline SliceConflict slices_conflict(const fwdmeta_slice_args_t& args, const Slices& slices,
                                                   const fwdmeta_rows_t& block_table, int64_t block_size) {
  SliceConflict out;
  check(fwdmeta_slices_conflict(&args, slices.data(), &block_table, block_size, &out));
  return out;
}

// The views of a step's slices, by value: there are at most 16.
class SliceMetas {
 public:
  std::size_t size() const noexcept { return static_cast<std::size_t>(count_); }
  Meta* begin() noexcept { return metas_; }
  Meta* end() noexcept { return metas_ + count_; }
  const Meta* begin() const noexcept { return metas_; }
  const Meta* end() const noexcept { return metas_ + count_; }
  Meta& operator[](std::size_t i) noexcept { return metas_[i]; }
  const Meta& operator[](std::size_t i) const noexcept { return metas_[i]; }

 private:
  friend class Slicer;

  Meta metas_[FWDMETA_MAX_SLICES];
  int64_t count_ = 0;
};

// The builders of a step's slices.
class Slicer : public detail::Handle<&fwdmeta_slicer_destroy> {
 public:
  using Handle::Handle;
  // Creates one.
  explicit Slicer(const fwdmeta_config_t& config, int64_t max_slices) : Handle(create(config, max_slices)) {}

  // Enqueues the builds of the slices and returns the views of their step.
  [[nodiscard]] SliceMetas build(const fwdmeta_batch_t& batch, int64_t num_slices, int64_t split = FWDMETA_DEFAULT) {
    fwdmeta_meta_t metas[FWDMETA_MAX_SLICES];
    check(fwdmeta_build_slices(handle(), &batch, num_slices, split, metas));
    SliceMetas out;
    out.count_ = num_slices;
    for (int64_t i = 0; i < num_slices; ++i) out.metas_[i].reset(metas[i]);
    return out;
  }
  // The same without views.
  void enqueue(const fwdmeta_batch_t& batch, int64_t num_slices, int64_t split = FWDMETA_DEFAULT) {
    check(fwdmeta_build_slices(handle(), &batch, num_slices, split, nullptr));
  }
  // The slicer's own, for the calls in C.
  [[nodiscard]] fwdmeta_builder_t builder(int64_t slice) const {
    fwdmeta_builder_t builder = 0;
    check(fwdmeta_slicer_get_builder(handle(), slice, &builder));
    return builder;
  }

 private:
  static fwdmeta_slicer_t create(const fwdmeta_config_t& config, int64_t max_slices) {
    fwdmeta_slicer_t slicer = 0;
    check(fwdmeta_slicer_create(&config, max_slices, &slicer));
    return slicer;
  }
};

// ---- layers

// A registered layer.
struct Layer {
  const char* name;  // lives as long as the registry and the contexts made from it
  void* layer;       // the engine's pointer
};

// The layers of a model.
class Layers : public detail::Handle<&fwdmeta_layers_destroy> {
 public:
  using Handle::Handle;
  [[nodiscard]] static Layers make() {
    fwdmeta_layers_t layers = 0;
    check(fwdmeta_layers_create(&layers));
    return Layers(layers);
  }

  // Returns its number.
  int64_t add(const char* name, void* layer, bool is_moe = false) {
    int64_t index = 0;
    check(fwdmeta_layers_add(handle(), name, layer, is_moe, &index));
    return index;
  }
  [[nodiscard]] int64_t find(const char* name) const {
    int64_t index = 0;
    check(fwdmeta_layers_find(handle(), name, &index));
    return index;
  }
  // The number, or nothing for an unknown name.
  [[nodiscard]] std::optional<int64_t> try_find(const char* name) const {
    int64_t index = 0;
    if (!detail::found(fwdmeta_layers_find(handle(), name, &index))) return std::nullopt;
    return index;
  }
  [[nodiscard]] Layer get(int64_t index) const {
    Layer out{};
    check(fwdmeta_layers_get(handle(), index, &out.name, &out.layer));
    return out;
  }
  [[nodiscard]] int64_t size() const {
    int64_t count = 0;
    check(fwdmeta_layers_count(handle(), &count, nullptr));
    return count;
  }
  [[nodiscard]] int64_t num_moe() const {
    int64_t num_moe = 0;
    check(fwdmeta_layers_count(handle(), nullptr, &num_moe));
    return num_moe;
  }
};

// ---- forward context

// The calls on a context, for its owner and for views of it. What is read as x() throws NOT_SET or NOT_FOUND where it
// is not there; try_x() then has nothing, and allocates nothing for saying so.
template <class Derived>
class ContextCalls {
 public:
  void set_attn_metadata(const fwdmeta_attn_metadata_t& metadata, int64_t layer = FWDMETA_ALL_LAYERS,
                         int64_t slice = 0) {
    check(fwdmeta_context_set_attn_metadata(self(), layer, slice, &metadata));
  }
  [[nodiscard]] fwdmeta_attn_metadata_t attn_metadata(int64_t layer = FWDMETA_ALL_LAYERS, int64_t slice = 0) const {
    return get<fwdmeta_attn_metadata_t>(&fwdmeta_context_get_attn_metadata, layer, slice);
  }
  [[nodiscard]] std::optional<fwdmeta_attn_metadata_t> try_attn_metadata(int64_t layer = FWDMETA_ALL_LAYERS,
                                                                         int64_t slice = 0) const {
    return try_get<fwdmeta_attn_metadata_t>(&fwdmeta_context_get_attn_metadata, layer, slice);
  }

  void set_slot_mapping(Span<const int64_t> slot_mapping, int64_t layer = FWDMETA_ALL_LAYERS, int64_t slice = 0) {
    check(fwdmeta_context_set_slot_mapping(self(), layer, slice, slot_mapping.data(),
                                           static_cast<int64_t>(slot_mapping.size())));
  }
  [[nodiscard]] Span<const int64_t> slot_mapping(int64_t layer = FWDMETA_ALL_LAYERS, int64_t slice = 0) const {
    return get_array<int64_t>(&fwdmeta_context_get_slot_mapping, layer, slice);
  }
  [[nodiscard]] std::optional<Span<const int64_t>> try_slot_mapping(int64_t layer = FWDMETA_ALL_LAYERS,
                                                                    int64_t slice = 0) const {
    return try_get_array<int64_t>(&fwdmeta_context_get_slot_mapping, layer, slice);
  }

  void set_dp_metadata(const fwdmeta_dp_metadata_t& dp_metadata) {
    check(fwdmeta_context_set_dp_metadata(self(), &dp_metadata));
  }
  [[nodiscard]] DpMetadata dp_metadata() const { return get<DpMetadata>(&fwdmeta_context_get_dp_metadata); }
  [[nodiscard]] std::optional<DpMetadata> try_dp_metadata() const {
    return try_get<DpMetadata>(&fwdmeta_context_get_dp_metadata);
  }

  void set_runtime_mode(fwdmeta_graph_mode_t mode) { check(fwdmeta_context_set_runtime_mode(self(), mode)); }
  [[nodiscard]] fwdmeta_graph_mode_t runtime_mode() const {
    return get<fwdmeta_graph_mode_t>(&fwdmeta_context_get_runtime_mode);
  }
  [[nodiscard]] std::optional<fwdmeta_graph_mode_t> try_runtime_mode() const {
    return try_get<fwdmeta_graph_mode_t>(&fwdmeta_context_get_runtime_mode);
  }

  void set_descriptor(const fwdmeta_batch_descriptor_t& descriptor) {
    check(fwdmeta_context_set_descriptor(self(), &descriptor));
  }
  [[nodiscard]] fwdmeta_batch_descriptor_t descriptor() const {
    return get<fwdmeta_batch_descriptor_t>(&fwdmeta_context_get_descriptor);
  }
  [[nodiscard]] std::optional<fwdmeta_batch_descriptor_t> try_descriptor() const {
    return try_get<fwdmeta_batch_descriptor_t>(&fwdmeta_context_get_descriptor);
  }

  void set_slices(Span<const fwdmeta_slice_t> slices) {
    check(fwdmeta_context_set_slices(self(), slices.data(), static_cast<int64_t>(slices.size())));
  }
  [[nodiscard]] Slices slices() const {
    Slices out;
    check(fwdmeta_context_get_slices(self(), out.slices_, FWDMETA_MAX_SLICES, &out.count_));
    return out;
  }
  [[nodiscard]] std::optional<Slices> try_slices() const {
    Slices out;
    if (!detail::found(fwdmeta_context_get_slices(self(), out.slices_, FWDMETA_MAX_SLICES, &out.count_)))
      return std::nullopt;
    return out;
  }

  void set_is_padding(Span<const uint8_t> is_padding) {
    check(fwdmeta_context_set_is_padding(self(), is_padding.data(), static_cast<int64_t>(is_padding.size())));
  }
  [[nodiscard]] Span<const uint8_t> is_padding() const { return get_array<uint8_t>(&fwdmeta_context_get_is_padding); }
  [[nodiscard]] std::optional<Span<const uint8_t>> try_is_padding() const {
    return try_get_array<uint8_t>(&fwdmeta_context_get_is_padding);
  }

  void set_skip_compiled(bool skip) { check(fwdmeta_context_set_skip_compiled(self(), skip)); }
  [[nodiscard]] bool skip_compiled() const { return get<int32_t>(&fwdmeta_context_get_skip_compiled) != 0; }
  [[nodiscard]] std::optional<bool> try_skip_compiled() const {
    const std::optional<int32_t> skip = try_get<int32_t>(&fwdmeta_context_get_skip_compiled);
    return skip ? std::optional<bool>(*skip != 0) : std::nullopt;
  }

  void set_pointer(const char* name, void* value) { check(fwdmeta_context_set_pointer(self(), name, value)); }
  void set_int64(const char* name, int64_t value) { check(fwdmeta_context_set_int64(self(), name, value)); }
  void set_double(const char* name, double value) { check(fwdmeta_context_set_double(self(), name, value)); }
  [[nodiscard]] void* get_pointer(const char* name) const { return get<void*>(&fwdmeta_context_get_pointer, name); }
  [[nodiscard]] int64_t get_int64(const char* name) const { return get<int64_t>(&fwdmeta_context_get_int64, name); }
  [[nodiscard]] double get_double(const char* name) const { return get<double>(&fwdmeta_context_get_double, name); }
  [[nodiscard]] std::optional<void*> try_get_pointer(const char* name) const {
    return try_get<void*>(&fwdmeta_context_get_pointer, name);
  }
  [[nodiscard]] std::optional<int64_t> try_get_int64(const char* name) const {
    return try_get<int64_t>(&fwdmeta_context_get_int64, name);
  }
  [[nodiscard]] std::optional<double> try_get_double(const char* name) const {
    return try_get<double>(&fwdmeta_context_get_double, name);
  }

  [[nodiscard]] int64_t find_layer(const char* name) const { return get<int64_t>(&fwdmeta_context_find_layer, name); }
  [[nodiscard]] std::optional<int64_t> try_find_layer(const char* name) const {
    return try_get<int64_t>(&fwdmeta_context_find_layer, name);
  }
  [[nodiscard]] Layer layer(int64_t index) const {
    Layer out{};
    check(fwdmeta_context_get_layer(self(), index, &out.name, &out.layer));
    return out;
  }

  // The cursor.
  int64_t next_moe_layer() { return get<int64_t>(&fwdmeta_context_next_moe_layer); }
  [[nodiscard]] Span<const int64_t> local_sizes() const { return get_array<int64_t>(&fwdmeta_context_get_local_sizes); }
  [[nodiscard]] std::optional<Span<const int64_t>> try_local_sizes() const {
    return try_get_array<int64_t>(&fwdmeta_context_get_local_sizes);
  }

  // Pushes and pops in no scope: prefer ScopedContext.
  void push() { check(fwdmeta_context_push(self())); }
  void pop() { check(fwdmeta_context_pop(self())); }
  void reset_contents() { check(fwdmeta_context_reset(self())); }

 protected:
  // Only as a base.
  ContextCalls() = default;
  ~ContextCalls() = default;
  ContextCalls(const ContextCalls&) = default;
  ContextCalls& operator=(const ContextCalls&) = default;

 private:
  fwdmeta_context_t self() const noexcept { return static_cast<const Derived&>(*this).handle(); }

  template <class T, class Getter, class... Args>
  T get(Getter getter, Args... args) const {
    T out{};
    check(getter(self(), args..., &out));
    return out;
  }
  template <class T, class Getter, class... Args>
  std::optional<T> try_get(Getter getter, Args... args) const {
    T out{};
    if (!detail::found(getter(self(), args..., &out))) return std::nullopt;
    return out;
  }
  template <class T, class Getter, class... Args>
  Span<const T> get_array(Getter getter, Args... args) const {
    const T* data = nullptr;
    int64_t count = 0;
    check(getter(self(), args..., &data, &count));
    return {data, static_cast<std::size_t>(count)};
  }
  template <class T, class Getter, class... Args>
  std::optional<Span<const T>> try_get_array(Getter getter, Args... args) const {
    const T* data = nullptr;
    int64_t count = 0;
    if (!detail::found(getter(self(), args..., &data, &count))) return std::nullopt;
    return Span<const T>(data, static_cast<std::size_t>(count));
  }
};

// A context that someone else owns: what layers read.
class ContextView : public ContextCalls<ContextView> {
 public:
  ContextView() = default;
  explicit ContextView(fwdmeta_context_t handle) noexcept : handle_(handle) {}

  // The calling thread's current one.
  [[nodiscard]] static ContextView current() {
    fwdmeta_context_t context = 0;
    check(fwdmeta_context_current(&context));
    return ContextView(context);
  }
  // The same, or nothing where there is none.
  [[nodiscard]] static std::optional<ContextView> try_current() {
    fwdmeta_context_t context = 0;
    if (!detail::found(fwdmeta_context_current(&context))) return std::nullopt;
    return ContextView(context);
  }

  // The handle, and whether there is one.
  fwdmeta_context_t handle() const noexcept { return handle_; }
  explicit operator bool() const noexcept { return handle_ != 0; }

 private:
  fwdmeta_context_t handle_ = 0;
};

// It must not be pushed when it ends: declare it before its ScopedContext.
class Context : public detail::Handle<&fwdmeta_context_destroy>, public ContextCalls<Context> {
 public:
  using Handle::Handle;
  explicit Context(const fwdmeta_context_config_t& config) : Handle(create(config)) {}
  Context(Context&&) noexcept = default;
  Context& operator=(Context&&) noexcept = default;

  // A view of it, which must not outlive it.
  operator ContextView() const& noexcept { return ContextView(handle()); }
  operator ContextView() const&& = delete;

 private:
  static fwdmeta_context_t create(const fwdmeta_context_config_t& config) {
    fwdmeta_context_t context = 0;
    check(fwdmeta_context_create(&config, &context));
    return context;
  }
};

// A context is pushed for as long as this lives, on the thread that makes and ends it.
class [[nodiscard]] ScopedContext {
 public:
  explicit ScopedContext(ContextView context) : context_(context) { context_.push(); }
  ScopedContext(ScopedContext&& other) noexcept : context_(std::exchange(other.context_, ContextView())) {}
  ScopedContext& operator=(ScopedContext&&) = delete;
  ~ScopedContext() {
    if (context_) fwdmeta_context_pop(context_.handle());
  }

  // Pops now, so that a refusal is an exception; where there is none the destructor has nothing left to do.
  void pop() {
    context_.pop();
    context_ = ContextView();
  }

 private:
  ContextView context_;
};

// A pushed context, of any thread, or none is this thread's current one for as long as this lives. Then the former one
// is again, or none where that one has been popped on its own thread meanwhile.
class [[nodiscard]] ScopedOverride {
 public:
  explicit ScopedOverride(ContextView context) : active_(true) {
    check(fwdmeta_context_override(context.handle(), &previous_));
  }
  // No context.
  ScopedOverride() : ScopedOverride(ContextView()) {}
  ScopedOverride(ScopedOverride&& other) noexcept
      : previous_(other.previous_), active_(std::exchange(other.active_, false)) {}
  ScopedOverride& operator=(ScopedOverride&&) = delete;
  ~ScopedOverride() {
    if (active_ && fwdmeta_context_override(previous_, nullptr) != FWDMETA_OK) fwdmeta_context_override(0, nullptr);
  }

  // The former current context.
  [[nodiscard]] std::optional<ContextView> previous() const noexcept {
    if (previous_ == 0) return std::nullopt;
    return ContextView(previous_);
  }

 private:
  fwdmeta_context_t previous_ = 0;
  bool active_;
};

// Local sizes on the cursor of a pushed context for as long as this lives. The array is borrowed until then.
class [[nodiscard]] ScopedLocalSizes {
 public:
  ScopedLocalSizes(ContextView context, Span<const int64_t> sizes) : context_(context) {
    check(fwdmeta_context_push_local_sizes(context_.handle(), sizes.data(), static_cast<int64_t>(sizes.size())));
  }
  ScopedLocalSizes(ScopedLocalSizes&& other) noexcept : context_(std::exchange(other.context_, ContextView())) {}
  ScopedLocalSizes& operator=(ScopedLocalSizes&&) = delete;
  ~ScopedLocalSizes() {
    if (context_) fwdmeta_context_pop_local_sizes(context_.handle());
  }

 private:
  ContextView context_;
};

// ---- helpers

[[nodiscard]] inline BatchSplit split_by_role(const int32_t* seq_lens_encoder, const int32_t* seq_lens_this_time,
                                              int64_t batch_size) {
  BatchSplit out;
  check(fwdmeta_split_by_role(seq_lens_encoder, seq_lens_this_time, batch_size, &out));
  return out;
}
[[nodiscard]] inline BatchSplit split_by_length(const fwdmeta_length_split_args_t& args) {
  BatchSplit out;
  check(fwdmeta_split_by_length(&args, &out));
  return out;
}
// Both return whether anything has moved.
inline bool reorder_by_role(const int32_t* seq_lens_encoder, const int32_t* seq_lens_this_time, int64_t batch_size,
                            int32_t* order) {
  int32_t changed = 0;
  check(fwdmeta_reorder_by_role(seq_lens_encoder, seq_lens_this_time, batch_size, order, &changed));
  return changed != 0;
}
inline bool reorder_by_length(const int32_t* query_lens, const int32_t* computed, const int32_t* prompt_lens,
                              int64_t num_reqs, int64_t threshold, int32_t* order) {
  int32_t changed = 0;
  check(fwdmeta_reorder_by_length(query_lens, computed, prompt_lens, num_reqs, threshold, order, &changed));
  return changed != 0;
}

// Returns how many virtual requests there are; without arrays, only that.
inline int64_t local_attention(const fwdmeta_local_attention_args_t& args, int64_t capacity = 0,
                               int32_t* query_lens = nullptr, int32_t* seq_lens = nullptr,
                               int32_t* block_table = nullptr, int32_t* request = nullptr) {
  int64_t count = 0;
  check(fwdmeta_local_attention(&args, capacity, query_lens, seq_lens, block_table, request, &count));
  return count;
}
inline void paged_indptr(Span<const int32_t> seq_lens, int64_t page_size, int32_t* indptr, int32_t* last_page_len) {
  check(fwdmeta_paged_indptr(seq_lens.data(), static_cast<int64_t>(seq_lens.size()), page_size, indptr, last_page_len));
}
inline void expand_block_table(Span<const int32_t> blocks, int64_t block_size, int64_t kernel_block_size,
                               int32_t* out) {
  check(fwdmeta_expand_block_table(blocks.data(), static_cast<int64_t>(blocks.size()), block_size, kernel_block_size,
                                   out));
}

}  // namespace fwdmeta

#endif  // FWDMETA_CONTEXT_HPP
