// The forward context's half of the C API: dispatchers against their model, plans of slices token by token, helpers,
// and contexts with their stack against a model of its states.
#include <algorithm>
#include <cstring>
#include <map>
#include <numeric>
#include <set>
#include <string>
#include <variant>

#include "dispatchers.h"
#include "steps.h"

namespace fwdmeta_fuzz {
namespace {

// What fields of a context borrow.
const int64_t kCounts[4] = {3, 0, 2, 1};
const uint8_t kPadding[4] = {};

using Ints = std::vector<int32_t>;

// ---- dispatchers

std::string Dispatched(fwdmeta_dispatcher_t dispatcher, const fwdmeta_test::Batch& batch) {
  const fwdmeta_dispatch_args_t args = fwdmeta_test::ToC(batch);
  fwdmeta_dispatch_result_t result = FWDMETA_DISPATCH_RESULT_INITIALIZER;
  const fwdmeta_status_t status = FUZZ_CALL(fwdmeta_dispatch(dispatcher, &args, &result));
  if (status != FWDMETA_OK) return fwdmeta_status_name(status);
  const std::string reason =
      result.reason == FWDMETA_DISPATCH_OK ? "" : std::string(" ") + fwdmeta_dispatch_reason_name(result.reason);
  return fwdmeta_test::Text(result.mode, result.descriptor) + reason;
}

void Dispatch(ByteReader& bytes) {
  const fwdmeta_test::GraphConfig setup = ReadGraphConfig(bytes);
  const fwdmeta_dispatcher_config_t config = setup.ToC();
  fwdmeta_dispatcher_t dispatcher = 0;
  FUZZ_EXPECT(FWDMETA_OK, fwdmeta_dispatcher_create(&config, &dispatcher));
  const fwdmeta_test::Model model(setup);
  const std::vector<fwdmeta_graph_key_t> keys = KeysOf(dispatcher);
  std::multiset<std::string> texts;
  std::set<std::string> captured;
  const bool all = !bytes.OneIn(4);
  for (const fwdmeta_graph_key_t& key : keys) {
    const std::string text = fwdmeta_test::Text(key.mode, key.descriptor);
    texts.insert(text);
    if (!all && bytes.OneIn(2)) continue;
    FUZZ_EXPECT(FWDMETA_OK, fwdmeta_dispatcher_mark_captured(dispatcher, &key));
    captured.insert(text);
  }
  FUZZ_CHECK(texts == model.KeyTexts());
  const auto is_captured = [&](const fwdmeta_graph_key_t& key) {
    return captured.count(fwdmeta_test::Text(key.mode, key.descriptor)) > 0;
  };
  for (int i = 0; i < 16 && !bytes.empty(); ++i) {
    fwdmeta_test::Batch batch = {bytes.Int(0, 80), bytes.Int(0, 17)};
    if (bytes.OneIn(2)) {
      batch.query_len = bytes.Int(0, 6);
      if (!bytes.OneIn(4)) batch.tokens = batch.query_len * (batch.reqs + bytes.Int(0, 3));
    }
    if (bytes.OneIn(3)) batch.loras = bytes.Int(0, 8);
    if (bytes.OneIn(3)) batch.allowed = static_cast<int32_t>(bytes.Int(0, 7));
    const std::string want = model.Answer(batch, is_captured), got = Dispatched(dispatcher, batch);
    if (want != got) Die(__FILE__, __LINE__, "dispatched " + got + ", expected " + want);
  }
  if (bytes.OneIn(4)) {  // a key that may be none, and arguments that may be any
    const fwdmeta_graph_key_t key = {
        bytes.Number32(), {bytes.Number32(), bytes.Number32(), bytes.Number32(), bytes.Number32(), bytes.Number32()}};
    const auto same = [&](const fwdmeta_graph_key_t& one) {
      return one.mode == key.mode && fwdmeta_batch_descriptor_equal(&one.descriptor, &key.descriptor) == 1;
    };
    FUZZ_EXPECT(std::any_of(keys.begin(), keys.end(), same) ? FWDMETA_OK : FWDMETA_NOT_FOUND,
                fwdmeta_dispatcher_mark_captured(dispatcher, &key));
    fwdmeta_batch_descriptor_hash(&key.descriptor);
    fwdmeta_dispatch_args_t a = FWDMETA_DISPATCH_ARGS_INITIALIZER;
    a.num_tokens = bytes.Number();
    a.num_reqs = bytes.Number();
    a.query_len = bytes.Number();
    a.num_active_loras = bytes.Number();
    a.allowed_modes = bytes.Number32();
    Sized<fwdmeta_dispatch_args_t> args(bytes, a);
    Sized<fwdmeta_dispatch_result_t> out(bytes, FWDMETA_DISPATCH_RESULT_INITIALIZER);
    if (FUZZ_CALL(fwdmeta_dispatch(dispatcher, args.get(), out.get())) == FWDMETA_OK) {
      FUZZ_CHECK(args.readable() && out.writable());
    }
    out.value();
  }
  FUZZ_EXPECT(FWDMETA_OK, fwdmeta_dispatcher_destroy(dispatcher));
  FUZZ_EXPECT(FWDMETA_INVALID_HANDLE, fwdmeta_dispatcher_destroy(dispatcher));
}

// Configurations of any numbers, most of which are refused.
void AnyDispatcher(ByteReader& bytes) {
  int64_t sizes[4], query_lens[3];
  for (int64_t& size : sizes) size = bytes.Number();
  for (int64_t& query_len : query_lens) query_len = bytes.Number();
  fwdmeta_dispatcher_config_t c = FWDMETA_DISPATCHER_CONFIG_INITIALIZER;
  c.mode = bytes.OneIn(4) ? bytes.Number32() : bytes.Pick({0, 1, 2, 0x200, 0x201});
  c.support = bytes.OneIn(4) ? bytes.Number32() : static_cast<int32_t>(bytes.Int(0, 3));
  c.piecewise_available = bytes.OneIn(4) ? bytes.Number32() : 1;
  c.max_num_seqs = bytes.Number();
  // As many sizes and cases as are made in no time.
  const auto bounded = [&](int64_t most) {
    const int64_t value = bytes.Number();
    return value > most && value <= INT32_MAX ? most : value;
  };
  c.max_num_tokens = bounded(4096);
  if (bytes.OneIn(2)) {
    c.capture_sizes = bytes.OneIn(8) ? nullptr : sizes;
    c.num_capture_sizes = bytes.OneIn(8) ? std::min<int64_t>(bytes.Number(), 4) : bytes.Int(0, 4);
  }
  if (bytes.OneIn(2)) {
    c.query_lens = query_lens;
    c.num_query_lens = bytes.Int(-1, 3);
  }
  if (bytes.OneIn(3)) c.max_capture_size = bytes.Number();
  if (bytes.OneIn(3)) c.max_loras = bytes.Number();
  if (bytes.OneIn(3)) c.max_full_reqs = bytes.Number();
  if (bytes.OneIn(4)) c.round_piecewise = bytes.Number32();
  if (bytes.OneIn(4)) c.specialize_active_loras = bytes.Number32();
  Sized<fwdmeta_dispatcher_config_t, 8> config(bytes, c);
  fwdmeta_dispatcher_t dispatcher = 0;
  const fwdmeta_status_t status = FUZZ_CALL(fwdmeta_dispatcher_create(config.get(), &dispatcher));
  FUZZ_CHECK((status == FWDMETA_OK) == (dispatcher != 0) && (config.readable() || status != FWDMETA_OK));
  if (status != FWDMETA_OK) return;
  Sized<fwdmeta_dispatcher_info_t> info(bytes, FWDMETA_DISPATCHER_INFO_INITIALIZER);
  const fwdmeta_status_t got = FUZZ_CALL(fwdmeta_dispatcher_get_info(dispatcher, info.get()));
  FUZZ_CHECK((got == FWDMETA_OK) == info.writable());
  if (info.whole()) {
    const fwdmeta_dispatcher_info_t counts = info.value();
    FUZZ_CHECK(static_cast<int64_t>(KeysOf(dispatcher).size()) == counts.num_piecewise_keys + counts.num_full_keys);
  }
  for (int i = 0; i < 4; ++i) {
    fwdmeta_test::Batch batch = {bytes.Number(), bytes.Number(), bytes.Number(), bytes.Number(), bytes.Number32()};
    Dispatched(dispatcher, batch);
  }
  FUZZ_EXPECT(FWDMETA_OK, fwdmeta_dispatcher_destroy(dispatcher));
}

// Lengths of a batch, most often good ones.
struct Lengths {
  Ints encoder, this_time;
  bool good = true;
};
Lengths ReadLengths(ByteReader& bytes) {
  Lengths lengths;
  int64_t sum = 0;
  for (int64_t i = bytes.Int(0, 10); i > 0; --i) {
    int32_t n = static_cast<int32_t>(bytes.Int(0, 6)), e = bytes.OneIn(3) ? n : 0;
    if (bytes.OneIn(24)) (bytes.OneIn(2) ? n : e) = bytes.Number32();
    lengths.good = lengths.good && n >= 0 && (n == 0 || (e >= 0 && (e == 0 || e == n)));
    sum += std::max(n, 0);
    lengths.encoder.push_back(e);
    lengths.this_time.push_back(n);
  }
  lengths.good = lengths.good && sum <= INT32_MAX;
  return lengths;
}

void Fills(ByteReader& bytes) {
  const Lengths lengths = ReadLengths(bytes);
  const int64_t size = static_cast<int64_t>(lengths.encoder.size()),
                q = bytes.OneIn(8) ? bytes.Number() : bytes.Int(1, 4);
  fwdmeta_dispatch_args_t args = FWDMETA_DISPATCH_ARGS_INITIALIZER;
  fwdmeta_status_t status =
      FUZZ_CALL(fwdmeta_dispatch_args_from_lengths(lengths.encoder.data(), lengths.this_time.data(), size, q, &args));
  FUZZ_CHECK((status == FWDMETA_OK) == (lengths.good && q >= 1 && q <= INT32_MAX));
  int64_t decodes = 0, prefills = 0, decode_tokens = 0, prefill_tokens = 0;
  bool uniform = true;
  for (int64_t i = 0; i < size && lengths.good; ++i) {
    const int32_t n = lengths.this_time[i];
    if (n == 0) continue;
    const bool prefill = lengths.encoder[i] > 0;
    uniform = uniform && !prefill && n == q;
    (prefill ? prefills : decodes) += 1;
    (prefill ? prefill_tokens : decode_tokens) += n;
  }
  const int64_t live = decodes + prefills;
  if (status == FWDMETA_OK) {
    FUZZ_CHECK(args.num_reqs == live && args.num_tokens == decode_tokens + prefill_tokens &&
               args.query_len == (uniform && live > 0 ? q : 0));
  }
  fwdmeta_batch_split_t split = FWDMETA_BATCH_SPLIT_INITIALIZER;
  status = FUZZ_CALL(fwdmeta_split_by_role(lengths.encoder.data(), lengths.this_time.data(), size, &split));
  FUZZ_CHECK((status == FWDMETA_OK) == lengths.good);
  if (status == FWDMETA_OK) {
    FUZZ_CHECK(split.num_decodes == decodes && split.num_prefills == prefills &&
               split.num_decode_tokens == decode_tokens && split.num_prefill_tokens == prefill_tokens);
  }
  Ints order(lengths.encoder.size());
  int32_t changed = -1;
  status = FUZZ_CALL(
      fwdmeta_reorder_by_role(lengths.encoder.data(), lengths.this_time.data(), size, order.data(), &changed));
  FUZZ_CHECK((status == FWDMETA_OK) == lengths.good);
  if (status == FWDMETA_OK) {
    Ints sorted = order;
    std::sort(sorted.begin(), sorted.end());
    Ints identity(order.size());
    std::iota(identity.begin(), identity.end(), 0);
    FUZZ_CHECK(sorted == identity && (changed == 1) == (order != identity));
    const auto group = [&](int32_t slot) {
      return lengths.this_time[slot] == 0 ? 2 : lengths.encoder[slot] > 0 ? 1 : 0;
    };
    FUZZ_CHECK(std::is_sorted(order.begin(), order.end(), [&](int32_t a, int32_t b) { return group(a) < group(b); }));
  }

  fwdmeta_dummy_batch_t d = FWDMETA_DUMMY_BATCH_INITIALIZER;
  d.num_reqs = bytes.OneIn(8) ? bytes.Number() : bytes.Int(1, 8);
  if (bytes.OneIn(2)) d.num_tokens = bytes.OneIn(8) ? bytes.Number() : bytes.Int(1, 40);
  d.query_len = bytes.OneIn(8) ? bytes.Number() : bytes.Int(0, 5);
  const auto small = [](int64_t count) { return count >= 0 && count <= 64; };
  const int64_t total = d.num_tokens != FWDMETA_DEFAULT           ? d.num_tokens
                        : small(d.num_reqs) && small(d.query_len) ? d.num_reqs * d.query_len
                                                                  : -1;
  const bool fits = small(d.num_reqs) && total >= 0 && total <= 64 * 64;
  Ints e(fits ? d.num_reqs : 0), k(e.size()), n(e.size());
  std::vector<int64_t> slots(fits ? total : 0);
  std::vector<uint8_t> padding(slots.size());
  if (fits) {
    d.seq_lens_encoder = e.data(), d.seq_lens_decoder = k.data(), d.seq_lens_this_time = n.data();
    d.slot_mapping = slots.data(), d.is_padding = padding.data();
  }
  status = FUZZ_CALL(fwdmeta_make_dummy(&d));
  if (status != FWDMETA_OK || !fits) return;
  FUZZ_CHECK(std::accumulate(n.begin(), n.end(), int64_t{0}) == total && std::is_sorted(n.begin(), n.end()));
  FUZZ_CHECK(n.back() - n.front() <= 1 && std::count(slots.begin(), slots.end(), -1) == total);
  FUZZ_CHECK(d.query_len == 0 ? e == n : e == Ints(n.size()));
}

// ---- slices

struct Step {
  Ints query_lens, seq_lens;
  fwdmeta_slice_args_t args = FWDMETA_SLICE_ARGS_INITIALIZER;
};

void ReadStep(ByteReader& bytes, Step* step) {
  int64_t tokens = 0;
  for (int64_t i = bytes.Int(0, 8); i > 0; --i) {
    int32_t n = static_cast<int32_t>(bytes.Int(0, 9)), length = n + static_cast<int32_t>(bytes.Int(0, 40));
    tokens += n;
    if (bytes.OneIn(32)) (bytes.OneIn(2) ? n : length) = bytes.Number32();
    step->query_lens.push_back(n);
    step->seq_lens.push_back(length);
  }
  fwdmeta_slice_args_t& args = step->args;
  args.query_lens = step->query_lens.data();
  args.seq_lens = step->seq_lens.data();
  args.num_reqs = static_cast<int64_t>(step->query_lens.size());
  if (bytes.OneIn(2)) args.num_padded_tokens = bytes.OneIn(8) ? bytes.Number() : tokens + bytes.Int(0, 9);
  // Not so many that their lengths have no room here.
  if (bytes.OneIn(2))
    args.num_padded_reqs = std::min<int64_t>(bytes.OneIn(8) ? bytes.Number() : args.num_reqs + bytes.Int(0, 3), 64);
  args.num_slices = bytes.OneIn(8) ? bytes.Number() : bytes.Int(1, 5);
  if (bytes.OneIn(2)) args.split = bytes.OneIn(8) ? bytes.Number() : bytes.Int(1, 20);
}

void Slices(ByteReader& bytes) {
  Step step;
  ReadStep(bytes, &step);
  const fwdmeta_slice_args_t& args = step.args;
  fwdmeta_slice_t plan[FWDMETA_MAX_SLICES];
  const fwdmeta_status_t status = FUZZ_CALL(fwdmeta_plan_slices(&args, plan));
  int64_t n = 0;
  bool good = args.num_slices >= 1 && args.num_slices <= FWDMETA_MAX_SLICES;
  for (int64_t i = 0; i < args.num_reqs; ++i) {
    good = good && step.query_lens[i] >= 0 && step.seq_lens[i] >= step.query_lens[i];
    n += step.query_lens[i];
  }
  const bool default_tokens = args.num_padded_tokens == FWDMETA_DEFAULT;
  const int64_t padded_tokens = default_tokens ? n : args.num_padded_tokens;
  const int64_t padded_reqs = args.num_padded_reqs == FWDMETA_DEFAULT ? args.num_reqs : args.num_padded_reqs;
  good = good && n <= INT32_MAX && padded_tokens >= n && padded_tokens <= INT32_MAX && padded_reqs >= args.num_reqs &&
         (args.split == FWDMETA_DEFAULT || (args.split >= 1 && args.split <= INT32_MAX));
  FUZZ_CHECK((status == FWDMETA_OK) == good);
  if (!good) return;

  // Token by token, but for lengths that have too many.
  const int64_t split = args.split == FWDMETA_DEFAULT ? padded_tokens / args.num_slices : args.split;
  const auto begin_of = [&](int64_t j) { return j == args.num_slices ? n : std::min(j * split, n); };
  std::vector<Ints> rebuilt(step.query_lens.size());
  for (int64_t j = 0; j < args.num_slices; ++j) {
    const fwdmeta_slice_t& slice = plan[j];
    const bool last = j == args.num_slices - 1;
    const int64_t begin = begin_of(j), end = begin_of(j + 1);
    FUZZ_CHECK(slice.first_token == begin && slice.num_tokens == end - begin && slice.empty == (begin == end) &&
               slice.end_token == (last ? padded_tokens : end));
    FUZZ_CHECK(slice.first_req >= 0 && slice.end_req >= slice.first_req && slice.end_req <= padded_reqs);
    const size_t rows = static_cast<size_t>(slice.end_req - slice.first_req);
    Ints starts(rows + 1, -9), lengths(rows, -9), computed(rows, -9);
    FUZZ_EXPECT(FWDMETA_OK, fwdmeta_slice_lengths(&args, &slice, starts.data(), lengths.data(), computed.data()));
    FUZZ_CHECK(starts[0] == 0 && starts[rows] == slice.num_tokens && std::is_sorted(starts.begin(), starts.end()));
    int64_t token = 0;  // the first of each request
    for (int64_t i = 0; i < args.num_reqs; ++i) {
      const int64_t q = step.query_lens[i];
      const int64_t own = std::max<int64_t>(0, std::min(token + q, end) - std::max(token, begin));
      const int64_t row = i - slice.first_req;
      const bool inside = row >= 0 && row < static_cast<int64_t>(rows);
      FUZZ_CHECK(own == 0 || inside);
      if (inside) {
        const int64_t later = std::max<int64_t>(0, token + q - std::max(token, end));
        FUZZ_CHECK(starts[row + 1] - starts[row] == own && lengths[row] == step.seq_lens[i] - later &&
                   computed[row] == lengths[row] - own);
      }
      token += q;
    }
    for (int64_t row = args.num_reqs - slice.first_req; row >= 0 && row < static_cast<int64_t>(rows); ++row) {
      FUZZ_CHECK(lengths[row] == 0 && computed[row] == 0 && starts[row + 1] == starts[rows]);
    }
  }

  // The pages of short requests, each read and written as the header says.
  for (const int32_t length : step.seq_lens) {
    if (length > 256) return;
  }
  const int64_t block_size = bytes.OneIn(16) ? bytes.Number() : bytes.Int(1, 16);
  const int64_t width = bytes.Int(0, 12);
  Ints table(static_cast<size_t>(args.num_reqs * width));
  for (int32_t& page : table) page = bytes.OneIn(16) ? bytes.Number32() : bytes.Byte() % 16;
  const fwdmeta_rows_t pages = {table.data(), width, width, nullptr};
  fwdmeta_slice_conflict_t conflict = FWDMETA_SLICE_CONFLICT_INITIALIZER;
  const fwdmeta_status_t found = FUZZ_CALL(fwdmeta_slices_conflict(&args, plan, &pages, block_size, &conflict));
  const bool no_table = table.data() == nullptr;
  if (found != FWDMETA_OK) {
    FUZZ_CHECK(block_size < 1 || block_size > INT32_MAX || no_table);
    return;
  }
  if (no_table) return;
  const auto page_of = [&](int64_t i, int64_t position) -> int32_t {
    const int64_t column = position / block_size;
    return column < width ? std::max(table[i * width + column], -1) : -1;
  };
  std::set<std::tuple<int, int32_t, int64_t>> reads, writes;  // slice, page, request
  int64_t token = 0;
  for (int64_t i = 0; i < args.num_reqs; ++i) {
    const int64_t q = step.query_lens[i], done = step.seq_lens[i] - q;
    for (int j = 0; j < args.num_slices; ++j) {
      const int64_t from = std::max(token, begin_of(j)) - token, to = std::min(token + q, begin_of(j + 1)) - token;
      if (from >= to) continue;
      for (int64_t p = 0; p < done + to; ++p) {
        const int32_t page = page_of(i, p);
        if (page >= 0) (p < done + from ? reads : writes).insert({j, page, i});
      }
    }
    token += q;
  }
  bool any = false, cross = false;
  for (const auto& [reader, read, who] : reads) {
    for (const auto& [writer, written, other] : writes) {
      if (reader == writer || read != written) continue;
      any = true;
      cross = cross || who != other;
    }
  }
  FUZZ_CHECK((conflict.conflict == 1) == any && (conflict.cross_request == 1) == cross);
  if (!any) FUZZ_CHECK(conflict.reader == -1 && conflict.writer == -1 && conflict.page == -1);
}

// Builds of slices on the host backend, with lengths of both kinds.
void Slicer(ByteReader& bytes) {
  std::vector<fwdmeta_group_config_t> groups;
  fwdmeta_config_t c = ReadConfig(bytes, &groups);
  BoundedMemory memory;
  c.host_allocator = memory.allocator();
  const int64_t most = bytes.Int(1, 5);
  fwdmeta_slicer_t slicer = 0;
  if (FUZZ_CALL(fwdmeta_slicer_create(&c, most, &slicer)) != FWDMETA_OK) return;
  if (HasModel(c)) {
    const reference::Config config = ModelOf(c);
    std::vector<int64_t> steps(most);
    for (int i = 0; i < 8 && !bytes.empty(); ++i) {
      const reference::Batch batch = ReadBatch(bytes, config);
      BatchArgs args(batch);
      args.c.memory_kind = bytes.OneIn(2) ? FWDMETA_MEMORY_HOST : FWDMETA_MEMORY_DEVICE;
      const int64_t count = bytes.Int(1, most), split = bytes.OneIn(2) ? bytes.Int(1, 20) : FWDMETA_DEFAULT;
      fwdmeta_meta_t metas[FWDMETA_MAX_SLICES] = {};
      if (FUZZ_CALL(fwdmeta_build_slices(slicer, &args.c, count, split, metas)) != FWDMETA_OK) continue;
      for (int64_t j = 0; j < count; ++j) {
        const reference::Result want = BuildSlice(config, batch, j, count, split);
        CheckArrays(metas[j], config, want, ++steps[j]);
        fwdmeta_counts_t counts = FWDMETA_COUNTS_INITIALIZER;
        FUZZ_EXPECT(want.status(), fwdmeta_meta_wait(metas[j], FWDMETA_WAIT_FINAL, 0, &counts));
        CheckCounts(want, steps[j], counts);
        FUZZ_EXPECT(FWDMETA_OK, fwdmeta_meta_destroy(metas[j]));
      }
    }
  }
  FUZZ_EXPECT(FWDMETA_OK, fwdmeta_slicer_destroy(slicer));
}

// ---- other helpers

void Helpers(ByteReader& bytes) {
  Step step;
  ReadStep(bytes, &step);
  const int64_t reqs = step.args.num_reqs;
  const int64_t page = bytes.OneIn(8) ? bytes.Number() : bytes.Int(1, 16);
  Ints indptr(reqs + 1), last(reqs);
  fwdmeta_status_t status =
      FUZZ_CALL(fwdmeta_paged_indptr(step.seq_lens.data(), reqs, page, indptr.data(), last.data()));
  for (int64_t i = 0; status == FWDMETA_OK && i < reqs; ++i) {
    const int64_t pages = int64_t{indptr[i + 1]} - indptr[i];
    FUZZ_CHECK(step.seq_lens[i] == (pages == 0 ? 0 : (pages - 1) * page + last[i]));
  }
  const int64_t kernel = bytes.OneIn(8) ? bytes.Number() : bytes.Int(1, 4), times = bytes.Int(1, 4);
  if (kernel <= 64) {
    const int64_t block = bytes.OneIn(8) ? bytes.Int(-1, 64) : kernel > 0 ? kernel * times : 1;
    const int64_t each = kernel > 0 && block > 0 ? block / kernel : 0;
    Ints out(step.query_lens.size() * each);
    status = FUZZ_CALL(fwdmeta_expand_block_table(step.query_lens.data(), reqs, block, kernel, out.data()));
    for (size_t i = 0; status == FWDMETA_OK && i < out.size(); ++i) {
      const int64_t of = step.query_lens[i / each];
      FUZZ_CHECK(out[i] == (of < 0 ? -1 : of * each + static_cast<int64_t>(i) % each));
    }
  }

  std::vector<uint8_t> prefilling(reqs);
  for (uint8_t& flag : prefilling) flag = bytes.Byte();
  fwdmeta_length_split_args_t a = FWDMETA_LENGTH_SPLIT_ARGS_INITIALIZER;
  a.query_lens = step.query_lens.data();
  a.is_prefilling = bytes.OneIn(4) ? nullptr : prefilling.data();
  a.num_reqs = reqs;
  if (bytes.OneIn(2)) a.num_tokens = bytes.Number();
  a.threshold = bytes.OneIn(8) ? bytes.Number() : bytes.Int(1, 8);
  a.require_uniform = bytes.OneIn(16) ? bytes.Number32() : static_cast<int32_t>(bytes.Int(0, 1));
  a.treat_short_extends_as_decodes = bytes.OneIn(16) ? bytes.Number32() : static_cast<int32_t>(bytes.Int(0, 1));
  Sized<fwdmeta_length_split_args_t, 8> args(bytes, a);
  fwdmeta_batch_split_t split = FWDMETA_BATCH_SPLIT_INITIALIZER;
  status = FUZZ_CALL(fwdmeta_split_by_length(args.get(), &split));
  if (status == FWDMETA_OK && args.whole()) FUZZ_CHECK(split.num_decodes + split.num_prefills == reqs);
  Ints computed(reqs), prompts(reqs), order(reqs);
  for (int32_t& value : computed) value = bytes.OneIn(32) ? bytes.Number32() : bytes.Byte();
  for (int32_t& value : prompts) value = bytes.OneIn(32) ? bytes.Number32() : bytes.Byte();
  int32_t changed = 0;
  status = FUZZ_CALL(fwdmeta_reorder_by_length(step.query_lens.data(), computed.data(), prompts.data(), reqs,
                                               a.threshold, order.data(), &changed));
  if (status == FWDMETA_OK) {
    std::sort(order.begin(), order.end());
    for (int32_t i = 0; i < reqs; ++i) FUZZ_CHECK(order[i] == i);
  }

  fwdmeta_local_attention_args_t l = FWDMETA_LOCAL_ATTENTION_ARGS_INITIALIZER;
  l.query_lens = step.query_lens.data();
  l.seq_lens = step.seq_lens.data();
  l.num_reqs = reqs;
  l.block_size = bytes.OneIn(16) ? bytes.Number() : bytes.Int(1, 8);
  l.attn_chunk_size = bytes.OneIn(16)                         ? bytes.Number()
                      : l.block_size > 0 && l.block_size < 64 ? l.block_size * times
                                                              : 1;
  const int64_t width = bytes.Int(0, 6);
  Ints table(static_cast<size_t>(reqs * width), 3);
  if (!bytes.OneIn(4)) l.block_table = {table.data(), width, width, nullptr};
  const int64_t columns = l.block_size > 0 ? std::clamp<int64_t>(l.attn_chunk_size / l.block_size, 0, 64) : 0;
  int64_t count = -1;
  status = FUZZ_CALL(fwdmeta_local_attention(&l, 0, nullptr, nullptr, nullptr, nullptr, &count));
  if (count < 0 || count > 256) return;
  Ints queries(count), lengths(count), requests(count), tables(count * columns);
  const bool wants_table =
      l.block_table.data != nullptr && l.attn_chunk_size / std::max<int64_t>(l.block_size, 1) <= 64;
  const fwdmeta_status_t filled = FUZZ_CALL(fwdmeta_local_attention(
      &l, count, queries.data(), lengths.data(), wants_table ? tables.data() : nullptr, requests.data(), &count));
  if (filled != FWDMETA_OK) return;
  const auto sum = [](const Ints& values) { return std::accumulate(values.begin(), values.end(), int64_t{0}); };
  FUZZ_CHECK(sum(queries) == sum(step.query_lens) && std::is_sorted(requests.begin(), requests.end()));
  for (int64_t i = 0; i < count; ++i) {
    FUZZ_CHECK(queries[i] >= 1 && lengths[i] >= queries[i] && lengths[i] <= l.attn_chunk_size);
  }
}

// ---- contexts

using Value = std::variant<void*, int64_t, double>;

struct Context {
  enum State { kBuilding, kPushed, kPopped } state = kBuilding;
  fwdmeta_context_t handle = 0, predecessor = 0;
  int64_t max_slices = 1, max_values = 16, num_layers = 0, num_moe = 0;
  bool has_layers = false;
  std::map<std::string, Value> values;
  std::map<std::string, int64_t> fields;  // those with a plain number
  int64_t next_moe = 0, local_sizes = 0;
};

class Contexts {
 public:
  explicit Contexts(ByteReader& bytes) : bytes_(bytes) {}

  void Run() {
    CreateLayers();
    for (int op = 0; op < 48 && !bytes_.empty(); ++op) {
      switch (bytes_.Byte() % 12) {
        case 0:
          Create();
          break;
        case 1:
          Destroy();
          break;
        case 2:
        case 3:
          Push();
          break;
        case 4:
          Pop();
          break;
        case 5:
          Override();
          break;
        case 6:
          Reset();
          break;
        case 7:
          SetValue();
          break;
        case 8:
          GetValue();
          break;
        case 9:
          Fields();
          break;
        case 10:
          PerLayer();
          break;
        default:
          Cursor();
      }
      fwdmeta_context_t current = 1;
      const fwdmeta_status_t status = FUZZ_CALL(fwdmeta_context_current(&current));
      FUZZ_CHECK(current == current_ && status == (current_ == 0 ? FWDMETA_NOT_SET : FWDMETA_OK));
    }
    End();
  }

 private:
  void CreateLayers() {
    FUZZ_EXPECT(FWDMETA_OK, fwdmeta_layers_create(&layers_));
    for (int64_t i = bytes_.Int(0, 5); i > 0; --i) {
      const std::string name = bytes_.OneIn(8) ? bytes_.Text(4) : "layers." + std::to_string(bytes_.Int(0, 7));
      const bool moe = bytes_.OneIn(2);
      int64_t index = -1;
      const fwdmeta_status_t status = FUZZ_CALL(fwdmeta_layers_add(layers_, name.c_str(), this, moe, &index));
      const bool known = std::find(names_.begin(), names_.end(), name.c_str()) != names_.end();
      FUZZ_CHECK(status == (name.c_str()[0] == '\0' ? FWDMETA_INVALID_ARGUMENT
                            : known                 ? FWDMETA_ALREADY_EXISTS
                                                    : FWDMETA_OK));
      if (status != FWDMETA_OK) continue;
      FUZZ_CHECK(index == static_cast<int64_t>(names_.size()));
      names_.push_back(name.c_str());
      num_moe_ += moe;
    }
  }

  Context* Choose(fwdmeta_context_t* handle) {
    if (!contexts_.empty() && !bytes_.OneIn(16)) {
      Context& context = contexts_[bytes_.Int(0, static_cast<int64_t>(contexts_.size()) - 1)];
      *handle = context.handle;
      return &context;
    }
    *handle = bytes_.OneIn(2) ? dead_ : bytes_.OneIn(2) ? layers_ : 0;
    return nullptr;
  }
  Context* Find(fwdmeta_context_t handle) {
    for (Context& context : contexts_) {
      if (context.handle == handle) return &context;
    }
    return nullptr;
  }

  void Create() {
    if (contexts_.size() == 4) return;
    fwdmeta_context_config_t c = FWDMETA_CONTEXT_CONFIG_INITIALIZER;
    const bool has_layers = bytes_.OneIn(2);
    if (has_layers) c.layers = layers_;
    c.max_slices = bytes_.OneIn(8) ? bytes_.Number() : bytes_.Int(1, 4);
    c.max_values = bytes_.OneIn(8) ? bytes_.Number() : bytes_.Int(0, 4);
    if (bytes_.OneIn(16)) c.reserved = bytes_.Number32();
    Sized<fwdmeta_context_config_t> config(bytes_, c);
    Context context;
    const fwdmeta_status_t status = FUZZ_CALL(fwdmeta_context_create(config.get(), &context.handle));
    FUZZ_CHECK((status == FWDMETA_OK) == (context.handle != 0) && (config.readable() || status != FWDMETA_OK));
    if (status != FWDMETA_OK) return;
    if (!config.whole()) {
      FUZZ_EXPECT(FWDMETA_OK, fwdmeta_context_destroy(context.handle));
      return;
    }
    FUZZ_CHECK(c.max_slices >= 1 && c.max_slices <= FWDMETA_MAX_SLICES && c.max_values >= 0 && c.max_values <= 1024);
    context.max_slices = c.max_slices;
    context.max_values = c.max_values;
    context.has_layers = has_layers;
    context.num_layers = has_layers ? static_cast<int64_t>(names_.size()) : 0;
    context.num_moe = has_layers ? num_moe_ : 0;
    contexts_.push_back(context);
    if (has_layers) {
      FUZZ_EXPECT(FWDMETA_INVALID_ARGUMENT, fwdmeta_layers_add(layers_, "late", nullptr, 0, nullptr));
    }
  }

  void Destroy() {
    fwdmeta_context_t handle = 0;
    Context* context = Choose(&handle);
    const fwdmeta_status_t status = FUZZ_CALL(fwdmeta_context_destroy(handle));
    if (context == nullptr) {
      FUZZ_CHECK(status == (handle == 0 ? FWDMETA_OK : FWDMETA_INVALID_HANDLE));
      return;
    }
    FUZZ_CHECK(status == (context->state == Context::kPushed ? FWDMETA_BUSY : FWDMETA_OK));
    if (status != FWDMETA_OK) return;
    dead_ = handle;
    contexts_.erase(contexts_.begin() + (context - contexts_.data()));
  }

  // Whether a pushed context has been pushed upon another, which then cannot be popped.
  bool IsUnder(const Context& context) const {
    return std::any_of(contexts_.begin(), contexts_.end(), [&](const Context& other) {
      return other.handle != context.handle && other.state == Context::kPushed && other.predecessor == context.handle;
    });
  }

  void Push() {
    fwdmeta_context_t handle = 0;
    Context* context = Choose(&handle);
    const fwdmeta_status_t status = FUZZ_CALL(fwdmeta_context_push(handle));
    if (context == nullptr) {
      FUZZ_CHECK(status == FWDMETA_INVALID_HANDLE);
      return;
    }
    FUZZ_CHECK(status == (context->state == Context::kPushed ? FWDMETA_ALREADY_EXISTS : FWDMETA_OK));
    if (status != FWDMETA_OK) return;
    context->state = Context::kPushed;
    context->predecessor = current_;
    context->next_moe = context->local_sizes = 0;
    current_ = handle;
  }

  void Pop() {
    fwdmeta_context_t handle = 0;
    Context* context = Choose(&handle);
    const fwdmeta_status_t status = FUZZ_CALL(fwdmeta_context_pop(handle));
    if (context == nullptr) {
      FUZZ_CHECK(status == FWDMETA_INVALID_HANDLE);
    } else if (context->state != Context::kPushed) {
      FUZZ_CHECK(status == FWDMETA_NOT_SET);
    } else if (current_ != handle || IsUnder(*context)) {
      FUZZ_CHECK(status == FWDMETA_INVALID_ARGUMENT);
    } else {
      FUZZ_CHECK(status == FWDMETA_OK);
      context->state = Context::kPopped;
      current_ = context->predecessor;
    }
  }

  void Override() {
    fwdmeta_context_t handle = 0, previous = 1;
    Context* context = Choose(&handle);
    const fwdmeta_status_t status = FUZZ_CALL(fwdmeta_context_override(handle, &previous));
    if (context == nullptr && handle != 0) {
      FUZZ_CHECK(status == FWDMETA_INVALID_HANDLE);
    } else if (context != nullptr && context->state != Context::kPushed) {
      FUZZ_CHECK(status == (context->state == Context::kPopped ? FWDMETA_EXPIRED : FWDMETA_INVALID_ARGUMENT));
    } else {
      FUZZ_CHECK(status == FWDMETA_OK && previous == current_);
      current_ = handle;
    }
  }

  void Reset() {
    fwdmeta_context_t handle = 0;
    Context* context = Choose(&handle);
    const fwdmeta_status_t status = FUZZ_CALL(fwdmeta_context_reset(handle));
    if (context == nullptr) {
      FUZZ_CHECK(status == FWDMETA_INVALID_HANDLE);
      return;
    }
    FUZZ_CHECK(status == (context->state == Context::kPushed ? FWDMETA_BUSY : FWDMETA_OK));
    if (status != FWDMETA_OK) return;
    context->state = Context::kBuilding;
    context->values.clear();
    context->fields.clear();
  }

  // What a set or a get of good arguments is in a context's state.
  static fwdmeta_status_t Setting(const Context* context) {
    if (context == nullptr) return FWDMETA_INVALID_HANDLE;
    return context->state == Context::kBuilding ? FWDMETA_OK
           : context->state == Context::kPushed ? FWDMETA_INVALID_ARGUMENT
                                                : FWDMETA_EXPIRED;
  }
  static fwdmeta_status_t Getting(const Context* context) {
    if (context == nullptr) return FWDMETA_INVALID_HANDLE;
    return context->state == Context::kPopped ? FWDMETA_EXPIRED : FWDMETA_OK;
  }
  static fwdmeta_status_t Moving(const Context* context) {
    if (context == nullptr) return FWDMETA_INVALID_HANDLE;
    return context->state == Context::kPushed   ? FWDMETA_OK
           : context->state == Context::kPopped ? FWDMETA_EXPIRED
                                                : FWDMETA_INVALID_ARGUMENT;
  }

  std::string ReadName() { return std::string(1, static_cast<char>('a' + bytes_.Byte() % 6)); }

  void SetValue() {
    fwdmeta_context_t handle = 0;
    Context* context = Choose(&handle);
    const std::string name = ReadName();
    const int64_t number = bytes_.Number();
    Value value;
    fwdmeta_status_t status;
    switch (bytes_.Byte() % 4) {
      case 0:
        value = static_cast<void*>(this);
        status = FUZZ_CALL(fwdmeta_context_set_pointer(handle, name.c_str(), this));
        break;
      case 1:
        value = number;
        status = FUZZ_CALL(fwdmeta_context_set_int64(handle, name.c_str(), number));
        break;
      case 2:
        value = static_cast<double>(number);
        status = FUZZ_CALL(fwdmeta_context_set_double(handle, name.c_str(), static_cast<double>(number)));
        break;
      default: {
        const std::string any = bytes_.OneIn(2) ? bytes_.Text(8) : std::string(bytes_.Int(60, 70), 'x');
        if (std::strlen(any.c_str()) < 2) return;
        status = FUZZ_CALL(fwdmeta_context_get_int64(handle, any.c_str(), &std::get<int64_t>(value = int64_t{0})));
        FUZZ_CHECK(status != FWDMETA_OK);
        return;
      }
    }
    if (Setting(context) != FWDMETA_OK) {
      FUZZ_CHECK(status == Setting(context));
    } else if (context->values.count(name) == 0 &&
               static_cast<int64_t>(context->values.size()) == context->max_values) {
      FUZZ_CHECK(status == FWDMETA_CAPACITY_EXCEEDED);
    } else {
      FUZZ_CHECK(status == FWDMETA_OK);
      context->values[name] = value;
    }
  }

  void GetValue() {
    fwdmeta_context_t handle = 0;
    Context* context = Choose(&handle);
    const std::string name = ReadName();
    void* pointer = nullptr;
    int64_t number = 0;
    double real = 0;
    const size_t kind = bytes_.Byte() % 3;
    const fwdmeta_status_t status = kind == 0   ? FUZZ_CALL(fwdmeta_context_get_pointer(handle, name.c_str(), &pointer))
                                    : kind == 1 ? FUZZ_CALL(fwdmeta_context_get_int64(handle, name.c_str(), &number))
                                                : FUZZ_CALL(fwdmeta_context_get_double(handle, name.c_str(), &real));
    if (Getting(context) != FWDMETA_OK) {
      FUZZ_CHECK(status == Getting(context));
      return;
    }
    const auto value = context->values.find(name);
    if (value == context->values.end()) {
      FUZZ_CHECK(status == FWDMETA_NOT_FOUND);
    } else if (value->second.index() != kind) {
      FUZZ_CHECK(status == FWDMETA_INVALID_ARGUMENT);
    } else {
      const Value got = kind == 0 ? Value(pointer) : kind == 1 ? Value(number) : Value(real);
      FUZZ_CHECK(status == FWDMETA_OK && got == value->second);
    }
  }

  // A field that holds one number: set, or compared with what was set.
  template <class Set, class Get>
  void Field(const std::string& name, bool good, int64_t value, Set set, Get get) {
    fwdmeta_context_t handle = 0;
    Context* context = Choose(&handle);
    if (bytes_.OneIn(2)) {
      const fwdmeta_status_t status = FUZZ_CALL(set(handle));
      if (context == nullptr) {
        FUZZ_CHECK(status == FWDMETA_INVALID_HANDLE);
      } else if (!good) {
        FUZZ_CHECK(status == FWDMETA_INVALID_ARGUMENT);
      } else {
        FUZZ_CHECK(status == Setting(context));
        if (status == FWDMETA_OK) context->fields[name] = value;
      }
      return;
    }
    int64_t got = 0;
    const fwdmeta_status_t status = FUZZ_CALL(get(handle, &got));
    if (Getting(context) != FWDMETA_OK) {
      FUZZ_CHECK(status == Getting(context));
    } else {
      const auto held = context->fields.find(name);
      FUZZ_CHECK(status == (held == context->fields.end() ? FWDMETA_NOT_SET : FWDMETA_OK));
      if (status == FWDMETA_OK) FUZZ_CHECK(got == held->second);
    }
  }

  void Fields() {
    const int32_t number = bytes_.OneIn(4) ? bytes_.Number32() : static_cast<int32_t>(bytes_.Int(0, 3));
    switch (bytes_.Byte() % 5) {
      case 0:
        return Field(
            "mode", number >= 0 && number <= 2, number,
            [&](auto handle) { return fwdmeta_context_set_runtime_mode(handle, number); },
            [](auto handle, int64_t* out) {
              int32_t mode = 0;
              const fwdmeta_status_t status = fwdmeta_context_get_runtime_mode(handle, &mode);
              *out = mode;
              return status;
            });
      case 1:
        return Field(
            "skip", number == 0 || number == 1, number,
            [&](auto handle) { return fwdmeta_context_set_skip_compiled(handle, number); },
            [](auto handle, int64_t* out) {
              int32_t skip = 0;
              const fwdmeta_status_t status = fwdmeta_context_get_skip_compiled(handle, &skip);
              *out = skip;
              return status;
            });
      case 2:
        return Field(
            "descriptor", true, number,
            [&](auto handle) {
              const fwdmeta_batch_descriptor_t descriptor = {number, -1, 0, 0, 0};
              return fwdmeta_context_set_descriptor(handle, &descriptor);
            },
            [](auto handle, int64_t* out) {
              fwdmeta_batch_descriptor_t descriptor = {};
              const fwdmeta_status_t status = fwdmeta_context_get_descriptor(handle, &descriptor);
              *out = descriptor.num_tokens;
              return status;
            });
      case 3:
        return Field(
            "padding", number >= 0, number,
            [&](auto handle) { return fwdmeta_context_set_is_padding(handle, kPadding, number); },
            [](auto handle, int64_t* out) {
              const uint8_t* padding = nullptr;
              return fwdmeta_context_get_is_padding(handle, &padding, out);
            });
      default:
        return Field(
            "dp", number >= 0 && number < 4, number,
            [&](auto handle) {
              fwdmeta_dp_metadata_t metadata = FWDMETA_DP_METADATA_INITIALIZER;
              metadata.dp_size = 4;
              metadata.dp_rank = number;
              metadata.num_tokens = kCounts;
              return fwdmeta_context_set_dp_metadata(handle, &metadata);
            },
            [](auto handle, int64_t* out) {
              fwdmeta_dp_metadata_t metadata = FWDMETA_DP_METADATA_INITIALIZER;
              const fwdmeta_status_t status = fwdmeta_context_get_dp_metadata(handle, &metadata);
              *out = metadata.dp_rank;
              return status;
            });
    }
  }

  void PerLayer() {
    fwdmeta_context_t handle = 0;
    Context* context = Choose(&handle);
    const int64_t layer = bytes_.OneIn(8) ? bytes_.Number() : bytes_.Int(-1, 5);
    const int64_t slice = bytes_.OneIn(8) ? bytes_.Number() : bytes_.Int(0, 3);
    const bool inside = context != nullptr && layer >= FWDMETA_ALL_LAYERS && layer < context->num_layers &&
                        slice >= 0 && slice < context->max_slices;
    static const int64_t kSlots[4] = {};
    const fwdmeta_attn_metadata_t metadata = {kSlots, 0};
    fwdmeta_attn_metadata_t got = {};
    const int64_t* slots = nullptr;
    int64_t count = 0;
    const auto expect = [&](fwdmeta_status_t state, fwdmeta_status_t status) {
      FUZZ_CHECK(status == (state != FWDMETA_OK ? state
                            : inside            ? FWDMETA_OK
                                                : FWDMETA_OUT_OF_RANGE) ||
                 (state == FWDMETA_OK && inside && status == FWDMETA_NOT_SET));
    };
    switch (bytes_.Byte() % 5) {
      case 0:
        return expect(Setting(context), FUZZ_CALL(fwdmeta_context_set_attn_metadata(handle, layer, slice, &metadata)));
      case 1: {
        const fwdmeta_status_t status = FUZZ_CALL(fwdmeta_context_get_attn_metadata(handle, layer, slice, &got));
        if (status == FWDMETA_OK) FUZZ_CHECK(got.pointer == kSlots);
        return expect(Getting(context), status);
      }
      case 2:
        return expect(Setting(context),
                      FUZZ_CALL(fwdmeta_context_set_slot_mapping(handle, layer, slice, kSlots, bytes_.Int(0, 4))));
      case 3: {
        const fwdmeta_status_t status =
            FUZZ_CALL(fwdmeta_context_get_slot_mapping(handle, layer, slice, &slots, &count));
        if (status == FWDMETA_OK) FUZZ_CHECK(slots == kSlots && count >= 0 && count <= 4);
        return expect(Getting(context), status);
      }
      default: {
        const char* name = nullptr;
        const fwdmeta_status_t status = FUZZ_CALL(fwdmeta_context_get_layer(handle, layer, &name, nullptr));
        if (Getting(context) != FWDMETA_OK) {
          FUZZ_CHECK(status == Getting(context));
        } else if (!context->has_layers) {
          FUZZ_CHECK(status == FWDMETA_NOT_SET);
        } else {
          const bool known = layer >= 0 && layer < context->num_layers;
          FUZZ_CHECK(status == (known ? FWDMETA_OK : FWDMETA_OUT_OF_RANGE));
          if (known) FUZZ_CHECK(names_[layer] == name);
        }
      }
    }
  }

  void Cursor() {
    fwdmeta_context_t handle = 0;
    Context* context = Choose(&handle);
    static const int64_t kSizes[4] = {1, 2, 3, 4};
    const int64_t* sizes = nullptr;
    int64_t out = 0;
    const int which = bytes_.Byte() % 4;
    const fwdmeta_status_t status = which == 0   ? FUZZ_CALL(fwdmeta_context_next_moe_layer(handle, &out))
                                    : which == 1 ? FUZZ_CALL(fwdmeta_context_push_local_sizes(handle, kSizes, 4))
                                    : which == 2 ? FUZZ_CALL(fwdmeta_context_pop_local_sizes(handle))
                                                 : FUZZ_CALL(fwdmeta_context_get_local_sizes(handle, &sizes, &out));
    if (Moving(context) != FWDMETA_OK) {
      FUZZ_CHECK(status == Moving(context));
    } else if (which == 0) {
      FUZZ_CHECK(status == (!context->has_layers                    ? FWDMETA_NOT_SET
                            : context->next_moe == context->num_moe ? FWDMETA_OUT_OF_RANGE
                                                                    : FWDMETA_OK));
      context->next_moe += status == FWDMETA_OK;
    } else if (which == 1) {
      FUZZ_CHECK(status == (context->local_sizes == 8 ? FWDMETA_CAPACITY_EXCEEDED : FWDMETA_OK));
      context->local_sizes += status == FWDMETA_OK;
    } else {
      FUZZ_CHECK(status == (context->local_sizes == 0 ? FWDMETA_NOT_SET : FWDMETA_OK));
      if (which == 2) context->local_sizes -= status == FWDMETA_OK;
    }
  }

  // Pops in the order that the predecessors give, made current one by one, and leaves the thread as it was found.
  void End() {
    for (bool popped = true; popped;) {
      popped = false;
      for (Context& context : contexts_) {
        if (context.state != Context::kPushed || IsUnder(context)) continue;
        FUZZ_EXPECT(FWDMETA_OK, fwdmeta_context_override(context.handle, nullptr));
        FUZZ_EXPECT(FWDMETA_OK, fwdmeta_context_pop(context.handle));
        context.state = Context::kPopped;
        popped = true;
      }
    }
    FUZZ_EXPECT(FWDMETA_OK, fwdmeta_context_override(0, nullptr));
    const bool layers_first = bytes_.OneIn(2);
    if (layers_first) FUZZ_EXPECT(FWDMETA_OK, fwdmeta_layers_destroy(layers_));
    for (const Context& context : contexts_) FUZZ_EXPECT(FWDMETA_OK, fwdmeta_context_destroy(context.handle));
    if (!layers_first) FUZZ_EXPECT(FWDMETA_OK, fwdmeta_layers_destroy(layers_));
  }

  ByteReader& bytes_;
  fwdmeta_layers_t layers_ = 0;
  std::vector<std::string> names_;
  int64_t num_moe_ = 0;
  std::vector<Context> contexts_;
  fwdmeta_context_t current_ = 0, dead_ = 0;
};

void Run(ByteReader bytes) {
  switch (bytes.Byte() % 8) {
    case 0:
      return Dispatch(bytes);
    case 1:
      return AnyDispatcher(bytes);
    case 2:
      return Fills(bytes);
    case 3:
      return Slices(bytes);
    case 4:
      return Slicer(bytes);
    case 5:
      return Helpers(bytes);
    default:
      return Contexts(bytes).Run();
  }
}

}  // namespace
}  // namespace fwdmeta_fuzz

extern "C" int LLVMFuzzerInitialize(int*, char***) { return fwdmeta_log_set_level(FWDMETA_LOG_ERROR); }

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  fwdmeta_fuzz::Run({data, size});
  return 0;
}
