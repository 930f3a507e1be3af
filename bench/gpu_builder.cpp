#include "gpu_builder.h"

#include <algorithm>
#include <cstring>

namespace fwdmeta_bench {
namespace {

constexpr int kPoison = 0x5A;
constexpr int64_t kWaitMicroseconds = 5000000;
constexpr size_t kPieceBytes = size_t{16} << 20;

template <class T>
size_t Bytes(const std::vector<T>& values) {
  return values.size() * sizeof(T);
}

template <class T>
void UploadVector(const DeviceBuffer& to, const std::vector<T>& from) {
  if (!from.empty()) BENCH_CUDA(cudaMemcpy(to.data(), from.data(), Bytes(from), cudaMemcpyHostToDevice));
}

std::string Where(fwdmeta_field_t field, int64_t entry, const std::string& got, const std::string& want) {
  return std::string(fwdmeta_field_name(field)) + "[" + std::to_string(entry) + "] is " + got +
         ", the host backend has " + want;
}

std::string Entry(const unsigned char* data, int64_t size) {
  int64_t value = 0;
  if (size == 4) {
    int32_t narrow = 0;
    std::memcpy(&narrow, data, 4);
    value = narrow;
  } else {
    std::memcpy(&value, data, size);
  }
  return std::to_string(value);
}

// Compares host memory with memory of either kind, in pieces.
void CompareBytes(fwdmeta_field_t field, const void* got, const void* want, size_t bytes, int64_t size_of_type) {
  static std::vector<unsigned char> piece;
  const auto* expected = static_cast<const unsigned char*>(want);
  for (size_t begin = 0; begin < bytes; begin += kPieceBytes) {
    const size_t length = std::min(kPieceBytes, bytes - begin);
    piece.resize(std::max(piece.size(), length));
    BENCH_CUDA(cudaMemcpy(piece.data(), static_cast<const unsigned char*>(got) + begin, length, cudaMemcpyDefault));
    if (std::memcmp(piece.data(), expected + begin, length) == 0) continue;
    const auto differs = std::mismatch(piece.begin(), piece.begin() + length, expected + begin).first - piece.begin();
    const int64_t in_piece = differs / size_of_type * size_of_type;
    throw Failure(Where(field, (static_cast<int64_t>(begin) + in_piece) / size_of_type,
                        Entry(piece.data() + in_piece, size_of_type),
                        Entry(expected + begin + in_piece, size_of_type)));
  }
}

}  // namespace

DeviceInputs::DeviceInputs(const Case& c, int64_t table_width)
    : encoder_(c.slots() * 4),
      decoder_(c.slots() * 4),
      this_time_(c.slots() * 4),
      table_(c.slots() * table_width * 4),
      ids_(c.slots() * c.ids_width() * 8),
      drafts_(c.slots() * c.drafts_width() * 8) {}

void DeviceInputs::Upload(const Inputs& inputs) {
  BENCH_CUDA(cudaDeviceSynchronize());
  UploadVector(encoder_, inputs.encoder);
  UploadVector(decoder_, inputs.decoder);
  UploadVector(this_time_, inputs.this_time);
  UploadVector(table_, inputs.table);
  UploadVector(ids_, inputs.ids);
  UploadVector(drafts_, inputs.drafts);
  BENCH_CUDA(cudaDeviceSynchronize());  // a small copy from pageable memory may return before it is there
}

InputPointers DeviceInputs::pointers() const {
  return {encoder_.data<int32_t>(), decoder_.data<int32_t>(), this_time_.data<int32_t>(),
          table_.data<int32_t>(),   ids_.data<int64_t>(),     drafts_.size() == 0 ? nullptr : drafts_.data<int64_t>()};
}

CheckedBuilder::CheckedBuilder(CaseFixture* fixture)
    : fixture_(fixture),
      builder_(MakeConfig(fixture->spec(), FWDMETA_BACKEND_CUDA, fixture->num_sms())),
      inputs_(fixture->spec(), fixture->table_width()),
      args_(fixture->spec(), fixture->table_width(), inputs_.pointers(), TheGpu().stream) {
  inputs_.Upload(fixture->timed());
}

CheckedBuilder::~CheckedBuilder() { cudaDeviceSynchronize(); }

void CheckedBuilder::Poison(const fwdmeta_counts_t& next) {
  for (fwdmeta_field_t field = 0; field < FWDMETA_FIELD_COUNT; ++field) {
    fwdmeta_tensor_t tensor = FWDMETA_TENSOR_INITIALIZER;
    if (IsMirrorField(field) || fwdmeta_meta_get_field(arrays_.handle(), field, 0, &tensor) != FWDMETA_OK) continue;
    const int64_t entries = std::max(EntriesWritten(field, tensor, previous_), EntriesWritten(field, tensor, next));
    if (entries > 0) BENCH_CUDA(cudaMemset(tensor.data, kPoison, entries * SizeOfType(tensor)));
  }
}

void CheckedBuilder::CompareArrays() {
  for (fwdmeta_field_t field = 0; field < FWDMETA_FIELD_COUNT; ++field) {
    fwdmeta_tensor_t got = FWDMETA_TENSOR_INITIALIZER, want = FWDMETA_TENSOR_INITIALIZER;
    const fwdmeta_status_t found = fwdmeta_meta_get_field(meta_.handle(), field, 0, &got);
    const fwdmeta_status_t expected = fwdmeta_meta_get_field(fixture_->meta(), field, 0, &want);
    if (found != expected || (found != FWDMETA_OK && found != FWDMETA_NOT_FOUND)) {
      throw Failure(std::string(fwdmeta_field_name(field)) + ": " + fwdmeta_status_name(found) +
                    ", on the host backend " + fwdmeta_status_name(expected));
    }
    if (found == FWDMETA_NOT_FOUND) continue;
    int64_t entries = NumEntries(want);
    if (entries != NumEntries(got)) throw Failure(std::string(fwdmeta_field_name(field)) + ": another shape");
    if (field == FWDMETA_FIELD_COUNTS_I64) entries -= 1;  // the step number: the builders have made other steps
    CompareBytes(field, got.data, want.data, entries * SizeOfType(want), SizeOfType(want));
  }
}

void CheckedBuilder::Check(const Inputs& inputs, const std::function<void()>& run) {
  const fwdmeta_counts_t want = fixture_->Build(inputs);
  inputs_.Upload(inputs);
  Poison(want);
  BENCH_CUDA(cudaDeviceSynchronize());
  run();
  BENCH_CUDA(cudaStreamSynchronize(TheGpu().stream));
  fwdmeta_counts_t got = WaitForCounts();
  got.step = want.step;
  if (std::memcmp(&got, &want, sizeof got) != 0) throw Failure("the counts are not those of the host backend");
  CompareArrays();
  previous_ = want;
}

EagerBuilder::EagerBuilder(CaseFixture* fixture)
    : CheckedBuilder(fixture),
      host_args_(fixture->spec(), fixture->table_width(),
                 {fixture->timed().encoder.data(), fixture->timed().decoder.data(), fixture->timed().this_time.data(),
                  inputs_.pointers().table, inputs_.pointers().ids, inputs_.pointers().drafts},
                 TheGpu().stream) {
  host_args_.batch.memory_kind = FWDMETA_MEMORY_HOST;
  BENCH_OK(fwdmeta_build(handle(), &args_.batch, arrays_.Renew(), &step_));
  BENCH_CUDA(cudaStreamSynchronize(TheGpu().stream));
  previous_ = fixture->Build(fixture->timed());
  const auto device_lengths = [&] { BENCH_OK(fwdmeta_build(handle(), &args_.batch, meta_.Renew(), &step_)); };
  Check(fixture->timed(), device_lengths);
  Check(fixture->Scrambled(), device_lengths);
  Check(fixture->timed(), [&] { BENCH_OK(fwdmeta_build(handle(), &host_args_.batch, meta_.Renew(), &step_)); });
}

fwdmeta_counts_t EagerBuilder::WaitForCounts() {
  fwdmeta_counts_t counts = FWDMETA_COUNTS_INITIALIZER;
  BENCH_OK(fwdmeta_counts_wait(handle(), step_, FWDMETA_WAIT_FINAL, kWaitMicroseconds, &counts));
  return counts;
}

CapturedBuilder::CapturedBuilder(CaseFixture* fixture) : CheckedBuilder(fixture) {
  // A view of a captured build shows the newest replay of any graph, so one serves for all.
  {
    const Graph first(1, [&] { BENCH_OK(fwdmeta_build(handle(), &args_.batch, arrays_.Renew(), nullptr)); });
  }
  const Graph checked(1, [&] { BENCH_OK(fwdmeta_build(handle(), &args_.batch, meta_.Renew(), nullptr)); });
  const auto replay = [&] { checked.Replay(); };
  Check(fixture->timed(), replay);
  Check(fixture->Scrambled(), replay);
  Check(fixture->timed(), replay);
  timer_ = std::make_unique<GraphTimer>([this] { Enqueue(TheGpu().stream); });
  // The graph that is timed, once more.
  Check(fixture->timed(), [&] { timer_->TimeOnce(); });
}

void CapturedBuilder::Enqueue(cudaStream_t stream) {
  fwdmeta_batch_t batch = args_.batch;
  batch.stream = stream;
  BENCH_OK(fwdmeta_build(handle(), &batch, nullptr, nullptr));
}

fwdmeta_counts_t CapturedBuilder::WaitForCounts() {
  fwdmeta_counts_t counts = FWDMETA_COUNTS_INITIALIZER;
  BENCH_OK(fwdmeta_replay_wait(handle(), 0, FWDMETA_WAIT_FINAL, kWaitMicroseconds, &counts));
  return counts;
}

}  // namespace fwdmeta_bench
