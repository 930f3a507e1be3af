#include "context/dispatcher.h"

#include <algorithm>
#include <tuple>

#include "base/log.h"

namespace fwdmeta {
namespace {

using DispatcherRef = std::shared_ptr<Dispatcher>;

HandleTable<DispatcherRef, 3>& Dispatchers() { return TheTable<DispatcherRef, 3>(); }

constexpr int64_t kMostKeys = 1 << 24;

void AddList(const std::vector<int32_t>& values, Fnv1a* hash) {
  hash->Add(static_cast<int64_t>(values.size()));
  for (const int32_t value : values) hash->Add(value);
}

bool CapturedLater(const fwdmeta_graph_key_t& a, const fwdmeta_graph_key_t& b) {
  const auto rank = [](const fwdmeta_batch_descriptor_t& d) {
    return std::make_tuple(d.num_tokens, d.num_active_loras, d.num_reqs);
  };
  return rank(a.descriptor) > rank(b.descriptor);
}

void AddKeys(const DispatchTable& table, fwdmeta_graph_mode_t mode, const Ladder& ladder,
             std::vector<fwdmeta_graph_key_t>* keys) {
  for (int32_t size = 0; size < ladder.num_sizes; ++size) {
    for (int32_t i = 0; i < table.num_cases; ++i) {
      keys->push_back({mode, MakeDescriptor(table, mode, ladder, size, i)});
    }
  }
}

}  // namespace

Status Dispatcher::Create(const fwdmeta_dispatcher_config_t* config, fwdmeta_dispatcher_t* out) {
  if (out == nullptr) return Fail(FWDMETA_INVALID_ARGUMENT, "out is null");
  DispatcherRef dispatcher(new Dispatcher);
  FWDMETA_TRY(ParseGraphConfig(config, &dispatcher->config_));
  FWDMETA_TRY(dispatcher->Derive());
  if (!Dispatchers().Reserve(1)) return Fail(FWDMETA_OUT_OF_MEMORY, "no dispatcher handle is left");
  dispatcher->reserved_handle_ = true;
  Log(FWDMETA_LOG_DEBUG, "dispatcher: mode %s, %zu sizes, %zu keys", GraphModeName(dispatcher->config_.mode),
      dispatcher->config_.sizes.size(), dispatcher->captured_.size());
  *out = Dispatchers().Insert(std::move(dispatcher));
  return FWDMETA_OK;
}

Dispatcher::~Dispatcher() {
  if (reserved_handle_) Dispatchers().Unreserve(1);
}

Status Dispatcher::Destroy(fwdmeta_dispatcher_t handle) {
  if (handle == 0 || Dispatchers().Remove(handle) != nullptr) return FWDMETA_OK;
  return Fail(FWDMETA_INVALID_HANDLE, "0x%llx is no dispatcher", (unsigned long long)handle);
}

Status Dispatcher::Find(fwdmeta_dispatcher_t handle, DispatcherRef* out) {
  *out = Dispatchers().Find(handle);
  if (*out != nullptr) return FWDMETA_OK;
  return Fail(FWDMETA_INVALID_HANDLE, "0x%llx is no dispatcher", (unsigned long long)handle);
}

Status Dispatcher::Derive() {
  const bool separate = HasSeparateRoutine(config_.mode);
  if (Contains(config_.mode, FWDMETA_GRAPH_PIECEWISE)) piecewise_sizes_ = PiecewiseSizes(config_);
  const int64_t num_cases = static_cast<int64_t>(config_.cases.size());
  int64_t num_keys = num_piecewise_keys();
  const auto add_ladder = [&](int32_t query_len, std::vector<int32_t> sizes) {
    num_keys += static_cast<int64_t>(sizes.size()) * num_cases;
    full_.push_back({query_len, static_cast<int32_t>(sizes.size()), nullptr, nullptr});
    full_sizes_.push_back(std::move(sizes));
  };
  if (config_.mode == FWDMETA_GRAPH_FULL) {
    add_ladder(0, MixedFullSizes(config_));
  } else if (separate) {
    for (const int32_t query_len : config_.query_lens) {
      add_ladder(query_len, UniformSizes(config_, query_len));
      if (num_keys > kMostKeys) break;
    }
  }
  if (num_keys > kMostKeys) {
    return Fail(FWDMETA_INVALID_ARGUMENT, "%zu sizes, %zu query_lens and %lld LoRA cases make more than %lld keys",
                config_.sizes.size(), config_.query_lens.size(), (long long)num_cases, (long long)kMostKeys);
  }
  captured_.resize(num_keys);
  const uint8_t* flags = captured_.data();
  const auto place = [&](int32_t query_len, const std::vector<int32_t>& sizes) {
    const Ladder ladder = {query_len, static_cast<int32_t>(sizes.size()), sizes.data(), flags};
    flags += sizes.size() * num_cases;
    return ladder;
  };
  const Ladder piecewise = place(0, piecewise_sizes_);
  for (size_t i = 0; i < full_.size(); ++i) full_[i] = place(full_[i].query_len, full_sizes_[i]);
  table_ = {config_.mode,
            config_.max_num_seqs,
            config_.max_loras,
            static_cast<int32_t>(num_cases),
            config_.cases.data(),
            piecewise,
            static_cast<int32_t>(full_.size()),
            full_.data()};

  Fnv1a hash;
  for (const int32_t value : {config_.mode, config_.max_num_seqs, config_.max_num_tokens, config_.max_loras,
                              config_.max_full_reqs, int32_t{config_.round_piecewise}}) {
    hash.Add(value);
  }
  AddList(config_.query_lens, &hash);
  AddList(config_.cases, &hash);
  AddList(config_.sizes, &hash);
  AddList(piecewise_sizes_, &hash);
  for (const std::vector<int32_t>& sizes : full_sizes_) AddList(sizes, &hash);
  config_hash_ = hash.hash();
  return FWDMETA_OK;
}

std::vector<fwdmeta_graph_key_t> Dispatcher::Keys() const {
  std::vector<fwdmeta_graph_key_t> keys;
  keys.reserve(captured_.size());
  AddKeys(table_, FWDMETA_GRAPH_PIECEWISE, table_.piecewise, &keys);
  const auto first_full = keys.size();
  for (const Ladder& ladder : full_) AddKeys(table_, FWDMETA_GRAPH_FULL, ladder, &keys);
  std::sort(keys.begin(), keys.begin() + first_full, CapturedLater);
  std::sort(keys.begin() + first_full, keys.end(), CapturedLater);
  return keys;
}

fwdmeta_dispatcher_info_t Dispatcher::Info() const {
  fwdmeta_dispatcher_info_t info = FWDMETA_DISPATCHER_INFO_INITIALIZER;
  info.resolved_mode = config_.mode;
  info.resolve_reason = config_.reason;
  info.num_capture_sizes = static_cast<int64_t>(config_.sizes.size());
  info.num_piecewise_keys = num_piecewise_keys();
  info.num_full_keys = static_cast<int64_t>(captured_.size()) - info.num_piecewise_keys;
  Fnv1a hash;
  hash.Add(config_hash_);
  for (const uint8_t& flag : captured_) {  // in the order of keys, so the order of marking does not enter
    const uint8_t captured = __atomic_load_n(&flag, __ATOMIC_RELAXED);
    info.num_captured += captured;
    hash.Add(captured);
  }
  info.config_hash = hash.hash();
  return info;
}

Status Dispatcher::Dispatch(const DispatchArgs& args, DispatchResult* out) const {
  const ArgsFault fault = CheckDispatchArgs(table_, args);
  if (fault != ArgsFault::kArgsFit) return FailDispatchArgs(table_, args, fault);
  *out = fwdmeta::Dispatch(table_, args);
  if (out->mode != FWDMETA_GRAPH_NONE || (args.allowed_modes & FWDMETA_ALLOW_NONE) != 0) return FWDMETA_OK;
  return Fail(FWDMETA_NO_GRAPH, "no graph for %lld tokens of %lld requests (%s), and NONE is not allowed",
              (long long)args.num_tokens, (long long)args.num_reqs, DispatchReasonName(out->reason));
}

uint8_t* Dispatcher::FindFlag(const fwdmeta_graph_key_t& key) {
  const fwdmeta_batch_descriptor_t& descriptor = key.descriptor;
  const Ladder* ladder = nullptr;
  if (key.mode == FWDMETA_GRAPH_PIECEWISE) ladder = &table_.piecewise;
  if (key.mode == FWDMETA_GRAPH_FULL && !full_.empty() && descriptor.num_reqs > 0) {
    ladder = FindFullLadder(table_, descriptor.num_tokens / descriptor.num_reqs);
  }
  if (ladder == nullptr) return nullptr;
  const int32_t size = LowerBound(ladder->sizes, ladder->num_sizes, descriptor.num_tokens);
  const int32_t lora_case = LowerBound(table_.cases, table_.num_cases, descriptor.num_active_loras);
  if (size == ladder->num_sizes || lora_case == table_.num_cases ||
      !SameDescriptor(MakeDescriptor(table_, key.mode, *ladder, size, lora_case), descriptor)) {
    return nullptr;
  }
  return captured_.data() + (ladder->captured - captured_.data()) + int64_t{size} * table_.num_cases + lora_case;
}

Status Dispatcher::MarkCaptured(const fwdmeta_graph_key_t* key) {
  if (key == nullptr) {
    for (uint8_t& flag : captured_) __atomic_store_n(&flag, uint8_t{1}, __ATOMIC_RELAXED);
    return FWDMETA_OK;
  }
  uint8_t* flag = FindFlag(*key);
  if (flag == nullptr) {
    const fwdmeta_batch_descriptor_t& descriptor = key->descriptor;
    return Fail(FWDMETA_NOT_FOUND, "no key of mode %d with (%d tokens, %d requests, uniform %d, LoRA %d, %d)",
                key->mode, descriptor.num_tokens, descriptor.num_reqs, descriptor.uniform, descriptor.has_lora,
                descriptor.num_active_loras);
  }
  __atomic_store_n(flag, uint8_t{1}, __ATOMIC_RELAXED);
  return FWDMETA_OK;
}

Status FailDispatchArgs(const DispatchTable& table, const DispatchArgs& args, ArgsFault fault) {
  const auto out_of_range = [](const char* name, int64_t value, int64_t most) {
    return Fail(FWDMETA_INVALID_ARGUMENT, "%s is %lld, expected 0..%lld", name, (long long)value, (long long)most);
  };
  switch (fault) {
    case ArgsFault::kNumTokens:
      return out_of_range("num_tokens", args.num_tokens, INT32_MAX);
    case ArgsFault::kNumReqs:
      return out_of_range("num_reqs", args.num_reqs, table.max_num_seqs);
    case ArgsFault::kQueryLen:
      return out_of_range("query_len", args.query_len, INT32_MAX);
    case ArgsFault::kLoras:
      return Fail(FWDMETA_INVALID_ARGUMENT, "num_active_loras is %lld with max_loras %d",
                  (long long)args.num_active_loras, table.max_loras);
    case ArgsFault::kAllowedModes:
      return Fail(FWDMETA_INVALID_ARGUMENT, "allowed_modes is %d, expected 1..%d", args.allowed_modes,
                  FWDMETA_ALLOW_ALL);
    default:
      return Fail(FWDMETA_INVALID_ARGUMENT, "%lld tokens are no %lld requests of %lld tokens each",
                  (long long)args.num_tokens, (long long)args.num_reqs, (long long)args.query_len);
  }
}

const char* DispatchReasonName(fwdmeta_dispatch_reason_t reason) {
  static constexpr const char* kNames[] = {"OK",          "MODE_NONE",    "ZERO_TOKENS",       "ABOVE_LARGEST",
                                           "NOT_UNIFORM", "NO_FULL_SIZE", "LORA_NOT_CAPTURED", "NOT_ALLOWED",
                                           "NOT_CAPTURED"};
  return reason >= 0 && reason <= FWDMETA_DISPATCH_NOT_CAPTURED ? kNames[reason] : nullptr;
}

}  // namespace fwdmeta
