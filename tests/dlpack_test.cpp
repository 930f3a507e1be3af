// The DLPack export, as a consumer in C++ sees it: with the structs that dlpack.h has, and no header of the library's.
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <thread>

#include "harness.h"

#if FWDMETA_TEST_CUDA
#include <cuda_runtime_api.h>
#endif

// As published: https://dmlc.github.io/dlpack/latest/c_api.html
struct DLDevice {
  int32_t device_type, device_id;
};
struct DLDataType {
  uint8_t code, bits;
  uint16_t lanes;
};
struct DLTensor {
  void* data;
  DLDevice device;
  int32_t ndim;
  DLDataType dtype;
  int64_t* shape;
  int64_t* strides;
  uint64_t byte_offset;
};
struct DLManagedTensor {
  DLTensor dl_tensor;
  void* manager_ctx;
  void (*deleter)(DLManagedTensor* self);
};
struct DLManagedTensorVersioned {
  uint32_t major, minor;
  void* manager_ctx;
  void (*deleter)(DLManagedTensorVersioned* self);
  uint64_t flags;
  DLTensor dl_tensor;
};

namespace fwdmeta_test {
namespace {

fwdmeta_dlpack_args_t Args(fwdmeta_field_t field, int32_t group = 0,
                           fwdmeta_dlpack_shape_t shape = FWDMETA_DLPACK_CAPACITY) {
  fwdmeta_dlpack_args_t args = FWDMETA_DLPACK_ARGS_INITIALIZER;
  args.field = field;
  args.group = group;
  args.shape = shape;
  return args;
}

// The four calls as two of one name.
fwdmeta_status_t NoSync(fwdmeta_meta_t meta, const fwdmeta_dlpack_args_t* args, DLManagedTensor** out) {
  return fwdmeta_meta_to_dlpack_no_sync(meta, args, out);
}
fwdmeta_status_t NoSync(fwdmeta_meta_t meta, const fwdmeta_dlpack_args_t* args, DLManagedTensorVersioned** out) {
  return fwdmeta_meta_to_dlpack_versioned_no_sync(meta, args, out);
}
fwdmeta_status_t OnStream(fwdmeta_meta_t meta, const fwdmeta_dlpack_args_t* args, int64_t stream,
                          DLManagedTensor** out) {
  return fwdmeta_meta_to_dlpack(meta, args, stream, out);
}
fwdmeta_status_t OnStream(fwdmeta_meta_t meta, const fwdmeta_dlpack_args_t* args, int64_t stream,
                          DLManagedTensorVersioned** out) {
  return fwdmeta_meta_to_dlpack_versioned(meta, args, stream, out);
}

// Owns what a call has handed out.
template <class Managed>
class Taken {
 public:
  Taken() = default;
  Taken(fwdmeta_meta_t meta, const fwdmeta_dlpack_args_t& args) { EXPECT_OK(NoSync(meta, &args, &managed_)); }
  Taken(fwdmeta_meta_t meta, const fwdmeta_dlpack_args_t& args, int64_t stream) {
    EXPECT_OK(OnStream(meta, &args, stream, &managed_));
  }
  ~Taken() { Delete(); }
  Taken(const Taken&) = delete;
  Taken& operator=(const Taken&) = delete;
  void Delete() {
    if (managed_ != nullptr) managed_->deleter(managed_);
    managed_ = nullptr;
  }
  Managed* release() {
    Managed* managed = managed_;
    managed_ = nullptr;
    return managed;
  }
  explicit operator bool() const { return managed_ != nullptr; }
  Managed* operator->() const { return managed_; }
  const DLTensor& tensor() const { return managed_->dl_tensor; }
  int64_t size() const { return tensor().shape[0]; }

 private:
  Managed* managed_ = nullptr;
};

bool IsCpuField(int field) {
  const std::string name = fwdmeta_field_name(field);
  return name.size() > 4 && name.compare(name.size() - 4, 4, "_cpu") == 0;
}

std::vector<int64_t> Read(fwdmeta_backend_t backend, const DLTensor& tensor) {
  std::vector<char> bytes(static_cast<size_t>(tensor.shape[0]) * tensor.dtype.bits / 8);
  Download(tensor.device.device_type == FWDMETA_DLPACK_CUDA ? backend : FWDMETA_BACKEND_HOST, bytes.data(), tensor.data,
           bytes.size());
  fwdmeta_tensor_t as = FWDMETA_TENSOR_INITIALIZER;
  as.dtype_bits = tensor.dtype.bits;
  as.shape[0] = tensor.shape[0];
  return Values(bytes.data(), as);
}

void ExpectKind(const DLManagedTensor&) {}
void ExpectKind(const DLManagedTensorVersioned& managed) {
  EXPECT_EQ(1u, managed.major);
  EXPECT_EQ(0u, managed.minor);
  EXPECT_EQ(1u, managed.flags) << "read-only, and nothing else";
}

// A decode with drafts, an idle slot, a prompt behind cached tokens, a decode; the token axis is padded to 32.
reference::Batch SomeBatch() { return MakeBatch({{0, 10, 3}, {7, 50, 0}, {20, 118, 20}, {0, 200, 1}}, 32); }

reference::Config SomeConfig() {
  reference::Config config;
  config.num_q_heads = 64;
  config.num_kv_heads = 8;
  config.cp_size = 2;  // so that seq_lens_kv_local exists
  config.groups.resize(3);
  return config;
}

class Dlpack : public BackendTest {
 protected:
  // Every field of a step, but for where the three tensors lie.
  template <class Managed>
  void ExpectEveryField(const Builder& builder) {
    for (int field = 0; field < FWDMETA_FIELD_COUNT; ++field) {
      const int groups = field == FWDMETA_FIELD_SLOT_MAPPING ? static_cast<int>(builder.config().groups.size()) : 1;
      for (int group = 0; group < groups; ++group) {
        SCOPED_TRACE(fwdmeta_field_name(field));
        fwdmeta_tensor_t want = FWDMETA_TENSOR_INITIALIZER;
        ASSERT_OK(fwdmeta_meta_get_field(builder.meta(), field, group, &want));
        const Taken<Managed> taken(builder.meta(), Args(field, group));
        ASSERT_TRUE(taken);
        ExpectKind(*taken.operator->());
        const DLTensor& got = taken.tensor();
        EXPECT_EQ(want.data, got.data) << "a copy";
        EXPECT_EQ(0u, got.byte_offset);
        ASSERT_EQ(1, got.ndim);
        EXPECT_EQ(want.shape[0], got.shape[0]);
        EXPECT_EQ(1, got.strides[0]);
        EXPECT_EQ(field == FWDMETA_FIELD_IS_PADDING ? FWDMETA_DTYPE_BOOL : FWDMETA_DTYPE_INT, got.dtype.code);
        EXPECT_EQ(want.dtype_bits, got.dtype.bits);
        EXPECT_EQ(1, got.dtype.lanes);
        const bool cuda = backend() == FWDMETA_BACKEND_CUDA;
        const int32_t type = !cuda               ? FWDMETA_DLPACK_CPU
                             : IsCpuField(field) ? FWDMETA_DLPACK_CUDA_HOST
                                                 : FWDMETA_DLPACK_CUDA;
        const int32_t id = type == FWDMETA_DLPACK_CUDA ? CurrentDevice() : 0;
        EXPECT_EQ(type, got.device.device_type);
        EXPECT_EQ(id, got.device.device_id);
        fwdmeta_dlpack_device_t told_type = -1;
        int32_t told_id = -1;
        const fwdmeta_dlpack_args_t args = Args(field, group);
        EXPECT_OK(fwdmeta_meta_dlpack_device(builder.meta(), &args, &told_type, &told_id));
        EXPECT_EQ(type, told_type);
        EXPECT_EQ(id, told_id);
      }
    }
  }
};

TEST_P(Dlpack, EveryFieldWithoutACopy) {
  Builder builder(backend(), SomeConfig());
  ASSERT_OK(builder.Build(SomeBatch()));
  ASSERT_EQ(4, builder.Counts().batch_size);
  ExpectEveryField<DLManagedTensor>(builder);
  ExpectEveryField<DLManagedTensorVersioned>(builder);
}

TEST_P(Dlpack, ContentIsTheSteps) {
  Builder builder(backend(), SomeConfig());
  const reference::Batch batch = SomeBatch();
  ASSERT_OK(builder.Build(batch));
  builder.Counts();
  const reference::Result want = reference::Build(builder.config(), batch);
  for (const int field : {FWDMETA_FIELD_DECODER_BATCH_IDS, FWDMETA_FIELD_CU_SEQLENS_K, FWDMETA_FIELD_POSITION_IDS,
                          FWDMETA_FIELD_IS_PADDING, FWDMETA_FIELD_MAX_LEN_TENSOR_CPU, FWDMETA_FIELD_COUNTS}) {
    const Taken<DLManagedTensorVersioned> taken(builder.meta(), Args(field), 1);
    ASSERT_TRUE(taken);
    EXPECT_EQ(want.fields[field], Read(backend(), taken.tensor())) << fwdmeta_field_name(field);
  }
}

// The step's own part of each array, from the contract's shapes and the counts of this batch.
TEST_P(Dlpack, LiveShapes) {
  const reference::Config config = SomeConfig();
  Builder builder(backend(), config);
  ASSERT_OK(builder.Build(SomeBatch()));
  const fwdmeta_counts_t counts = builder.Counts();
  ASSERT_EQ(24, counts.num_tokens);
  ASSERT_EQ(32, counts.num_padded_tokens);
  ASSERT_EQ(5, counts.num_output_tokens);
  ASSERT_EQ(3, counts.decoder_num_blocks);
  ASSERT_EQ(3, counts.encoder_num_blocks);
  ASSERT_EQ(2, counts.kv_num_blocks);
  ASSERT_EQ(2, counts.pre_cache_num_blocks);
  const std::map<int, int64_t> want = {
      {FWDMETA_FIELD_DECODER_BATCH_IDS, 3},
      {FWDMETA_FIELD_DECODER_TILE_IDS_PER_BATCH, 3},
      {FWDMETA_FIELD_DECODER_CU_TILES, 5},
      {FWDMETA_FIELD_ENCODER_BATCH_IDS, 3},
      {FWDMETA_FIELD_ENCODER_TILE_IDS_PER_BATCH, 3},
      {FWDMETA_FIELD_ENCODER_CU_TILES, 5},
      {FWDMETA_FIELD_KV_BATCH_IDS, 2},
      {FWDMETA_FIELD_KV_TILE_IDS_PER_BATCH, 2},
      {FWDMETA_FIELD_KV_CU_TILES, 5},
      {FWDMETA_FIELD_PRE_CACHE_BATCH_IDS, 2},
      {FWDMETA_FIELD_PRE_CACHE_TILE_IDS_PER_BATCH, 2},
      {FWDMETA_FIELD_PRE_CACHE_CU_TILES, 5},
      {FWDMETA_FIELD_CU_SEQLENS_Q, 5},
      {FWDMETA_FIELD_CU_SEQLENS_K, 5},
      {FWDMETA_FIELD_ATTN_CU_SEQLENS_K, 5},
      {FWDMETA_FIELD_SEQ_LENS_KV, 4},
      {FWDMETA_FIELD_SEQ_LENS_KV_LOCAL, 4},
      {FWDMETA_FIELD_BATCH_ID_PER_TOKEN, 32},
      {FWDMETA_FIELD_POSITION_IDS, 32},
      {FWDMETA_FIELD_SLOT_MAPPING, 32},
      {FWDMETA_FIELD_IS_PADDING, 32},
      {FWDMETA_FIELD_MASK_ENCODER_BATCH, 32},
      {FWDMETA_FIELD_IDS_REMOVE_PADDING, 32},
      {FWDMETA_FIELD_SEQ_LENS_OUTPUT, 4},
      {FWDMETA_FIELD_CU_SEQLENS_Q_OUTPUT, 5},
      {FWDMETA_FIELD_BATCH_ID_PER_TOKEN_OUTPUT, 5},
      {FWDMETA_FIELD_LOGITS_INDICES, 5},
      {FWDMETA_FIELD_LAST_TOKEN_INDEX, 4},
      {FWDMETA_FIELD_MAX_LEN_TENSOR, 9},
      {FWDMETA_FIELD_MAX_LEN_TENSOR_CPU, 9},
      {FWDMETA_FIELD_COUNTS, 18},
      {FWDMETA_FIELD_COUNTS_I64, 3},
  };
  for (int field = 0; field < FWDMETA_FIELD_COUNT; ++field) {
    const auto found = want.find(field);
    const Taken<DLManagedTensorVersioned> taken(builder.meta(), Args(field, 0, FWDMETA_DLPACK_LIVE));
    ASSERT_TRUE(taken);
    EXPECT_EQ(found != want.end() ? found->second : 1, taken.size()) << fwdmeta_field_name(field);
    EXPECT_EQ(builder.Tensor(field).data, taken.tensor().data) << fwdmeta_field_name(field);
  }
}

// DLPack: an array of size zero has null data; its strides are there all the same.
TEST_P(Dlpack, ZeroSize) {
  reference::Config config = SomeConfig();
  config.max_model_len = 1;  // no token can be cached before one: pre_cache has no capacity
  Builder builder(backend(), config);
  ASSERT_OK(builder.Build(MakeBatch({})));
  builder.Counts();
  const auto expect_empty = [&](const DLTensor& tensor, int field) {
    ASSERT_EQ(1, tensor.ndim) << fwdmeta_field_name(field);
    EXPECT_EQ(0, tensor.shape[0]) << fwdmeta_field_name(field);
    EXPECT_EQ(nullptr, tensor.data) << fwdmeta_field_name(field);
    ASSERT_NE(nullptr, tensor.strides) << fwdmeta_field_name(field);
    EXPECT_EQ(1, tensor.strides[0]) << fwdmeta_field_name(field);
  };
  const Taken<DLManagedTensor> whole(builder.meta(), Args(FWDMETA_FIELD_PRE_CACHE_BATCH_IDS));
  ASSERT_TRUE(whole);
  expect_empty(whole.tensor(), FWDMETA_FIELD_PRE_CACHE_BATCH_IDS);
  for (const int field : {FWDMETA_FIELD_DECODER_BATCH_IDS, FWDMETA_FIELD_SEQ_LENS_KV, FWDMETA_FIELD_IS_PADDING,
                          FWDMETA_FIELD_LOGITS_INDICES, FWDMETA_FIELD_SLOT_MAPPING}) {
    const Taken<DLManagedTensorVersioned> live(builder.meta(), Args(field, 0, FWDMETA_DLPACK_LIVE));
    ASSERT_TRUE(live);
    expect_empty(live.tensor(), field);
  }
}

// An allocator that knows which thread has freed last.
class WatchedAllocator {
 public:
  explicit WatchedAllocator(Memory memory) : counting_(memory), inner_(counting_.Get()) {}
  fwdmeta_allocator_t Get() { return {&Alloc, &Free, this}; }
  CountingAllocator& counting() { return counting_; }
  std::thread::id freed_by() const { return freed_by_; }

 private:
  static void* Alloc(size_t bytes, size_t alignment, void* user) {
    const fwdmeta_allocator_t& inner = static_cast<WatchedAllocator*>(user)->inner_;
    return inner.alloc(bytes, alignment, inner.user);
  }
  static void Free(void* ptr, size_t bytes, void* user) {
    auto* self = static_cast<WatchedAllocator*>(user);
    self->freed_by_ = std::this_thread::get_id();
    self->inner_.free(ptr, bytes, self->inner_.user);
  }
  CountingAllocator counting_;
  fwdmeta_allocator_t inner_;
  std::atomic<std::thread::id> freed_by_{};
};

// The tensor's memory outlives meta and builder, and ends with the last tensor's deleter on whatever thread. With CUDA
// that thread is not the one that frees, as a free may wait, fail, or not be allowed there.
TEST_P(Dlpack, HoldsTheMemoryUntilItsDeleter) {
  const bool cuda = backend() == FWDMETA_BACKEND_CUDA;
  WatchedAllocator device(Memory::kDevice), pinned(Memory::kPinned), host(Memory::kHost);
  WatchedAllocator& arrays = cuda ? device : host;
  const reference::Config config = SomeConfig();
  std::vector<fwdmeta_group_config_t> groups;
  fwdmeta_config_t c = ToC(config, backend(), &groups);
  c.host_allocator = host.Get();
  if (cuda) c.device_allocator = device.Get(), c.pinned_allocator = pinned.Get();
  fwdmeta_builder_t builder = 0;
  ASSERT_OK(fwdmeta_builder_create(&c, &builder));
  const reference::Batch source = SomeBatch();
  Inputs inputs(backend());
  const fwdmeta_batch_t batch = inputs.Put(source, FWDMETA_MEMORY_DEVICE);
  fwdmeta_meta_t meta = 0;
  ASSERT_OK(fwdmeta_build(builder, &batch, &meta, nullptr));
  ASSERT_OK(fwdmeta_meta_wait(meta, FWDMETA_WAIT_FINAL, -1, nullptr));
  Taken<DLManagedTensor> first(meta, Args(FWDMETA_FIELD_POSITION_IDS), 1);
  Taken<DLManagedTensorVersioned> second(meta, Args(FWDMETA_FIELD_POSITION_IDS), 1);  // exported twice
  Taken<DLManagedTensorVersioned> counts(meta, Args(FWDMETA_FIELD_MAX_LEN_TENSOR_CPU), 1);
  ASSERT_TRUE(first && second && counts);
  EXPECT_EQ(first.tensor().data, second.tensor().data);
  EXPECT_NE(first.tensor().shape, second.tensor().shape);
  ASSERT_OK(fwdmeta_meta_destroy(meta));
  ASSERT_OK(fwdmeta_builder_destroy(builder));
  const reference::Result want = reference::Build(config, source);
  EXPECT_EQ(want.fields[FWDMETA_FIELD_POSITION_IDS], Read(backend(), first.tensor()));
  first.Delete();
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  EXPECT_EQ(1, arrays.counting().live()) << "freed while a tensor is left";
  EXPECT_EQ(want.fields[FWDMETA_FIELD_POSITION_IDS], Read(backend(), second.tensor()));
  EXPECT_EQ(want.fields[FWDMETA_FIELD_MAX_LEN_TENSOR_CPU], Read(backend(), counts.tensor()));
  std::thread([&] { second.Delete(); }).join();
  EXPECT_EQ(1, arrays.counting().live());
  std::thread::id last;
  std::thread([&] {
    last = std::this_thread::get_id();
    counts.Delete();
  }).join();
  for (WatchedAllocator* allocator : {&device, &pinned, &host}) {
    EXPECT_TRUE(allocator->counting().WaitUntilEmpty());
  }
  if (cuda) {
    EXPECT_NE(last, device.freed_by());
    EXPECT_NE(last, pinned.freed_by());
  }
}

TEST_P(Dlpack, DeletersOnManyThreads) {
  Builder builder(backend(), SomeConfig());
  ASSERT_OK(builder.Build(SomeBatch()));
  builder.Counts();
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&builder, t] {
      for (int i = 0; i < 200; ++i) {
        const int field = (t * 7 + i) % FWDMETA_FIELD_COUNT;
        const Taken<DLManagedTensor> old(builder.meta(), Args(field), -1);
        const Taken<DLManagedTensorVersioned> versioned(builder.meta(), Args(field, 0, FWDMETA_DLPACK_LIVE));
        EXPECT_TRUE(old && versioned);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

// A tensor that a global object holds ends when the process does.
DLManagedTensorVersioned* left_to_exit = nullptr;

TEST_P(Dlpack, DeleterAtExit) {
  ::testing::FLAGS_gtest_death_test_style = "threadsafe";
  EXPECT_EXIT(
      {
        std::atexit([] { left_to_exit->deleter(left_to_exit); });  // runs after all that is registered from here on
        std::vector<fwdmeta_group_config_t> groups;
        const fwdmeta_config_t config = ToC(SomeConfig(), backend(), &groups);
        fwdmeta_builder_t builder = 0;
        fwdmeta_meta_t meta = 0;
        Inputs inputs(backend());
        const reference::Batch source = SomeBatch();
        const fwdmeta_batch_t batch = inputs.Put(source, FWDMETA_MEMORY_DEVICE);
        bool good = fwdmeta_builder_create(&config, &builder) == FWDMETA_OK &&
                    fwdmeta_build(builder, &batch, &meta, nullptr) == FWDMETA_OK;
        const fwdmeta_dlpack_args_t args = Args(FWDMETA_FIELD_POSITION_IDS);
        good = good && fwdmeta_meta_to_dlpack_versioned(meta, &args, 1, &left_to_exit) == FWDMETA_OK &&
               fwdmeta_meta_destroy(meta) == FWDMETA_OK && fwdmeta_builder_destroy(builder) == FWDMETA_OK;
        std::exit(good ? 7 : 1);
      },
      ::testing::ExitedWithCode(7), "");
}

// A refused call says why and writes nothing.
TEST_P(Dlpack, Refused) {
  reference::Config config = SomeConfig();
  config.depth = 2;
  config.outputs &= ~(uint64_t{1} << FWDMETA_FIELD_POSITION_IDS);
  Builder builder(backend(), config);
  ASSERT_OK(builder.Build(SomeBatch()));
  builder.Counts();
  const fwdmeta_meta_t meta = builder.meta();
  DLManagedTensor* const untouched = reinterpret_cast<DLManagedTensor*>(8);
  DLManagedTensor* out = untouched;
  const auto expect = [&](fwdmeta_status_t want, fwdmeta_meta_t handle, const fwdmeta_dlpack_args_t& args,
                          int64_t stream, const char* text) {
    EXPECT_STATUS(want, fwdmeta_meta_to_dlpack(handle, &args, stream, &out));
    EXPECT_NE(std::string::npos, std::string(fwdmeta_last_error()).find(text)) << fwdmeta_last_error();
    EXPECT_EQ(untouched, out) << "a failed call wrote its output";
  };
  const fwdmeta_dlpack_args_t good = Args(FWDMETA_FIELD_CU_SEQLENS_Q);
  expect(FWDMETA_INVALID_HANDLE, 0, good, 1, "0x0");
  expect(FWDMETA_INVALID_HANDLE, builder.handle(), good, 1, "no forward meta");
  expect(FWDMETA_OUT_OF_RANGE, meta, Args(FWDMETA_FIELD_COUNT), 1, "field is 41");
  expect(FWDMETA_OUT_OF_RANGE, meta, Args(-1), 1, "field is -1");
  expect(FWDMETA_NOT_FOUND, meta, Args(FWDMETA_FIELD_CU_SEQLENS_Q, 1), 1, "cu_seqlens_q[1]");
  expect(FWDMETA_NOT_FOUND, meta, Args(FWDMETA_FIELD_SLOT_MAPPING, 3), 1, "slot_mapping[3]");
  expect(FWDMETA_NOT_FOUND, meta, Args(FWDMETA_FIELD_POSITION_IDS), 1, "position_ids");
  expect(FWDMETA_INVALID_ARGUMENT, meta, Args(FWDMETA_FIELD_CU_SEQLENS_Q, 0, 2), 1, "shape is 2");
  expect(FWDMETA_INVALID_ARGUMENT, meta, good, 0, "stream is 0");
  expect(FWDMETA_INVALID_ARGUMENT, meta, good, -2, "stream is -2");
  fwdmeta_dlpack_args_t args = good;
  args.struct_size = 0;
  expect(FWDMETA_INVALID_ARGUMENT, meta, args, 1, "args.struct_size is 0");
  args = good;
  args.device_type = backend() == FWDMETA_BACKEND_CUDA ? FWDMETA_DLPACK_CPU : FWDMETA_DLPACK_CUDA;
  expect(FWDMETA_UNSUPPORTED, meta, args, 1, "device_type is");
  EXPECT_STATUS(FWDMETA_UNSUPPORTED, fwdmeta_meta_dlpack_device(meta, &args, nullptr, nullptr));
  EXPECT_OK(fwdmeta_meta_dlpack_device(meta, &good, nullptr, nullptr));
  EXPECT_STATUS(FWDMETA_INVALID_HANDLE, fwdmeta_meta_dlpack_device(0, &good, nullptr, nullptr));
  EXPECT_STATUS(FWDMETA_INVALID_ARGUMENT, fwdmeta_meta_dlpack_device(meta, nullptr, nullptr, nullptr));
  EXPECT_STATUS(FWDMETA_INVALID_ARGUMENT, fwdmeta_meta_to_dlpack(meta, nullptr, 1, &out));
  EXPECT_STATUS(FWDMETA_INVALID_ARGUMENT, fwdmeta_meta_to_dlpack(meta, &good, 1, nullptr));
  EXPECT_STATUS(FWDMETA_INVALID_ARGUMENT, fwdmeta_meta_to_dlpack_no_sync(meta, &good, nullptr));
  EXPECT_STATUS(FWDMETA_INVALID_ARGUMENT, fwdmeta_meta_to_dlpack_versioned(meta, &good, 1, nullptr));
  EXPECT_STATUS(FWDMETA_INVALID_ARGUMENT, fwdmeta_meta_to_dlpack_versioned_no_sync(meta, &good, nullptr));
  EXPECT_EQ(untouched, out);

  // A step with an error has no live part; its arrays, all padding, can be had.
  ASSERT_OK(builder.Build(MakeBatch({{0, 1, 1}, {0, -5, 1}})));
  EXPECT_STATUS(FWDMETA_INVALID_BATCH, fwdmeta_meta_wait(builder.meta(), FWDMETA_WAIT_FINAL, -1, nullptr));
  expect(FWDMETA_INVALID_BATCH, builder.meta(), Args(FWDMETA_FIELD_CU_SEQLENS_Q, 0, FWDMETA_DLPACK_LIVE), 1, "-5");
  EXPECT_TRUE(Taken<DLManagedTensor>(builder.meta(), good, 1));

  // With its entry of the mirror go the *_cpu arrays and the counts.
  const reference::Batch later = SomeBatch();
  fwdmeta_batch_t batch = builder.inputs().Put(later, FWDMETA_MEMORY_DEVICE);
  fwdmeta_meta_t old = 0;
  ASSERT_OK(fwdmeta_build(builder.handle(), &batch, &old, nullptr));
  for (int i = 0; i < 2; ++i) ASSERT_OK(builder.Build(later));
  expect(FWDMETA_EXPIRED, old, Args(FWDMETA_FIELD_MAX_LEN_TENSOR_CPU), 1, "max_len_tensor_cpu");
  expect(FWDMETA_EXPIRED, old, Args(FWDMETA_FIELD_CU_SEQLENS_Q, 0, FWDMETA_DLPACK_LIVE), 1, "expired");
  EXPECT_TRUE(Taken<DLManagedTensor>(old, good, 1));
  EXPECT_OK(fwdmeta_meta_destroy(old));
}

// The rule of growing structs, for the arguments.
TEST_P(Dlpack, ArgumentsOfOtherVersions) {
  Builder builder(backend(), SomeConfig());
  ASSERT_OK(builder.Build(SomeBatch()));
  builder.Counts();
  struct {
    fwdmeta_dlpack_args_t args = FWDMETA_DLPACK_ARGS_INITIALIZER;
    uint64_t later = 0;
  } newer;
  newer.args.field = FWDMETA_FIELD_POSITION_IDS;
  newer.args.struct_size = sizeof(newer);
  { EXPECT_TRUE(Taken<DLManagedTensor>(builder.meta(), newer.args, 1)); }
  newer.later = 1;
  DLManagedTensor* out = nullptr;
  EXPECT_STATUS(FWDMETA_INVALID_ARGUMENT, fwdmeta_meta_to_dlpack_no_sync(builder.meta(), &newer.args, &out));
  fwdmeta_dlpack_args_t older = Args(FWDMETA_FIELD_POSITION_IDS, 9, 9);  // of which only the field is seen
  older.struct_size = offsetof(fwdmeta_dlpack_args_t, group);
  EXPECT_TRUE(Taken<DLManagedTensor>(builder.meta(), older, 1));
}

INSTANTIATE_BACKENDS(Dlpack);

TEST(DlpackHost, StreamsAreIgnored) {
  Builder builder(FWDMETA_BACKEND_HOST, SomeConfig());
  ASSERT_OK(builder.Build(SomeBatch()));
  for (const int64_t stream : {int64_t{-1}, int64_t{1}, int64_t{2}, int64_t{0x7fff12345678}}) {
    EXPECT_TRUE(Taken<DLManagedTensorVersioned>(builder.meta(), Args(FWDMETA_FIELD_COUNTS), stream)) << stream;
  }
}

#if FWDMETA_TEST_CUDA

class DlpackCuda : public ::testing::Test {
 protected:
  void SetUp() override {
    FWDMETA_SKIP_WITHOUT(FWDMETA_BACKEND_CUDA);
    for (cudaStream_t* stream : {&build_, &consumer_}) {
      ASSERT_EQ(cudaSuccess, cudaStreamCreateWithFlags(stream, cudaStreamNonBlocking));
    }
  }
  void TearDown() override {
    open_ = true;
    for (cudaStream_t stream : {build_, consumer_}) {
      if (stream != nullptr) cudaStreamDestroy(stream);
    }
  }
  static int64_t Number(cudaStream_t stream) { return reinterpret_cast<int64_t>(stream); }
  // Holds the build's stream until open_.
  void Hold() {
    const auto wait = [](void* open) {
      while (!*static_cast<std::atomic<bool>*>(open)) std::this_thread::yield();
    };
    ASSERT_EQ(cudaSuccess, cudaLaunchHostFunc(build_, wait, &open_));
  }

  cudaStream_t build_ = nullptr, consumer_ = nullptr;
  std::atomic<bool> open_{false};
};

TEST_F(DlpackCuda, TheConsumersStreamWaitsForTheBuild) {
  Builder builder(FWDMETA_BACKEND_CUDA, SomeConfig());
  const reference::Batch source = SomeBatch();
  fwdmeta_batch_t batch = builder.inputs().Put(source, FWDMETA_MEMORY_DEVICE);
  batch.stream = build_;
  int64_t* copy = nullptr;
  const size_t bytes = static_cast<size_t>(builder.config().max_num_tokens) * sizeof(int64_t);
  ASSERT_EQ(cudaSuccess, cudaMallocHost(reinterpret_cast<void**>(&copy), bytes));
  std::memset(copy, 0x77, bytes);
  Hold();
  ASSERT_OK(builder.Build(batch));
  const Taken<DLManagedTensorVersioned> taken(builder.meta(), Args(FWDMETA_FIELD_POSITION_IDS), Number(consumer_));
  ASSERT_TRUE(taken);
  ASSERT_EQ(cudaSuccess, cudaMemcpyAsync(copy, taken.tensor().data, bytes, cudaMemcpyDeviceToHost, consumer_));
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  EXPECT_EQ(cudaErrorNotReady, cudaStreamQuery(consumer_)) << "the consumer has not waited";
  open_ = true;
  ASSERT_EQ(cudaSuccess, cudaStreamSynchronize(consumer_));
  const reference::Result want = reference::Build(builder.config(), source);
  EXPECT_EQ(want.fields[FWDMETA_FIELD_POSITION_IDS],
            std::vector<int64_t>(copy, copy + builder.config().max_num_tokens));
  cudaFreeHost(copy);
}

// Neither call makes the host wait, and the one without a stream makes nobody wait.
TEST_F(DlpackCuda, NoSyncLeavesTheConsumersStreamAlone) {
  Builder builder(FWDMETA_BACKEND_CUDA, SomeConfig());
  const reference::Batch source = SomeBatch();
  fwdmeta_batch_t batch = builder.inputs().Put(source, FWDMETA_MEMORY_DEVICE);
  batch.stream = build_;
  Hold();
  ASSERT_OK(builder.Build(batch));
  const Taken<DLManagedTensor> taken(builder.meta(), Args(FWDMETA_FIELD_POSITION_IDS));
  const Taken<DLManagedTensor> by_number(builder.meta(), Args(FWDMETA_FIELD_POSITION_IDS), -1);
  EXPECT_TRUE(taken && by_number);
  EXPECT_EQ(cudaSuccess, cudaStreamQuery(consumer_));
  EXPECT_EQ(cudaErrorNotReady, cudaStreamQuery(build_));
  DLManagedTensor* out = nullptr;
  const fwdmeta_dlpack_args_t live = Args(FWDMETA_FIELD_POSITION_IDS, 0, FWDMETA_DLPACK_LIVE);
  EXPECT_STATUS(FWDMETA_NOT_READY, fwdmeta_meta_to_dlpack_no_sync(builder.meta(), &live, &out));
  open_ = true;
  ASSERT_EQ(cudaSuccess, cudaStreamSynchronize(build_));
}

// Takers that know no CUDA_HOST get pinned memory as plain host memory.
TEST_F(DlpackCuda, PinnedMemoryAsPlain) {
  Builder builder(FWDMETA_BACKEND_CUDA, SomeConfig());
  const reference::Batch source = SomeBatch();
  ASSERT_OK(builder.Build(source));
  builder.Counts();
  fwdmeta_dlpack_args_t args = Args(FWDMETA_FIELD_MAX_LEN_TENSOR_CPU);
  args.device_type = FWDMETA_DLPACK_CPU;
  const Taken<DLManagedTensor> taken(builder.meta(), args);
  ASSERT_TRUE(taken);
  EXPECT_EQ(FWDMETA_DLPACK_CPU, taken.tensor().device.device_type);
  EXPECT_EQ(reference::Build(builder.config(), source).fields[FWDMETA_FIELD_MAX_LEN_TENSOR_CPU],
            Read(FWDMETA_BACKEND_HOST, taken.tensor()));
}

// What may be done while a stream is being captured, and leaves the capture valid.
TEST_F(DlpackCuda, WhileCapturing) {
  reference::Config config = SomeConfig();
  config.generations = 2;
  Builder builder(FWDMETA_BACKEND_CUDA, config);
  const reference::Batch source = SomeBatch();
  fwdmeta_batch_t batch = builder.inputs().Put(source, FWDMETA_MEMORY_DEVICE);
  batch.stream = build_;
  ASSERT_EQ(cudaSuccess, cudaStreamBeginCapture(build_, cudaStreamCaptureModeGlobal));
  ASSERT_OK(builder.Build(batch));
  const fwdmeta_dlpack_args_t args = Args(FWDMETA_FIELD_POSITION_IDS);
  DLManagedTensor* out = nullptr;
  { EXPECT_TRUE(Taken<DLManagedTensor>(builder.meta(), args)); }                  // deleted under capture
  { EXPECT_TRUE(Taken<DLManagedTensor>(builder.meta(), args, Number(build_))); }  // in order on the build's own stream
  EXPECT_STATUS(FWDMETA_UNAVAILABLE, fwdmeta_meta_to_dlpack(builder.meta(), &args, Number(consumer_), &out));
  cudaGraph_t graph = nullptr;
  ASSERT_EQ(cudaSuccess, cudaStreamEndCapture(build_, &graph));
  EXPECT_NE(nullptr, graph);
  cudaGraphDestroy(graph);

  // The last holder of a builder lets go under capture.
  std::vector<fwdmeta_group_config_t> groups;
  const fwdmeta_config_t c = ToC(config, FWDMETA_BACKEND_CUDA, &groups);
  fwdmeta_builder_t other = 0;
  fwdmeta_meta_t meta = 0;
  ASSERT_OK(fwdmeta_builder_create(&c, &other));
  ASSERT_OK(fwdmeta_build(other, &batch, &meta, nullptr));
  Taken<DLManagedTensor> last(meta, args, Number(consumer_));
  ASSERT_EQ(cudaSuccess, cudaDeviceSynchronize());
  ASSERT_EQ(cudaSuccess, cudaStreamBeginCapture(consumer_, cudaStreamCaptureModeGlobal));
  EXPECT_STATUS(FWDMETA_NOT_CAPTURABLE, fwdmeta_meta_to_dlpack(meta, &args, Number(consumer_), &out));
  ASSERT_OK(fwdmeta_meta_destroy(meta));
  ASSERT_OK(fwdmeta_builder_destroy(other));
  last.Delete();
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  ASSERT_EQ(cudaSuccess, cudaStreamEndCapture(consumer_, &graph));
  EXPECT_NE(nullptr, graph);
  cudaGraphDestroy(graph);
}

#endif  // FWDMETA_TEST_CUDA

}  // namespace
}  // namespace fwdmeta_test
