// The C++ layer of the forward context: owners and views, scope guards, and statuses as exceptions with the library's
// message. What the calls compute is tested in C; here each is made once, with numbers of the contract.
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <fwdmeta/context.hpp>
#include <new>
#include <stdexcept>
#include <string>
#include <thread>
#include <type_traits>
#include <unordered_map>
#include <vector>

// What this thread allocates, for what must not.
namespace {
thread_local int64_t allocations = 0;
}
__attribute__((noinline)) void* operator new(std::size_t size) {
  ++allocations;
  if (void* memory = std::malloc(size)) return memory;
  throw std::bad_alloc();
}
__attribute__((noinline)) void operator delete(void* memory) noexcept { std::free(memory); }
__attribute__((noinline)) void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }

namespace {

using fwdmeta::Agreement;
using fwdmeta::Context;
using fwdmeta::ContextConfig;
using fwdmeta::ContextView;
using fwdmeta::Dispatcher;
using fwdmeta::Error;
using fwdmeta::Layers;
using fwdmeta::ScopedContext;
using fwdmeta::ScopedLocalSizes;
using fwdmeta::ScopedOverride;
using fwdmeta::Slices;
using fwdmeta::Span;
using fwdmeta::Transport;

using Numbers = std::vector<int64_t>;

// The call throws an Error of this status whose text is the library's own and names `part`.
template <class Call>
void ExpectError(fwdmeta_status_t status, const std::string& part, Call call) {
  try {
    call();
    FAIL() << "no " << fwdmeta_status_name(status);
  } catch (const Error& error) {
    EXPECT_STREQ(fwdmeta_status_name(status), fwdmeta_status_name(error.status())) << error.what();
    EXPECT_EQ(std::string(fwdmeta_status_name(status)) + ": " + fwdmeta_last_error(), error.what());
    EXPECT_NE(std::string::npos, std::string(error.what()).find(part)) << error.what();
  }
}

template <class T>
std::vector<std::remove_const_t<T>> Copy(Span<T> span) {
  return {span.begin(), span.end()};
}

fwdmeta_context_t CurrentHandle() {
  const std::optional<ContextView> current = ContextView::try_current();
  return current ? current->handle() : 0;
}

int objects[4];  // what borrowed pointers point at

const int64_t kSizes[] = {1, 2, 4, 8};
fwdmeta::DispatcherConfig DispatcherConfigOfFourSizes() {
  fwdmeta::DispatcherConfig config;
  config.mode = FWDMETA_GRAPH_FULL_AND_PIECEWISE;
  config.max_num_seqs = 8;
  config.max_num_tokens = 64;
  config.capture_sizes = kSizes;
  config.num_capture_sizes = 4;
  return config;
}
Dispatcher CapturedDispatcher() {
  Dispatcher dispatcher(DispatcherConfigOfFourSizes());
  dispatcher.mark_all_captured();
  return dispatcher;
}
fwdmeta::DispatchArgs Args(int64_t num_tokens, int64_t num_reqs, int64_t query_len = 0) {
  fwdmeta::DispatchArgs args;
  args.num_tokens = num_tokens;
  args.num_reqs = num_reqs;
  args.query_len = query_len;
  return args;
}

// Three layers, of which the first and the last are MoE layers.
Layers ThreeLayers() {
  Layers layers = Layers::make();
  layers.add("0.mlp", &objects[0], true);
  layers.add("0.attn", &objects[1]);
  layers.add("1.mlp", &objects[2], true);
  return layers;
}
Context NewContext(const Layers& layers = Layers(), int64_t max_slices = 1) {
  ContextConfig config;
  config.layers = layers.handle();
  config.max_slices = max_slices;
  return Context(config);
}

// A gather of one rank alone.
struct OwnRow {
  int calls = 0;
  fwdmeta_status_t operator()(const void* send, void* recv, size_t bytes, int64_t) noexcept {
    ++calls;
    std::memcpy(recv, send, bytes);
    return FWDMETA_OK;
  }
};

// ---- spans

TEST(Span, IsMadeOfContainersArraysAndOtherSpans) {
  const auto total = [](Span<const int64_t> numbers) {
    int64_t sum = 0;
    for (int64_t number : numbers) sum += number;
    return sum;
  };
  Numbers numbers = {1, 2, 3};
  const int64_t array[] = {4, 5};
  EXPECT_EQ(6, total(numbers));
  EXPECT_EQ(9, total(array));
  EXPECT_EQ(6, total(Span<int64_t>(numbers)));
  EXPECT_EQ(0, total({}));
  EXPECT_EQ(numbers.data(), Span<int64_t>(numbers).data());
  static_assert(!std::is_convertible_v<const Numbers&, Span<int64_t>>, "constness is not lost");
  static_assert(!std::is_convertible_v<std::vector<int32_t>&, Span<const int64_t>>, "nor the type changed");
  static_assert(std::is_trivially_copyable_v<Span<int64_t>>);
}

// ---- modes and keys

TEST(Modes, HaveTheirPredicates) {
  const fwdmeta::GraphModeInfo info = fwdmeta::graph_mode_info(FWDMETA_GRAPH_FULL_AND_PIECEWISE);
  EXPECT_EQ(FWDMETA_GRAPH_FULL, info.decode_mode);
  EXPECT_EQ(FWDMETA_GRAPH_PIECEWISE, info.mixed_mode);
  EXPECT_EQ(1, info.separate_routine);
  EXPECT_EQ(0, info.is_runtime_mode);
  ExpectError(FWDMETA_INVALID_ARGUMENT, "0x4d", [] { (void)fwdmeta::graph_mode_info(0x4d); });
}

TEST(Modes, ResolveToWhatCanBeHad) {
  const fwdmeta::ResolvedMode mode =
      fwdmeta::resolve_graph_mode(FWDMETA_GRAPH_FULL, FWDMETA_SUPPORT_UNIFORM_BATCH, 3, true);
  EXPECT_EQ(FWDMETA_GRAPH_FULL_AND_PIECEWISE, mode.mode);
  EXPECT_EQ(FWDMETA_RESOLVE_NO_FULL_MIXED, mode.reason);
  EXPECT_EQ(FWDMETA_GRAPH_FULL_DECODE_ONLY,
            fwdmeta::resolve_graph_mode(FWDMETA_GRAPH_FULL, FWDMETA_SUPPORT_UNIFORM_BATCH, 3, false).mode);
  ExpectError(FWDMETA_UNSUPPORTED, "NEVER",
              [] { (void)fwdmeta::resolve_graph_mode(FWDMETA_GRAPH_FULL, FWDMETA_SUPPORT_NEVER, 1, true); });
}

TEST(Descriptors, AreKeysOfMaps) {
  const fwdmeta_batch_descriptor_t full = {4, 4, 1, 0, 0}, piecewise = {4, -1, 0, 0, 0};
  EXPECT_EQ(static_cast<std::size_t>(0xac87def485f34e44), fwdmeta::BatchDescriptorHash()(full));
  std::unordered_map<fwdmeta_batch_descriptor_t, int, fwdmeta::BatchDescriptorHash, fwdmeta::BatchDescriptorEqual> map;
  map[full] = 1;
  map[piecewise] = 2;
  EXPECT_EQ(2u, map.size());
  EXPECT_EQ(1, map.at({4, 4, 1, 0, 0}));
  EXPECT_EQ(0u, map.count({4, 4, 1, 1, 1}));
}

// ---- dispatcher

TEST(Dispatcher, DispatchesWhatIsCaptured) {
  Dispatcher dispatcher(DispatcherConfigOfFourSizes());
  EXPECT_EQ((Numbers{1, 2, 4, 8}), dispatcher.sizes());
  const std::vector<fwdmeta_graph_key_t> keys = dispatcher.keys();
  ASSERT_EQ(8u, keys.size());
  EXPECT_EQ(FWDMETA_GRAPH_PIECEWISE, keys[0].mode);
  EXPECT_EQ(8, keys[0].descriptor.num_tokens);
  EXPECT_EQ(FWDMETA_GRAPH_FULL, keys[7].mode);
  EXPECT_EQ(1, keys[7].descriptor.num_tokens);

  EXPECT_EQ(FWDMETA_GRAPH_NONE, dispatcher.dispatch(Args(3, 3, 1)).mode);
  dispatcher.mark_captured({FWDMETA_GRAPH_FULL, {4, 4, 1, 0, 0}});
  EXPECT_EQ(1, dispatcher.info().num_captured);
  const fwdmeta::DispatchResult result = dispatcher.dispatch(Args(3, 3, 1));
  EXPECT_EQ(FWDMETA_GRAPH_FULL, result.mode);
  EXPECT_TRUE(fwdmeta::BatchDescriptorEqual()({4, 4, 1, 0, 0}, result.descriptor));
  EXPECT_EQ(FWDMETA_GRAPH_NONE, dispatcher.dispatch(Args(3, 2)).mode);
  dispatcher.mark_all_captured();
  EXPECT_EQ(8, dispatcher.info().num_captured);
  EXPECT_EQ(FWDMETA_GRAPH_PIECEWISE, dispatcher.dispatch(Args(3, 2)).mode);
}

TEST(Dispatcher, Throws) {
  fwdmeta::DispatcherConfig config = DispatcherConfigOfFourSizes();
  config.max_num_seqs = 0;
  ExpectError(FWDMETA_INVALID_ARGUMENT, "max_num_seqs", [&] { Dispatcher refused(config); });
  Dispatcher dispatcher = CapturedDispatcher();
  ExpectError(FWDMETA_INVALID_ARGUMENT, "9", [&] { (void)dispatcher.dispatch(Args(9, 9)); });
  fwdmeta::DispatchArgs args = Args(9, 8);
  args.allowed_modes = FWDMETA_ALLOW_FULL;
  ExpectError(FWDMETA_NO_GRAPH, "9", [&] { (void)dispatcher.dispatch(args); });
  ExpectError(FWDMETA_NOT_FOUND, "3", [&] { dispatcher.mark_captured({FWDMETA_GRAPH_FULL, {3, 3, 1, 0, 0}}); });
  ExpectError(FWDMETA_INVALID_HANDLE, "0x0", [] { (void)Dispatcher().dispatch(Args(1, 1)); });
  ExpectError(FWDMETA_INVALID_HANDLE, "0x0", [] { (void)Dispatcher().keys(); });
}

TEST(Dispatcher, ArgumentsComeFromLengths) {
  const int32_t encoder[] = {0, 9, 0}, this_time[] = {2, 0, 2};
  fwdmeta::DispatchArgs args;
  args.num_active_loras = 1;
  fwdmeta::dispatch_args_from_lengths(encoder, this_time, 3, 2, args);
  EXPECT_EQ(4, args.num_tokens);
  EXPECT_EQ(2, args.num_reqs);
  EXPECT_EQ(2, args.query_len);
  EXPECT_EQ(1, args.num_active_loras);
  const int32_t negative[] = {2, -5, 2};
  ExpectError(FWDMETA_INVALID_BATCH, "-5", [&] { fwdmeta::dispatch_args_from_lengths(encoder, negative, 3, 2, args); });
}

TEST(Dispatcher, MakesDummies) {
  int32_t this_time[3] = {};
  int64_t slots[8] = {};
  fwdmeta::DummyBatch dummy;
  dummy.num_reqs = 3;
  dummy.num_tokens = 8;
  dummy.query_len = 3;
  dummy.seq_lens_this_time = this_time;
  dummy.slot_mapping = slots;
  fwdmeta::make_dummy(dummy);
  EXPECT_EQ((std::vector<int32_t>{2, 3, 3}), Copy(Span<int32_t>(this_time)));
  EXPECT_EQ(Numbers(8, -1), Copy(Span<int64_t>(slots)));
  dummy.num_reqs = 9;
  ExpectError(FWDMETA_INVALID_ARGUMENT, "9", [&] { fwdmeta::make_dummy(dummy); });
}

// ---- ranks

TEST(Ranks, HaveMetadataAndSizes) {
  const Numbers table = {5, 3};
  fwdmeta::DpMetadataArgs args;
  args.dp_size = 2;
  args.dp_rank = 1;
  args.num_tokens = 3;
  args.table = table.data();
  const fwdmeta::DpMetadata metadata = fwdmeta::make_dp_metadata(args);
  EXPECT_EQ(5, metadata.max_tokens);
  EXPECT_EQ(8, metadata.sum_tokens);
  EXPECT_EQ(table.data(), metadata.table().data());
  EXPECT_EQ(table, Copy(metadata.table()));
  args.num_tokens = 4;
  ExpectError(FWDMETA_INVALID_ARGUMENT, "4", [&] { (void)fwdmeta::make_dp_metadata(args); });

  Numbers sizes(4);
  fwdmeta::sp_sizes(table, 2, sizes.data());
  EXPECT_EQ((Numbers{3, 3, 2, 2}), sizes);
  fwdmeta::cu_sizes(sizes, sizes.data());
  EXPECT_EQ((Numbers{3, 6, 8, 10}), sizes);
  const int64_t rows[] = {500, 200, 256};
  int64_t chunk[3];
  fwdmeta::chunk_sizes(rows, 256, 1, chunk);
  EXPECT_EQ((Numbers{244, 1, 1}), Copy(Span<int64_t>(chunk)));
  EXPECT_EQ(2, fwdmeta::num_chunks(rows, 256));
  ExpectError(FWDMETA_INVALID_ARGUMENT, "sp_size", [&] { fwdmeta::sp_sizes(table, 0, sizes.data()); });
  ExpectError(FWDMETA_INVALID_ARGUMENT, "", [&] { fwdmeta::cu_sizes({}, sizes.data()); });
  ExpectError(FWDMETA_INVALID_ARGUMENT, "-1", [&] { fwdmeta::chunk_sizes(rows, 256, -1, chunk); });
  ExpectError(FWDMETA_INVALID_ARGUMENT, "max_chunk", [&] { (void)fwdmeta::num_chunks(rows, 0); });
}

TEST(Ranks, ShardTokens) {
  int64_t sizes[3], starts[3], live[3];
  uint8_t mask[9];
  fwdmeta::shard_sizes(7, 3, false, sizes, starts);
  EXPECT_EQ((Numbers{3, 2, 2}), Copy(Span<int64_t>(sizes)));
  EXPECT_EQ((Numbers{0, 3, 5}), Copy(Span<int64_t>(starts)));
  fwdmeta::shard_sizes(7, 3, true, sizes, nullptr, live, mask);
  EXPECT_EQ((Numbers{3, 3, 3}), Copy(Span<int64_t>(sizes)));
  EXPECT_EQ((Numbers{3, 3, 1}), Copy(Span<int64_t>(live)));
  EXPECT_EQ((std::vector<uint8_t>{1, 1, 1, 1, 1, 1, 1, 0, 0}), Copy(Span<uint8_t>(mask)));
  ExpectError(FWDMETA_INVALID_ARGUMENT, "num_ranks", [&] { fwdmeta::shard_sizes(7, 0, false, sizes); });
}

// Two ranks of decodes, as many as given.
std::vector<fwdmeta_rank_row_t> TwoRows(const Dispatcher& dispatcher, int64_t first, int64_t second) {
  std::vector<fwdmeta_rank_row_t> rows(2);
  for (fwdmeta_rank_row_t& row : rows) {
    row.config = dispatcher.info().config_hash;
    row.max_mode = FWDMETA_GRAPH_FULL;
    row.query_len = 1;
    row.num_tokens = row.num_reqs = &row == &rows[0] ? first : second;
  }
  return rows;
}

TEST(Ranks, Agree) {
  const Dispatcher dispatcher = CapturedDispatcher();
  std::vector<fwdmeta_rank_row_t> rows = TwoRows(dispatcher, 2, 3);
  int64_t num_tokens[2];
  const Agreement agreement = fwdmeta::agree(dispatcher, rows, num_tokens);
  EXPECT_EQ(FWDMETA_GRAPH_FULL, agreement.mode);
  EXPECT_EQ(4, agreement.descriptor.num_tokens);
  EXPECT_EQ((Numbers{4, 4}), Copy(Span<int64_t>(num_tokens)));
  EXPECT_EQ(0, fwdmeta::agree(dispatcher, rows).sliced);
  rows[0].wants_slices = rows[1].wants_slices = 1;
  rows[0].num_tokens = rows[0].num_reqs = 3;
  EXPECT_EQ(1, fwdmeta::agree(dispatcher, rows, nullptr, 2).sliced);
  ExpectError(FWDMETA_INVALID_ARGUMENT, "num_slices", [&] { (void)fwdmeta::agree(dispatcher, rows, nullptr, 0); });
}

TEST(Ranks, MismatchNamesTheRank) {
  const Dispatcher dispatcher = CapturedDispatcher();
  std::vector<fwdmeta_rank_row_t> rows = TwoRows(dispatcher, 2, 3);
  rows[1].step = 7;
  try {
    (void)fwdmeta::agree(dispatcher, rows);
    FAIL() << "no exception";
  } catch (const fwdmeta::RankMismatch& mismatch) {
    EXPECT_EQ(1, mismatch.rank());
  }
  ExpectError(FWDMETA_RANK_MISMATCH, "7", [&] { (void)fwdmeta::agree(dispatcher, rows); });
}

// ---- transports

// Two ranks of this process: each writes its row and waits for the other's.
TEST(Transport, TakesAnyFunctionObject) {
  const Dispatcher dispatcher = CapturedDispatcher();
  const std::vector<fwdmeta_rank_row_t> rows = TwoRows(dispatcher, 2, 5);
  fwdmeta_rank_row_t sent[2];
  std::atomic<int> here{0};
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < 2; ++rank) {
    ranks.emplace_back([&, rank] {
      const auto gather = [&](const void* send, void* recv, size_t bytes, int64_t deadline_ns) noexcept {
        EXPECT_EQ(INT64_MAX, deadline_ns);
        std::memcpy(&sent[rank], send, bytes);
        ++here;
        while (here != 2) std::this_thread::yield();
        std::memcpy(recv, sent, 2 * bytes);
        return fwdmeta_status_t{FWDMETA_OK};
      };
      Transport transport = Transport::over(gather, 2, rank);
      int64_t num_tokens[2] = {};
      const Agreement agreement = transport.agree(dispatcher, rows[static_cast<size_t>(rank)], num_tokens);
      EXPECT_EQ(FWDMETA_GRAPH_FULL, agreement.mode);
      EXPECT_EQ((Numbers{8, 8}), Copy(Span<int64_t>(num_tokens)));
    });
  }
  for (std::thread& rank : ranks) rank.join();
}

TEST(Transport, BorrowsTheObject) {
  const Dispatcher dispatcher = CapturedDispatcher();
  const fwdmeta_rank_row_t row = TwoRows(dispatcher, 2, 2)[0];
  OwnRow gather;
  Transport transport = Transport::over(gather, 1, 0);
  EXPECT_EQ(4, transport.agree(dispatcher, TwoRows(dispatcher, 3, 0)[0]).descriptor.num_tokens);
  Transport moved = std::move(transport);
  EXPECT_EQ(2, moved.agree(dispatcher, row).descriptor.num_tokens);
  EXPECT_EQ(2, gather.calls);
  ExpectError(FWDMETA_INVALID_HANDLE, "0x0", [&] { (void)transport.agree(dispatcher, row); });
}

TEST(Transport, ThrowsTheStatusOfTheGather) {
  const Dispatcher dispatcher = CapturedDispatcher();
  const fwdmeta_rank_row_t row = TwoRows(dispatcher, 2, 2)[0];
  int64_t deadline = 0;
  const auto gather = [&deadline](const void*, void*, size_t, int64_t deadline_ns) noexcept {
    deadline = deadline_ns;
    return fwdmeta_status_t{FWDMETA_TIMEOUT};
  };
  Transport transport = Transport::over(gather, 2, 1);
  ExpectError(FWDMETA_TIMEOUT, "rank 1", [&] { (void)transport.agree(dispatcher, row, nullptr, 1, 1000); });
  EXPECT_LT(deadline, INT64_MAX);
  const auto mismatch = [](const void* send, void* recv, size_t bytes, int64_t) noexcept {
    fwdmeta_rank_row_t other;
    std::memcpy(&other, send, bytes);
    other.config ^= 1;
    std::memcpy(recv, send, bytes);
    std::memcpy(static_cast<char*>(recv) + bytes, &other, bytes);
    return fwdmeta_status_t{FWDMETA_OK};
  };
  Transport differs = Transport::over(mismatch, 2, 0);
  try {
    (void)differs.agree(dispatcher, row);
    FAIL() << "no exception";
  } catch (const fwdmeta::RankMismatch& error) {
    EXPECT_EQ(1, error.rank());
  }
  ExpectError(FWDMETA_INVALID_ARGUMENT, "rank", [&] { (void)Transport::over(gather, 2, 2); });
}

TEST(Transport, OverNcclNeedsThePlugin) {
  ExpectError(FWDMETA_UNAVAILABLE, "/nowhere/libfwdmeta_nccl.so.1",
              [] { (void)Transport::over_nccl(&objects, nullptr, 1, 0, "/nowhere/libfwdmeta_nccl.so.1"); });
}

// ---- slices

TEST(Slices, ArePlanned) {
  const int32_t query_lens[] = {10, 6}, seq_lens[] = {20, 6};
  fwdmeta::SliceArgs args;
  args.query_lens = query_lens;
  args.seq_lens = seq_lens;
  args.num_reqs = 2;
  args.num_slices = 2;
  const Slices slices = fwdmeta::plan_slices(args);
  ASSERT_EQ(2u, slices.size());
  EXPECT_EQ(8, slices[0].end_token);
  EXPECT_EQ(1, slices[0].end_req);
  EXPECT_EQ(2, slices[1].end_req);
  int32_t total = 0;
  for (const fwdmeta_slice_t& slice : slices) total += slice.num_tokens;
  EXPECT_EQ(16, total);

  int32_t starts[3], lens[2], computed[2];
  fwdmeta::slice_lengths(args, slices[1], starts, lens, computed);
  EXPECT_EQ((std::vector<int32_t>{0, 2, 8}), Copy(Span<int32_t>(starts)));
  EXPECT_EQ((std::vector<int32_t>{20, 6}), Copy(Span<int32_t>(lens)));
  EXPECT_EQ((std::vector<int32_t>{18, 0}), Copy(Span<int32_t>(computed)));
  ExpectError(FWDMETA_INVALID_ARGUMENT, "", [&] {
    fwdmeta::slice_lengths(args, {0, 1, 3, 4, 1, 0}, starts, lens, computed);
  });

  // Request 0's pages are 4 of positions 0..15 and 5 of 16..31; slice 1 reads what slice 0 writes.
  const int32_t pages[] = {4, 5, 6, -1};
  const fwdmeta::SliceConflict conflict = fwdmeta::slices_conflict(args, slices, {pages, 2, 2, nullptr}, 16);
  EXPECT_EQ(1, conflict.conflict);
  EXPECT_EQ(0, conflict.cross_request);
  EXPECT_EQ(1, conflict.reader);
  EXPECT_EQ(0, conflict.writer);
  EXPECT_EQ(4, conflict.page);
  ExpectError(FWDMETA_INVALID_ARGUMENT, "block_size", [&] {
    (void)fwdmeta::slices_conflict(args, slices, {pages, 2, 2, nullptr}, 0);
  });

  args.num_slices = 17;
  ExpectError(FWDMETA_INVALID_ARGUMENT, "17", [&] { (void)fwdmeta::plan_slices(args); });
}

TEST(Core, MetricsAndDlpackAreThoseOfTheLibrary) {
  EXPECT_NE(std::string::npos, fwdmeta::metrics().find("# TYPE fwdmeta_builds_total counter"));
  fwdmeta::Config config;
  config.backend = FWDMETA_BACKEND_HOST;
  config.max_batch_size = config.max_num_tokens = config.max_model_len = 4;
  config.num_q_heads = config.num_kv_heads = 1;
  fwdmeta::Builder builder(config);
  const fwdmeta::Meta meta = builder.build(fwdmeta::Batch());
  EXPECT_NE(std::string::npos, meta.dump().find("cu_seqlens_q"));
  fwdmeta::DlpackArgs args;
  args.field = FWDMETA_FIELD_CU_SEQLENS_Q;
  args.group = 1;
  ExpectError(FWDMETA_NOT_FOUND, "cu_seqlens_q[1]", [&] { (void)meta.dlpack(args, -1); });
}

// A prompt of 6 tokens in slices of 4 and 2.
TEST(Slicing, BuildsAMetaForEachSlice) {
  fwdmeta::Config config;
  config.backend = FWDMETA_BACKEND_HOST;
  config.max_batch_size = 2;
  config.max_num_tokens = config.max_model_len = 16;
  config.num_q_heads = config.num_kv_heads = 1;
  config.max_metas = 1;
  fwdmeta::Slicer slicer(config, 3);
  const int32_t encoder = 6, decoder = 0, this_time = 6;
  fwdmeta::Batch batch;
  batch.batch_size = 1;
  batch.num_padded_tokens = 8;
  batch.seq_lens_encoder = &encoder;
  batch.seq_lens_decoder = &decoder;
  batch.seq_lens_this_time = &this_time;
  {
    const fwdmeta::SliceMetas metas = slicer.build(batch, 2);
    ASSERT_EQ(2u, metas.size());
    EXPECT_EQ(4, metas[0].wait().num_tokens);
    EXPECT_EQ(0, metas[0].wait().num_output_tokens);
    EXPECT_EQ(2, metas[1].wait().num_tokens);
    EXPECT_EQ(1, metas[1].wait().num_output_tokens);
    ExpectError(FWDMETA_BUSY, "1 meta handles", [&] { (void)slicer.build(batch, 2); });
  }
  EXPECT_EQ(3u, slicer.build(batch, 3, 2).size()) << "the views end with what holds them";
  slicer.enqueue(batch, 1, 1);
  fwdmeta::BuilderInfo info;
  fwdmeta::check(fwdmeta_builder_get_info(slicer.builder(0), &info));
  EXPECT_EQ(3, info.last_step);
  ExpectError(FWDMETA_OUT_OF_RANGE, "3", [&] { (void)slicer.builder(3); });
  ExpectError(FWDMETA_INVALID_ARGUMENT, "17", [&] { fwdmeta::Slicer(config, 17); });
  fwdmeta::Slicer moved = std::move(slicer);
  EXPECT_FALSE(slicer);
  EXPECT_TRUE(moved);
}

// ---- layers

TEST(Layers, AreAddedAndFound) {
  const Layers layers = ThreeLayers();
  EXPECT_EQ(3, layers.size());
  EXPECT_EQ(2, layers.num_moe());
  EXPECT_EQ(1, layers.find("0.attn"));
  EXPECT_STREQ("1.mlp", layers.get(2).name);
  EXPECT_EQ(&objects[2], layers.get(2).layer);
  EXPECT_EQ(std::optional<int64_t>(2), layers.try_find("1.mlp"));
  EXPECT_EQ(std::nullopt, layers.try_find("1.attn"));
}

TEST(Layers, Throw) {
  Layers layers = ThreeLayers();
  EXPECT_EQ(3, layers.add("1.attn", nullptr));
  ExpectError(FWDMETA_ALREADY_EXISTS, "0.attn", [&] { layers.add("0.attn", nullptr); });
  ExpectError(FWDMETA_NOT_FOUND, "2.attn", [&] { (void)layers.find("2.attn"); });
  ExpectError(FWDMETA_OUT_OF_RANGE, "4", [&] { (void)layers.get(4); });
  const Context context = NewContext(layers);
  ExpectError(FWDMETA_INVALID_ARGUMENT, "late", [&] { layers.add("late", nullptr); });
  ExpectError(FWDMETA_INVALID_HANDLE, "0x0", [] { (void)Layers().try_find("0.attn"); });
}

// ---- contexts

const int64_t kSlots[] = {5, 6, 7};
const int64_t kTokensOfRanks[] = {3, 9};
const uint8_t kPadding[] = {0, 0, 1};

TEST(Context, HandsOutWhatWasSet) {
  const Layers layers = ThreeLayers();
  Context context = NewContext(layers, 2);
  context.set_attn_metadata({&objects[0], 7});
  context.set_attn_metadata({&objects[1], 0}, 1, 1);
  context.set_slot_mapping(kSlots, 1);
  fwdmeta::DpMetadata dp;
  dp.dp_size = 2;
  dp.num_tokens = kTokensOfRanks;
  context.set_dp_metadata(dp);
  context.set_runtime_mode(FWDMETA_GRAPH_FULL);
  context.set_descriptor({8, 4, 1, 0, 0});
  const std::vector<fwdmeta_slice_t> slices = {{0, 1, 0, 4, 4, 0}, {1, 2, 4, 8, 4, 0}};
  context.set_slices(slices);
  context.set_is_padding(kPadding);
  context.set_skip_compiled(true);
  context.set_pointer("pointer", &objects[3]);
  context.set_int64("int64", -1);
  context.set_double("double", 0.5);

  const auto read = [&](const auto& of) {
    EXPECT_EQ(&objects[0], of.attn_metadata().pointer);
    EXPECT_EQ(7u, of.attn_metadata(2).meta);
    EXPECT_EQ(&objects[1], of.attn_metadata(1, 1).pointer);
    EXPECT_EQ(&objects[1], of.try_attn_metadata(1, 1)->pointer);
    EXPECT_EQ(kSlots, of.slot_mapping(1).data());
    EXPECT_EQ((Numbers{5, 6, 7}), Copy(*of.try_slot_mapping(1)));
    EXPECT_EQ((Numbers{3, 9}), Copy(of.dp_metadata().table()));
    EXPECT_EQ(2, of.try_dp_metadata()->dp_size);
    EXPECT_EQ(FWDMETA_GRAPH_FULL, of.runtime_mode());
    EXPECT_EQ(FWDMETA_GRAPH_FULL, of.try_runtime_mode());
    EXPECT_EQ(8, of.descriptor().num_tokens);
    EXPECT_EQ(4, of.try_descriptor()->num_reqs);
    ASSERT_EQ(2u, of.slices().size());
    EXPECT_EQ(8, of.slices()[1].end_token);
    EXPECT_EQ(2u, of.try_slices()->size());
    EXPECT_EQ((std::vector<uint8_t>{0, 0, 1}), Copy(of.is_padding()));
    EXPECT_EQ(kPadding, of.try_is_padding()->data());
    EXPECT_TRUE(of.skip_compiled());
    EXPECT_EQ(std::optional<bool>(true), of.try_skip_compiled());
    EXPECT_EQ(&objects[3], of.get_pointer("pointer"));
    EXPECT_EQ(&objects[3], of.try_get_pointer("pointer"));
    EXPECT_EQ(-1, of.get_int64("int64"));
    EXPECT_EQ(-1, of.try_get_int64("int64"));
    EXPECT_EQ(0.5, of.get_double("double"));
    EXPECT_EQ(0.5, of.try_get_double("double"));
    EXPECT_EQ(1, of.find_layer("0.attn"));
    EXPECT_EQ(1, of.try_find_layer("0.attn"));
    EXPECT_STREQ("1.mlp", of.layer(2).name);
    EXPECT_EQ(&objects[2], of.layer(2).layer);
  };
  read(context);
  const ScopedContext scope(context);
  read(context);
  read(ContextView::current());
  std::thread([&] { read(ContextView(context)); }).join();
}

TEST(Context, SkipCompiledSetToNoIsNotUnset) {
  Context context = NewContext();
  EXPECT_EQ(std::nullopt, context.try_skip_compiled());
  context.set_skip_compiled(false);
  EXPECT_EQ(std::optional<bool>(false), context.try_skip_compiled());
  EXPECT_FALSE(context.skip_compiled());
}

TEST(Context, WhatIsNotThereThrowsOrIsNothing) {
  const Layers layers = ThreeLayers();
  Context context = NewContext(layers);
  const auto absent = [](const auto& c) {
    ExpectError(FWDMETA_NOT_SET, "attn_metadata", [&] { (void)c.attn_metadata(); });
    ExpectError(FWDMETA_NOT_SET, "slot_mapping", [&] { (void)c.slot_mapping(); });
    ExpectError(FWDMETA_NOT_SET, "dp_metadata", [&] { (void)c.dp_metadata(); });
    ExpectError(FWDMETA_NOT_SET, "runtime_mode", [&] { (void)c.runtime_mode(); });
    ExpectError(FWDMETA_NOT_SET, "descriptor", [&] { (void)c.descriptor(); });
    ExpectError(FWDMETA_NOT_SET, "slices", [&] { (void)c.slices(); });
    ExpectError(FWDMETA_NOT_SET, "is_padding", [&] { (void)c.is_padding(); });
    ExpectError(FWDMETA_NOT_SET, "skip_compiled", [&] { (void)c.skip_compiled(); });
    ExpectError(FWDMETA_NOT_FOUND, "nowhere", [&] { (void)c.get_pointer("nowhere"); });
    ExpectError(FWDMETA_NOT_FOUND, "nowhere", [&] { (void)c.get_int64("nowhere"); });
    ExpectError(FWDMETA_NOT_FOUND, "nowhere", [&] { (void)c.get_double("nowhere"); });
    ExpectError(FWDMETA_NOT_FOUND, "nowhere", [&] { (void)c.find_layer("nowhere"); });
    EXPECT_FALSE(c.try_attn_metadata());
    EXPECT_FALSE(c.try_slot_mapping());
    EXPECT_FALSE(c.try_dp_metadata());
    EXPECT_FALSE(c.try_runtime_mode());
    EXPECT_FALSE(c.try_descriptor());
    EXPECT_FALSE(c.try_slices());
    EXPECT_FALSE(c.try_is_padding());
    EXPECT_FALSE(c.try_skip_compiled());
    EXPECT_FALSE(c.try_get_pointer("nowhere"));
    EXPECT_FALSE(c.try_get_int64("nowhere"));
    EXPECT_FALSE(c.try_get_double("nowhere"));
    EXPECT_FALSE(c.try_find_layer("nowhere"));
  };
  absent(context);
  // What is asked for wrongly is not absent.
  ExpectError(FWDMETA_OUT_OF_RANGE, "3", [&] { (void)context.try_attn_metadata(3); });
  ExpectError(FWDMETA_OUT_OF_RANGE, "1", [&] { (void)context.try_slot_mapping(0, 1); });
  ExpectError(FWDMETA_OUT_OF_RANGE, "3", [&] { (void)context.layer(3); });
  context.set_int64("int64", 1);
  ExpectError(FWDMETA_INVALID_ARGUMENT, "int64", [&] { (void)context.try_get_double("int64"); });
  ExpectError(FWDMETA_INVALID_ARGUMENT, "not pushed", [&] { (void)context.try_local_sizes(); });
  {
    const ScopedContext scope(context);
    absent(context);
    ExpectError(FWDMETA_NOT_SET, "local sizes", [&] { (void)context.local_sizes(); });
    EXPECT_FALSE(context.try_local_sizes());
  }
  ExpectError(FWDMETA_EXPIRED, "popped", [&] { (void)context.try_descriptor(); });
  ExpectError(FWDMETA_EXPIRED, "popped", [&] { (void)context.try_slices(); });
  ExpectError(FWDMETA_INVALID_HANDLE, "0x0", [] { (void)ContextView().try_descriptor(); });
  // Without a registry.
  const Context plain = NewContext();
  EXPECT_FALSE(plain.try_find_layer("0.attn"));
  ExpectError(FWDMETA_NOT_SET, "registry", [&] { (void)plain.find_layer("0.attn"); });
}

TEST(Context, SettingThrows) {
  Context context = NewContext();
  ExpectError(FWDMETA_INVALID_ARGUMENT, "", [&] { context.set_attn_metadata({nullptr, 0}); });
  ExpectError(FWDMETA_OUT_OF_RANGE, "0", [&] { context.set_slot_mapping(kSlots, 0); });
  ExpectError(FWDMETA_INVALID_ARGUMENT, "", [&] { context.set_dp_metadata(fwdmeta::DpMetadata()); });
  ExpectError(FWDMETA_INVALID_ARGUMENT, "512", [&] { context.set_runtime_mode(FWDMETA_GRAPH_FULL_DECODE_ONLY); });
  ExpectError(FWDMETA_INVALID_ARGUMENT, "slices", [&] { context.set_slices({}); });
  ExpectError(FWDMETA_INVALID_ARGUMENT, "", [&] { context.set_pointer("", nullptr); });
  ContextConfig config;
  config.max_slices = 17;
  ExpectError(FWDMETA_INVALID_ARGUMENT, "17", [&] { Context refused(config); });
  const ScopedContext scope(context);
  ExpectError(FWDMETA_INVALID_ARGUMENT, "pushed", [&] { context.set_descriptor({}); });
  ExpectError(FWDMETA_INVALID_ARGUMENT, "pushed", [&] { context.set_is_padding({}); });
  ExpectError(FWDMETA_INVALID_ARGUMENT, "pushed", [&] { context.set_skip_compiled(true); });
  ExpectError(FWDMETA_INVALID_ARGUMENT, "pushed", [&] { context.set_int64("a", 1); });
  ExpectError(FWDMETA_INVALID_ARGUMENT, "pushed", [&] { context.set_double("a", 1); });
  ExpectError(FWDMETA_BUSY, "pushed", [&] { context.reset_contents(); });
}

TEST(Context, IsFilledAgainAfterAReset) {
  Context context = NewContext();
  context.set_runtime_mode(FWDMETA_GRAPH_FULL);
  { const ScopedContext scope(context); }
  ExpectError(FWDMETA_EXPIRED, "reset", [&] { context.set_runtime_mode(FWDMETA_GRAPH_NONE); });
  context.reset_contents();
  EXPECT_FALSE(context.try_runtime_mode());
  context.set_runtime_mode(FWDMETA_GRAPH_NONE);
  EXPECT_EQ(FWDMETA_GRAPH_NONE, context.runtime_mode());
}

TEST(Context, TheCursorGoesOverTheMoeLayers) {
  const Layers layers = ThreeLayers();
  Context context = NewContext(layers);
  ExpectError(FWDMETA_INVALID_ARGUMENT, "not pushed", [&] { context.next_moe_layer(); });
  const ScopedContext scope(context);
  ContextView current = ContextView::current();
  EXPECT_EQ(0, current.next_moe_layer());
  EXPECT_EQ(2, current.next_moe_layer());
  ExpectError(FWDMETA_OUT_OF_RANGE, "2", [&] { current.next_moe_layer(); });
}

// ---- scopes

TEST(ScopedContext, IsTheCurrentOneInItsScope) {
  const Context outer = NewContext(), inner = NewContext();
  EXPECT_EQ(0u, CurrentHandle());
  ExpectError(FWDMETA_NOT_SET, "", [] { (void)ContextView::current(); });
  {
    const ScopedContext outer_scope(outer);
    EXPECT_EQ(outer.handle(), ContextView::current().handle());
    std::thread([] { EXPECT_EQ(0u, CurrentHandle()); }).join();
    {
      const ScopedContext inner_scope(inner);
      EXPECT_EQ(inner.handle(), CurrentHandle());
    }
    EXPECT_EQ(outer.handle(), CurrentHandle());
  }
  EXPECT_EQ(0u, CurrentHandle());
}

TEST(ScopedContext, EndsWithAnException) {
  const Context outer = NewContext(), inner = NewContext();
  const ScopedContext outer_scope(outer);
  try {
    const ScopedContext inner_scope(inner);
    const ScopedOverride override_scope(outer);
    throw std::runtime_error("a layer failed");
  } catch (const std::runtime_error&) {
    EXPECT_EQ(outer.handle(), CurrentHandle());
  }
  EXPECT_NO_THROW(ScopedContext{inner}) << "still pushed";
}

TEST(ScopedContext, RefusedPushLeavesTheStack) {
  Context context = NewContext();
  const ScopedContext scope(context);
  ExpectError(FWDMETA_ALREADY_EXISTS, "this thread", [&] { ScopedContext again(context); });
  EXPECT_EQ(context.handle(), CurrentHandle());
  ExpectError(FWDMETA_INVALID_HANDLE, "0x0", [] { ScopedContext none{ContextView()}; });
  EXPECT_EQ(context.handle(), CurrentHandle());
}

TEST(ScopedContext, MayEndEarlier) {
  Context outer = NewContext(), inner = NewContext();
  ScopedContext outer_scope(outer);
  {
    ScopedContext inner_scope(inner);
    ExpectError(FWDMETA_INVALID_ARGUMENT, "not the top one", [&] { outer_scope.pop(); });
    inner_scope.pop();
    EXPECT_EQ(outer.handle(), CurrentHandle());
    ExpectError(FWDMETA_INVALID_HANDLE, "0x0", [&] { inner_scope.pop(); });
    inner.push();  // by hand: the scope's end must not pop it
  }
  EXPECT_EQ(inner.handle(), CurrentHandle());
  inner.pop();
  outer_scope.pop();
  EXPECT_EQ(0u, CurrentHandle());
}

TEST(ScopedContext, TheMovedOnePops) {
  const Context context = NewContext();
  {
    ScopedContext first(context);
    {
      const ScopedContext second = std::move(first);
      EXPECT_EQ(context.handle(), CurrentHandle());
    }
    EXPECT_EQ(0u, CurrentHandle());
    const ScopedContext again(context);
    ScopedContext{std::move(first)};  // inert: nothing is popped
    EXPECT_EQ(context.handle(), CurrentHandle());
  }
  EXPECT_EQ(0u, CurrentHandle());
}

TEST(ScopedOverride, RestoresWhatWasCurrent) {
  const Context outer = NewContext(), inner = NewContext();
  {
    const ScopedOverride none;  // over nothing
    EXPECT_EQ(0u, CurrentHandle());
    EXPECT_FALSE(none.previous());
  }
  const ScopedContext outer_scope(outer), inner_scope(inner);
  {
    const ScopedOverride first(outer);
    EXPECT_EQ(outer.handle(), CurrentHandle());
    EXPECT_EQ(inner.handle(), first.previous()->handle());
    {
      const ScopedOverride none;
      EXPECT_EQ(0u, CurrentHandle());
      EXPECT_EQ(outer.handle(), none.previous()->handle());
    }
    EXPECT_EQ(outer.handle(), CurrentHandle());
    try {
      const ScopedOverride third(inner);
      throw std::runtime_error("a layer failed");
    } catch (const std::runtime_error&) {
      EXPECT_EQ(outer.handle(), CurrentHandle());
    }
  }
  EXPECT_EQ(inner.handle(), CurrentHandle());
}

TEST(ScopedOverride, RefusedOverrideLeavesTheCurrentOne) {
  const Context context = NewContext(), building = NewContext();
  const ScopedContext scope(context);
  ExpectError(FWDMETA_INVALID_ARGUMENT, "not pushed", [&] { ScopedOverride refused(building); });
  EXPECT_EQ(context.handle(), CurrentHandle());
}

// A worker thread runs layers under the context of the thread that pushed it.
TEST(ScopedOverride, TakesContextsOfOtherThreads) {
  Context context = NewContext();
  context.set_descriptor({8, -1, 0, 0, 0});
  const ScopedContext scope(context);
  std::thread([&] {
    const ScopedOverride override_scope(context);
    EXPECT_EQ(8, ContextView::current().descriptor().num_tokens);
  }).join();
}

TEST(ScopedOverride, EndsWithNoneWhereTheFormerOneIsGone) {
  const Context foreign = NewContext(), own = NewContext();
  ScopedContext foreign_scope(foreign);
  std::atomic<int> stage{0};
  std::thread worker([&] {
    const ScopedContext own_scope(own);
    const ScopedOverride outer(foreign);
    {
      const ScopedOverride inner(own);
      stage = 1;
      while (stage != 2) std::this_thread::yield();
    }
    EXPECT_EQ(0u, CurrentHandle()) << "the inner override outlived its scope";
  });
  while (stage != 1) std::this_thread::yield();
  foreign_scope.pop();
  stage = 2;
  worker.join();
}

TEST(ScopedOverride, TheMovedOneRestores) {
  const Context context = NewContext();
  const ScopedContext scope(context);
  {
    ScopedOverride first;
    {
      const ScopedOverride second = std::move(first);
      EXPECT_EQ(0u, CurrentHandle());
    }
    EXPECT_EQ(context.handle(), CurrentHandle());
    fwdmeta_context_override(0, nullptr);  // by hand: the end of what was moved from must not restore
  }
  EXPECT_EQ(0u, CurrentHandle());
  fwdmeta_context_override(context.handle(), nullptr);
}

TEST(ScopedLocalSizes, NestAndEndWithAnException) {
  const Context context = NewContext();
  const int64_t outer_sizes[] = {3, 3, 2, 2};
  const Numbers inner_sizes = {1, 1};
  ExpectError(FWDMETA_INVALID_ARGUMENT, "not pushed", [&] { ScopedLocalSizes refused(context, outer_sizes); });
  const ScopedContext scope(context);
  {
    const ScopedLocalSizes outer(ContextView::current(), outer_sizes);
    EXPECT_EQ((Numbers{3, 3, 2, 2}), Copy(ContextView::current().local_sizes()));
    try {
      const ScopedLocalSizes inner(context, inner_sizes);
      EXPECT_EQ(inner_sizes.data(), context.try_local_sizes()->data());
      throw std::runtime_error("an expert failed");
    } catch (const std::runtime_error&) {
      EXPECT_EQ((Numbers{3, 3, 2, 2}), Copy(context.local_sizes()));
    }
    ExpectError(FWDMETA_INVALID_ARGUMENT, "count", [&] { ScopedLocalSizes refused(context, {}); });
    EXPECT_EQ((Numbers{3, 3, 2, 2}), Copy(context.local_sizes()));
  }
  EXPECT_FALSE(context.try_local_sizes());
}

TEST(ScopedLocalSizes, TheMovedOnePops) {
  const Context context = NewContext();
  const int64_t sizes[] = {3}, more[] = {4};
  const ScopedContext scope(context);
  {
    ScopedLocalSizes first(context, sizes);
    {
      const ScopedLocalSizes second = std::move(first);
      EXPECT_EQ((Numbers{3}), Copy(context.local_sizes()));
    }
    EXPECT_FALSE(context.try_local_sizes());
    const ScopedLocalSizes third(context, more);
    ScopedLocalSizes{std::move(first)};  // inert: nothing is popped
    EXPECT_EQ((Numbers{4}), Copy(context.local_sizes()));
  }
  EXPECT_FALSE(context.try_local_sizes());
}

static_assert(std::is_nothrow_move_constructible_v<ScopedContext> && !std::is_copy_constructible_v<ScopedContext> &&
                  std::is_nothrow_move_constructible_v<ScopedOverride> &&
                  !std::is_copy_constructible_v<ScopedOverride> &&
                  std::is_nothrow_move_constructible_v<ScopedLocalSizes> &&
                  !std::is_copy_constructible_v<ScopedLocalSizes>,
              "guards move, and do not throw then");
static_assert(std::is_convertible_v<const Context&, ContextView> && !std::is_convertible_v<Context, ContextView>,
              "no view of a context that ends with the expression");
static_assert(std::is_trivially_copyable_v<ContextView> && sizeof(ContextView) == sizeof(fwdmeta_context_t),
              "a view is a handle");

// ---- owners

OwnRow own_row;
template <class T>
T Make();
template <>
Dispatcher Make() {
  return CapturedDispatcher();
}
template <>
Transport Make() {
  return Transport::over(own_row, 1, 0);
}
template <>
Layers Make() {
  return ThreeLayers();
}
template <>
Context Make() {
  return NewContext();
}

template <>
fwdmeta::Slicer Make() {
  fwdmeta::Config config;
  config.backend = FWDMETA_BACKEND_HOST;
  config.max_batch_size = config.max_num_tokens = config.max_model_len = 4;
  config.num_q_heads = config.num_kv_heads = 1;
  return fwdmeta::Slicer(config, 2);
}

// The handle is alive: it can be ended.
fwdmeta_status_t End(const Dispatcher&, uint64_t handle) { return fwdmeta_dispatcher_destroy(handle); }
fwdmeta_status_t End(const Transport&, uint64_t handle) { return fwdmeta_transport_destroy(handle); }
fwdmeta_status_t End(const Layers&, uint64_t handle) { return fwdmeta_layers_destroy(handle); }
fwdmeta_status_t End(const fwdmeta::Slicer&, uint64_t handle) { return fwdmeta_slicer_destroy(handle); }
fwdmeta_status_t End(const Context&, uint64_t handle) { return fwdmeta_context_destroy(handle); }

template <class T>
class Owner : public ::testing::Test {};
using Owners = ::testing::Types<Dispatcher, Transport, Layers, Context, fwdmeta::Slicer>;
TYPED_TEST_SUITE(Owner, Owners, );

TYPED_TEST(Owner, EndsItsHandle) {
  uint64_t handle = 0;
  {
    const TypeParam owner = Make<TypeParam>();
    handle = owner.handle();
    EXPECT_TRUE(owner);
  }
  EXPECT_NE(0u, handle);
  EXPECT_EQ(FWDMETA_INVALID_HANDLE, End(TypeParam(), handle));
}

TYPED_TEST(Owner, MovesAndLeavesNothingBehind) {
  static_assert(std::is_nothrow_move_constructible_v<TypeParam> && std::is_nothrow_move_assignable_v<TypeParam> &&
                !std::is_copy_constructible_v<TypeParam> && !std::is_copy_assignable_v<TypeParam>);
  TypeParam first = Make<TypeParam>(), second = Make<TypeParam>();
  const uint64_t one = first.handle(), two = second.handle();
  TypeParam moved = std::move(first);
  EXPECT_EQ(0u, first.handle());
  EXPECT_FALSE(first);
  EXPECT_EQ(one, moved.handle());
  moved = std::move(second);
  EXPECT_EQ(0u, second.handle());
  EXPECT_EQ(two, moved.handle());
  EXPECT_EQ(FWDMETA_INVALID_HANDLE, End(moved, one)) << "the former handle is still alive";
  TypeParam& same = moved;
  moved = std::move(same);
  EXPECT_EQ(two, moved.handle());
  EXPECT_EQ(two, moved.release());
  EXPECT_FALSE(moved);
  EXPECT_EQ(FWDMETA_OK, End(moved, two)) << "released, so not ended";
}

// ---- hot calls

TEST(HotCalls, AllocateNothing) {
  const Layers layers = ThreeLayers();
  const Dispatcher dispatcher = CapturedDispatcher();
  const std::vector<fwdmeta_rank_row_t> rows = TwoRows(dispatcher, 2, 3);
  OwnRow gather;
  Transport transport = Transport::over(gather, 1, 0);
  Context context = NewContext(layers, 2);
  const fwdmeta::DispatchArgs args = Args(3, 3, 1);
  const int32_t query_lens[] = {10, 6}, seq_lens[] = {20, 6};
  fwdmeta::SliceArgs slice_args;
  slice_args.query_lens = query_lens;
  slice_args.seq_lens = seq_lens;
  slice_args.num_reqs = 2;
  slice_args.num_slices = 2;
  int64_t num_tokens[2], sizes[4], sum = 0;
  fwdmeta::DpMetadata dp;
  dp.dp_size = 2;
  dp.num_tokens = num_tokens;
  (void)layers.try_find("nowhere");  // the first message of this thread

  const int64_t before = allocations;
  for (int step = 0; step < 3; ++step) {
    sum += dispatcher.dispatch(args).descriptor.num_tokens;
    sum += fwdmeta::agree(dispatcher, rows, num_tokens).mode;
    sum += transport.agree(dispatcher, rows[0]).mode;
    fwdmeta::sp_sizes(num_tokens, 2, sizes);
    context.reset_contents();
    context.set_attn_metadata({&objects[0], 0});
    context.set_slot_mapping(kSlots);
    context.set_dp_metadata(dp);
    context.set_descriptor({4, 4, 1, 0, 0});
    context.set_slices(fwdmeta::plan_slices(slice_args));
    context.set_int64("int64", 1);
    const ScopedContext scope(context);
    ContextView current = ContextView::current();
    const ScopedOverride override_scope(current);
    const ScopedLocalSizes local(current, sizes);
    sum += current.attn_metadata(1).pointer == &objects[0];
    sum += static_cast<int64_t>(current.slot_mapping(1).size());
    sum += current.dp_metadata().dp_size + current.descriptor().num_tokens + current.next_moe_layer();
    sum += static_cast<int64_t>(current.slices().size()) + current.get_int64("int64") + current.find_layer("1.mlp");
    sum += current.local_sizes()[0];
    sum += current.try_is_padding().has_value() + current.try_get_pointer("nowhere").has_value();
  }
  EXPECT_EQ(before, allocations);
  EXPECT_EQ(3 * (4 + 2 + 2 + 1 + 3 + 2 + 4 + 0 + 2 + 1 + 2 + 2), sum);
}

// ---- helpers

TEST(Helpers, SplitAndReorder) {
  const int32_t encoder[] = {20, 0, 0}, this_time[] = {20, 0, 2}, computed[] = {0, 5, 7}, prompts[] = {20, 5, 7};
  const fwdmeta::BatchSplit split = fwdmeta::split_by_role(encoder, this_time, 3);
  EXPECT_EQ(1, split.num_decodes);
  EXPECT_EQ(1, split.num_prefills);
  EXPECT_EQ(2, split.num_decode_tokens);
  EXPECT_EQ(20, split.num_prefill_tokens);
  int32_t order[3];
  EXPECT_TRUE(fwdmeta::reorder_by_role(encoder, this_time, 3, order));
  EXPECT_EQ((std::vector<int32_t>{2, 0, 1}), Copy(Span<int32_t>(order)));
  EXPECT_FALSE(fwdmeta::reorder_by_role(encoder, this_time, 1, order));
  EXPECT_TRUE(fwdmeta::reorder_by_length(this_time, computed, prompts, 3, 2, order));
  EXPECT_EQ(0, order[2]);

  const int32_t query_lens[] = {2, 1, 3, 4, 5, 6, 7, 8};
  fwdmeta::LengthSplitArgs args;
  args.query_lens = query_lens;
  args.num_reqs = 8;
  args.threshold = 4;
  const fwdmeta::BatchSplit by_length = fwdmeta::split_by_length(args);
  EXPECT_EQ(4, by_length.num_decodes);
  EXPECT_EQ(26, by_length.num_prefill_tokens);

  const int32_t mismatched[] = {19, 0, 0};
  ExpectError(FWDMETA_INVALID_BATCH, "19", [&] { (void)fwdmeta::split_by_role(mismatched, this_time, 3); });
  ExpectError(FWDMETA_INVALID_BATCH, "19", [&] { fwdmeta::reorder_by_role(mismatched, this_time, 3, order); });
  args.threshold = 0;
  ExpectError(FWDMETA_INVALID_ARGUMENT, "threshold", [&] { (void)fwdmeta::split_by_length(args); });
  ExpectError(FWDMETA_INVALID_ARGUMENT, "threshold",
              [&] { fwdmeta::reorder_by_length(this_time, computed, prompts, 3, 0, order); });
}

TEST(Helpers, LocalAttentionCountsThenFills) {
  const int32_t query_lens[] = {8}, seq_lens[] = {12}, pages[] = {0, 1, 2, 3, 4, 5};
  fwdmeta::LocalAttentionArgs args;
  args.query_lens = query_lens;
  args.seq_lens = seq_lens;
  args.num_reqs = 1;
  args.attn_chunk_size = 4;
  args.block_size = 2;
  args.block_table = {pages, 6, 6, nullptr};
  ASSERT_EQ(2, fwdmeta::local_attention(args));
  int32_t queries[2], keys[2], table[4], request[2];
  EXPECT_EQ(2, fwdmeta::local_attention(args, 2, queries, keys, table, request));
  EXPECT_EQ((std::vector<int32_t>{4, 4}), Copy(Span<int32_t>(queries)));
  EXPECT_EQ((std::vector<int32_t>{2, 3, 4, 5}), Copy(Span<int32_t>(table)));
  EXPECT_EQ(0, request[1]);
  ExpectError(FWDMETA_CAPACITY_EXCEEDED, "2", [&] { fwdmeta::local_attention(args, 1, queries); });
}

TEST(Helpers, PagesAndTables) {
  const int32_t seq_lens[] = {0, 1, 16, 17};
  int32_t indptr[5], last[4];
  fwdmeta::paged_indptr(seq_lens, 16, indptr, last);
  EXPECT_EQ((std::vector<int32_t>{0, 0, 1, 2, 4}), Copy(Span<int32_t>(indptr)));
  EXPECT_EQ((std::vector<int32_t>{0, 1, 16, 1}), Copy(Span<int32_t>(last)));
  ExpectError(FWDMETA_INVALID_ARGUMENT, "page_size", [&] { fwdmeta::paged_indptr(seq_lens, 0, indptr, last); });
  const int32_t blocks[] = {2, 5};
  int32_t kernel_blocks[4];
  fwdmeta::expand_block_table(blocks, 32, 16, kernel_blocks);
  EXPECT_EQ((std::vector<int32_t>{4, 5, 10, 11}), Copy(Span<int32_t>(kernel_blocks)));
  ExpectError(FWDMETA_INVALID_ARGUMENT, "12", [&] { fwdmeta::expand_block_table(blocks, 32, 12, kernel_blocks); });
}

}  // namespace
