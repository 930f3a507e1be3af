// The agreement of ranks: any table of rows, good or bad, against the rules of the contract, in any order of the ranks,
// and through a transport whose gather may do anything.
#include <algorithm>
#include <numeric>

#include "dispatchers.h"

namespace fwdmeta_fuzz {
namespace {

using Rows = std::vector<fwdmeta_rank_row_t>;

struct Agreed {
  fwdmeta_status_t status = FWDMETA_OK;
  fwdmeta_agreement_t out = FWDMETA_AGREEMENT_INITIALIZER;
  std::vector<int64_t> tokens;
};

Agreed Agree(fwdmeta_dispatcher_t dispatcher, const Rows& rows, int64_t num_slices) {
  Agreed agreed;
  agreed.tokens.assign(rows.size(), -9);
  agreed.status = FUZZ_CALL(fwdmeta_agree(dispatcher, rows.data(), static_cast<int64_t>(rows.size()), num_slices,
                                          agreed.tokens.data(), &agreed.out));
  return agreed;
}

bool Same(const Agreed& a, const Agreed& b) {
  return a.status == b.status && a.out.mode == b.out.mode && a.out.reason == b.out.reason &&
         a.out.query_len == b.out.query_len && a.out.num_reqs == b.out.num_reqs && a.out.sliced == b.out.sliced &&
         a.out.skip == b.out.skip && fwdmeta_batch_descriptor_equal(&a.out.descriptor, &b.out.descriptor) == 1;
}

bool IsGood(const fwdmeta_rank_row_t& row) {
  const auto in_range = [](int64_t value, int64_t most) { return value >= 0 && value <= most; };
  return in_range(row.num_tokens, INT32_MAX) && in_range(row.num_reqs, INT32_MAX) && in_range(row.max_mode, 2) &&
         in_range(row.query_len, INT32_MAX) && in_range(row.wants_slices, 1) &&
         std::all_of(std::begin(row.reserved), std::end(row.reserved), [](int32_t value) { return value == 0; });
}

fwdmeta_rank_row_t ReadRow(ByteReader& bytes, uint64_t config, int32_t common_query_len) {
  fwdmeta_rank_row_t row = {0, 0, config, 7, FWDMETA_GRAPH_FULL, 0, 0, {}};
  if (!bytes.OneIn(4)) {
    row.num_reqs = bytes.Int(0, 16);
    row.query_len = bytes.OneIn(6) ? static_cast<int32_t>(bytes.Int(0, 5)) : common_query_len;
    row.num_tokens = bytes.OneIn(4) ? bytes.Int(0, 80) : row.num_reqs * std::max(row.query_len, 1);
  }
  if (bytes.OneIn(6)) row.max_mode = static_cast<int32_t>(bytes.Int(0, 2));
  row.wants_slices = !bytes.OneIn(3);
  if (!bytes.OneIn(24)) return row;
  switch (bytes.Byte() % 8) {
    case 0:
      row.num_tokens = bytes.Number();
      break;
    case 1:
      row.num_reqs = bytes.Number();
      break;
    case 2:
      row.config = static_cast<uint64_t>(bytes.Number());
      break;
    case 3:
      row.step = bytes.Number();
      break;
    case 4:
      row.max_mode = bytes.Number32();
      break;
    case 5:
      row.query_len = bytes.Number32();
      break;
    case 6:
      row.wants_slices = bytes.Number32();
      break;
    default:
      row.reserved[bytes.Int(0, 4)] = bytes.Number32();
  }
  return row;
}

// The contract's rules, one pass over the table a rule.
void CheckRules(fwdmeta_dispatcher_t dispatcher, const Rows& rows, int64_t k, const Agreed& agreed) {
  const auto refused = [&](fwdmeta_status_t status, int64_t mismatch_rank) {
    FUZZ_CHECK(agreed.status == status && agreed.out.mismatch_rank == mismatch_rank);
    for (const int64_t tokens : agreed.tokens) FUZZ_CHECK(tokens == -9);
  };
  if (rows.empty() || k < 1 || k > FWDMETA_MAX_SLICES || !std::all_of(rows.begin(), rows.end(), &IsGood)) {
    // A row that is bad in itself may also be another's mismatch.
    if (agreed.status == FWDMETA_INVALID_ARGUMENT) return refused(FWDMETA_INVALID_ARGUMENT, -1);
    FUZZ_CHECK(agreed.status == FWDMETA_RANK_MISMATCH);
  }
  for (size_t i = 0; i < rows.size(); ++i) {
    if (rows[i].config != rows[0].config || rows[i].step != rows[0].step) {
      return refused(FWDMETA_RANK_MISMATCH, static_cast<int64_t>(i));
    }
  }
  Rows live;
  std::copy_if(rows.begin(), rows.end(), std::back_inserter(live),
               [](const fwdmeta_rank_row_t& row) { return row.num_tokens > 0; });
  fwdmeta_dispatch_args_t args = FWDMETA_DISPATCH_ARGS_INITIALIZER;
  for (const auto& row : live) {
    args.num_tokens = std::max(args.num_tokens, row.num_tokens);
    args.num_reqs = std::max(args.num_reqs, row.num_reqs);
    for (int32_t mode = row.max_mode + 1; mode <= FWDMETA_GRAPH_FULL; ++mode) args.allowed_modes &= ~(1 << mode);
  }
  const bool common =
      std::all_of(live.begin(), live.end(), [&](const auto& row) { return row.query_len == live[0].query_len; });
  if (!live.empty() && common) args.query_len = live[0].query_len;
  if (args.query_len > 0 &&
      (args.num_tokens % args.query_len != 0 || args.num_tokens < args.num_reqs * args.query_len)) {
    args.query_len = 0;
  }
  fwdmeta_dispatch_result_t result = FWDMETA_DISPATCH_RESULT_INITIALIZER;
  const fwdmeta_status_t status = FUZZ_CALL(fwdmeta_dispatch(dispatcher, &args, &result));
  if (status != FWDMETA_OK) return refused(status, -1);
  FUZZ_CHECK(agreed.status == FWDMETA_OK && agreed.out.mismatch_rank == -1);
  FUZZ_CHECK((agreed.out.skip == 1) == live.empty());
  FUZZ_CHECK(agreed.out.mode == result.mode && agreed.out.reason == result.reason);
  FUZZ_CHECK(fwdmeta_batch_descriptor_equal(&agreed.out.descriptor, &result.descriptor) == 1);
  FUZZ_CHECK(agreed.out.num_reqs == result.descriptor.num_reqs && agreed.out.query_len == args.query_len);
  const int64_t m = result.mode != FWDMETA_GRAPH_NONE ? result.descriptor.num_tokens : args.num_tokens;
  const bool sliced = k >= 2 && m / k >= 1 && std::all_of(rows.begin(), rows.end(), [&](const auto& row) {
                        return row.wants_slices == 1 && m / k * (k - 1) < row.num_tokens;
                      });
  FUZZ_CHECK((agreed.out.sliced == 1) == sliced);
  for (size_t i = 0; i < rows.size(); ++i) {
    FUZZ_CHECK(agreed.tokens[i] == (result.mode != FWDMETA_GRAPH_NONE || sliced ? m : rows[i].num_tokens));
  }
}

struct Gather {
  const Rows* rows;
  fwdmeta_status_t status;
  bool spoils_own;
  int64_t rank;
};

fwdmeta_status_t GatherRows(const void* send, void* recv, size_t bytes, int64_t, void* user) {
  const Gather& gather = *static_cast<const Gather*>(user);
  FUZZ_CHECK(bytes == sizeof(fwdmeta_rank_row_t));
  FUZZ_CHECK(std::memcmp(send, &(*gather.rows)[gather.rank], bytes) == 0);
  std::memcpy(recv, gather.rows->data(), gather.rows->size() * bytes);
  if (gather.spoils_own) static_cast<fwdmeta_rank_row_t*>(recv)[gather.rank].step ^= 1;
  return gather.status;
}

void Through(ByteReader& bytes, fwdmeta_dispatcher_t dispatcher, const Rows& rows, int64_t k, const Agreed& agreed) {
  Gather gather = {&rows, FWDMETA_OK, bytes.OneIn(8), 0};
  if (bytes.OneIn(8)) gather.status = bytes.Number32();
  fwdmeta_transport_config_t c = FWDMETA_TRANSPORT_CONFIG_INITIALIZER;
  c.num_ranks = static_cast<int64_t>(rows.size());
  c.rank = bytes.OneIn(16) ? bytes.Number() : bytes.Int(0, std::max<int64_t>(c.num_ranks - 1, 0));
  c.gather = bytes.OneIn(16) ? nullptr : &GatherRows;
  c.user = &gather;
  gather.rank = c.rank;
  Sized<fwdmeta_transport_config_t, 8> config(bytes, c);
  if (!config.whole() && config.readable()) return;  // it would call the gather without its user
  fwdmeta_transport_t transport = 0;
  const fwdmeta_status_t created = FUZZ_CALL(fwdmeta_transport_create(config.get(), &transport));
  const bool good = config.whole() && c.num_ranks > 0 && c.rank >= 0 && c.rank < c.num_ranks && c.gather != nullptr;
  FUZZ_CHECK((created == FWDMETA_OK) == good && (transport != 0) == good);
  if (!good) return;
  Agreed again;
  again.tokens.assign(rows.size(), -9);
  again.status = fwdmeta_agree_through(transport, dispatcher, &rows[c.rank], k, bytes.Number() | 1, again.tokens.data(),
                                       &again.out);
  const bool is_status = gather.status >= 0 && gather.status < FWDMETA_STATUS_COUNT;
  if (k < 1 || k > FWDMETA_MAX_SLICES) {
    FUZZ_CHECK(again.status == FWDMETA_INVALID_ARGUMENT);
  } else if (gather.status == FWDMETA_OK && !gather.spoils_own) {
    FUZZ_CHECK(Same(agreed, again) && again.tokens == agreed.tokens);
  } else if (gather.status == FWDMETA_OK) {
    FUZZ_CHECK(again.status == FWDMETA_INVALID_ARGUMENT);
  } else {
    FUZZ_CHECK(again.status == (is_status ? gather.status : FWDMETA_INTERNAL));
  }
  FUZZ_EXPECT(FWDMETA_OK, fwdmeta_transport_destroy(transport));
  FUZZ_EXPECT(FWDMETA_INVALID_HANDLE, fwdmeta_transport_destroy(transport));
}

// Sizes that follow from the counts of ranks.
void Sizes(ByteReader& bytes) {
  std::vector<int64_t> counts(static_cast<size_t>(bytes.Int(0, 8)));
  for (int64_t& count : counts) count = bytes.OneIn(12) ? bytes.Number() : bytes.Byte();
  const int64_t n = static_cast<int64_t>(counts.size());
  const auto bad = [](int64_t count) { return count < 0 || count > INT32_MAX; };
  const bool good = n > 0 && std::none_of(counts.begin(), counts.end(), bad);
  const auto small = [&] { return bytes.OneIn(8) ? bytes.Number() : bytes.Int(1, 6); };
  const int64_t sp = small();
  if (sp <= 64) {
    std::vector<int64_t> out(counts.size() * static_cast<size_t>(std::max<int64_t>(sp, 0)));
    const fwdmeta_status_t status = FUZZ_CALL(fwdmeta_sp_sizes(counts.data(), n, sp, out.data()));
    FUZZ_CHECK((status == FWDMETA_OK) == (good && sp >= 1));
    for (size_t i = 0; status == FWDMETA_OK && i < out.size(); ++i) {
      FUZZ_CHECK(out[i] == (counts[i / sp] + sp - 1) / sp);
    }
  }
  std::vector<int64_t> out(counts.size());
  fwdmeta_status_t status = FUZZ_CALL(fwdmeta_cu_sizes(counts.data(), n, out.data()));
  FUZZ_CHECK((status == FWDMETA_OK) == good);
  int64_t sum = 0;
  for (size_t i = 0; status == FWDMETA_OK && i < out.size(); ++i) FUZZ_CHECK(out[i] == (sum += counts[i]));
  const int64_t max_chunk = small(), index = bytes.OneIn(8) ? bytes.Number() : bytes.Int(0, 60);
  status = FUZZ_CALL(fwdmeta_chunk_sizes(counts.data(), n, max_chunk, index, out.data()));
  FUZZ_CHECK((status == FWDMETA_OK) == (good && !bad(max_chunk) && max_chunk >= 1 && !bad(index)));
  for (size_t i = 0; status == FWDMETA_OK && i < out.size(); ++i) {
    FUZZ_CHECK(out[i] == std::max<int64_t>(1, std::min(max_chunk, counts[i] - max_chunk * index)));
  }
  int64_t chunks = 0;
  status = FUZZ_CALL(fwdmeta_num_chunks(counts.data(), n, max_chunk, &chunks));
  if (status == FWDMETA_OK) {
    const int64_t most = *std::max_element(counts.begin(), counts.end());
    FUZZ_CHECK(chunks == std::max<int64_t>(1, most / max_chunk + (most % max_chunk != 0)));
  }
  fwdmeta_dp_metadata_args_t a = FWDMETA_DP_METADATA_ARGS_INITIALIZER;
  a.dp_size = n;
  a.dp_rank = bytes.OneIn(8) ? bytes.Number() : bytes.Int(0, std::max<int64_t>(n - 1, 0));
  a.table = counts.data();
  const bool in_table = a.dp_rank >= 0 && a.dp_rank < n;
  a.num_tokens = in_table && !bytes.OneIn(8) ? counts[a.dp_rank] : bytes.Number();
  a.sequence_parallel_moe = bytes.OneIn(8) ? bytes.Number32() : static_cast<int32_t>(bytes.Int(0, 1));
  a.is_moe = bytes.OneIn(8) ? bytes.Number32() : static_cast<int32_t>(bytes.Int(-1, 1));
  fwdmeta_dp_metadata_t metadata = FWDMETA_DP_METADATA_INITIALIZER;
  status = FUZZ_CALL(fwdmeta_dp_metadata_make(&a, &metadata));
  if (status == FWDMETA_OK) {
    FUZZ_CHECK(good && in_table && counts[a.dp_rank] == a.num_tokens && metadata.sum_tokens == sum &&
               metadata.max_tokens == *std::max_element(counts.begin(), counts.end()));
  }
  const int64_t tokens = bytes.OneIn(4) ? bytes.Number() : bytes.Byte(), ranks = small();
  if (ranks > 64) return;
  const size_t room = static_cast<size_t>(std::max<int64_t>(ranks, 0));
  std::vector<int64_t> sizes(room), starts(room), live(room);
  const bool padded = bytes.OneIn(2), masked = tokens <= 1024 && bytes.OneIn(2);
  std::vector<uint8_t> mask(masked && padded && ranks > 0 ? (std::max<int64_t>(tokens, 0) + ranks - 1) / ranks * ranks
                                                          : 0);
  status = FUZZ_CALL(fwdmeta_shard_sizes(tokens, ranks, padded, sizes.data(), starts.data(), live.data(),
                                         masked && padded ? mask.data() : nullptr));
  FUZZ_CHECK((status == FWDMETA_OK) == (!bad(tokens) && ranks >= 1));
  if (status == FWDMETA_OK) {
    FUZZ_CHECK(std::accumulate(live.begin(), live.end(), int64_t{0}) == tokens);
    FUZZ_CHECK(std::count(mask.begin(), mask.end(), 1) == (mask.empty() ? 0 : tokens));
  }
}

void Run(ByteReader bytes) {
  if (bytes.OneIn(4)) return Sizes(bytes);
  const fwdmeta_test::GraphConfig setup = ReadGraphConfig(bytes);
  const fwdmeta_dispatcher_config_t config = setup.ToC();
  fwdmeta_dispatcher_t one = 0, other = 0;
  FUZZ_EXPECT(FWDMETA_OK, fwdmeta_dispatcher_create(&config, &one));
  FUZZ_EXPECT(FWDMETA_OK, fwdmeta_dispatcher_create(&config, &other));
  const bool all = !bytes.OneIn(4);
  if (all) FUZZ_EXPECT(FWDMETA_OK, fwdmeta_dispatcher_mark_captured(one, nullptr));
  for (const fwdmeta_graph_key_t& key : KeysOf(one)) {
    if (!all && bytes.OneIn(2)) continue;
    FUZZ_EXPECT(FWDMETA_OK, fwdmeta_dispatcher_mark_captured(one, &key));
    FUZZ_EXPECT(FWDMETA_OK, fwdmeta_dispatcher_mark_captured(other, &key));
  }
  fwdmeta_dispatcher_info_t info = FWDMETA_DISPATCHER_INFO_INITIALIZER, same = FWDMETA_DISPATCHER_INFO_INITIALIZER;
  FUZZ_EXPECT(FWDMETA_OK, fwdmeta_dispatcher_get_info(one, &info));
  FUZZ_EXPECT(FWDMETA_OK, fwdmeta_dispatcher_get_info(other, &same));
  FUZZ_CHECK(info.config_hash == same.config_hash);
  for (int table = 0; table < 8 && !bytes.empty(); ++table) {
    Rows rows;
    const int32_t query_len = static_cast<int32_t>(bytes.Int(0, 5));
    for (int64_t i = bytes.Int(0, 12); i > 0; --i) rows.push_back(ReadRow(bytes, info.config_hash, query_len));
    const int64_t k = bytes.OneIn(8) ? bytes.Number() : bytes.Int(1, 4);
    const Agreed agreed = Agree(one, rows, k);
    CheckRules(other, rows, k, agreed);
    // Every rank concludes the same, in whichever order it has them.
    if (agreed.status == FWDMETA_OK) {
      Rows turned = rows;
      const size_t by = static_cast<size_t>(bytes.Byte()) % rows.size();
      std::rotate(turned.begin(), turned.begin() + by, turned.end());
      Agreed again = Agree(other, turned, k);
      FUZZ_CHECK(Same(agreed, again));
      std::rotate(again.tokens.begin(), again.tokens.end() - by, again.tokens.end());
      FUZZ_CHECK(again.tokens == agreed.tokens);
    }
    if (bytes.OneIn(4)) Through(bytes, other, rows, k, agreed);
  }
  FUZZ_EXPECT(FWDMETA_OK, fwdmeta_dispatcher_destroy(one));
  FUZZ_EXPECT(FWDMETA_OK, fwdmeta_dispatcher_destroy(other));
}

}  // namespace
}  // namespace fwdmeta_fuzz

extern "C" int LLVMFuzzerInitialize(int*, char***) { return fwdmeta_log_set_level(FWDMETA_LOG_ERROR); }

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  fwdmeta_fuzz::Run({data, size});
  return 0;
}
