#include <algorithm>
#include <flashinfer/attention/scheduler.cuh>
#include <map>
#include <utility>

#include "flashinfer_planner.h"

namespace fwdmeta_bench {
namespace {

constexpr uint32_t kHeadDim = 128, kMlaHeadDim = 512, kBytesOfValue = 2;
constexpr size_t kAlignment = 256;
// What FlashInfer's own wrappers allocate for indices, and more than the partial results of mla take.
constexpr size_t kMlaIndexBytes = size_t{8} << 20, kMlaPartialBytes = size_t{64} << 20;

// The batch as the planners want it: prefix sums of new tokens and of pages, and lengths, without idle slots' stale
// ones.
struct HostLengths {
  explicit HostLengths(const Inputs& inputs) {
    for (size_t b = 0; b < inputs.this_time.size(); ++b) {
      const int32_t n = inputs.this_time[b], kv = n > 0 ? inputs.decoder[b] + n : 0;
      q_indptr.push_back(q_indptr.back() + n);
      kv_indptr.push_back(kv_indptr.back() + (kv + kBlockSize - 1) / kBlockSize);
      kv_len.push_back(kv);
    }
  }
  uint32_t slots() const { return static_cast<uint32_t>(kv_len.size()); }
  int32_t tokens(size_t b) const { return q_indptr[b + 1] - q_indptr[b]; }
  int32_t pages(size_t b) const { return kv_indptr[b + 1] - kv_indptr[b]; }

  std::vector<int32_t> q_indptr = {0}, kv_indptr = {0}, kv_len;
};

// The pinned memory that a plan is made in, and its place on the device.
class Workspace {
 public:
  Workspace(size_t index_bytes, size_t partial_bytes)
      : index_bytes_(index_bytes), host_(index_bytes), device_(index_bytes), partial_(partial_bytes) {}
  void* host() const { return host_.data(); }
  void* device() const { return device_.data(); }
  void* partial() const { return partial_.data(); }
  size_t index_bytes() const { return index_bytes_; }
  size_t partial_bytes() const { return partial_.size(); }

  std::vector<int32_t> Read(int64_t offset, int64_t entries) const {
    std::vector<int32_t> values(static_cast<size_t>(entries));
    BENCH_CUDA(cudaMemcpy(values.data(), device_.data<char>() + offset, values.size() * 4, cudaMemcpyDeviceToHost));
    return values;
  }

 private:
  const size_t index_bytes_;
  PinnedBuffer host_;
  DeviceBuffer device_, partial_;
};

[[noreturn]] void Differ(const char* what, size_t entry, int64_t got, int64_t want) {
  throw Failure(std::string("FlashInfer's ") + what + "[" + std::to_string(entry) + "] is " + std::to_string(got) +
                ", not " + std::to_string(want));
}

// Tiles of query rows, times chunks of pages where the batch alone does not fill the device. Without CUDA graphs, for
// which a plan is longer.
class PrefillPlanner : public FlashinferPlanner {
 public:
  PrefillPlanner(const Case& c, const Inputs& inputs) : tokens_(static_cast<uint32_t>(c.tokens())), lengths_(inputs) {
    size_t index_bytes = 0, partial_bytes = 0;
    BENCH_CUDA(flashinfer::PrefillPlanWorkspaceSize<int32_t>(
        partial_bytes, index_bytes, lengths_.q_indptr.data(), lengths_.kv_indptr.data(), tokens_, lengths_.slots(),
        kQHeads, kKvHeads, kHeadDim, kHeadDim, kBlockSize, kGraph, kBytesOfValue, kNoWindow, kNoFixedSplit, kNoSplit,
        kColocated, kUniform, kFixedUniform, TheGpu().stream));
    workspace_ = std::make_unique<Workspace>(index_bytes + kAlignment, partial_bytes + kAlignment);
  }

  void Plan() override {
    BENCH_CUDA(flashinfer::PrefillPlan<int32_t>(
        workspace_->partial(), workspace_->partial_bytes(), workspace_->device(), workspace_->host(),
        workspace_->index_bytes(), plan_, lengths_.q_indptr.data(), lengths_.kv_indptr.data(), tokens_,
        lengths_.slots(), kQHeads, kKvHeads, kHeadDim, kHeadDim, kBlockSize, kGraph, kBytesOfValue, kNoWindow,
        kNoFixedSplit, kNoSplit, kColocated, kUniform, kFixedUniform, TheGpu().stream));
  }

  void Check() override {
    const std::vector<int32_t> slots = workspace_->Read(plan_.request_indices_offset, plan_.padded_batch_size);
    const std::vector<int32_t> tiles = workspace_->Read(plan_.qo_tile_indices_offset, plan_.padded_batch_size);
    const std::vector<int32_t> chunks = workspace_->Read(plan_.kv_tile_indices_offset, plan_.padded_batch_size);
    const int64_t chunk_pages = workspace_->Read(plan_.kv_chunk_size_ptr_offset, 1)[0] / kBlockSize;
    size_t x = 0;
    for (uint32_t b = 0; b < lengths_.slots(); ++b) {
      const int64_t rows = int64_t{lengths_.tokens(b)} * kHeadsPerKvHead, pages = std::max(lengths_.pages(b), 1);
      for (int64_t tile = 0; tile * plan_.cta_tile_q < rows; ++tile) {
        for (int64_t chunk = 0; chunk * chunk_pages < pages; ++chunk, ++x) {
          if (x == slots.size()) throw Failure("FlashInfer's plan ends in slot " + std::to_string(b));
          if (slots[x] != static_cast<int32_t>(b)) Differ("request_indices", x, slots[x], b);
          if (tiles[x] != tile) Differ("qo_tile_indices", x, tiles[x], tile);
          if (chunks[x] != chunk) Differ("kv_tile_indices", x, chunks[x], chunk);
        }
      }
    }
    if (x != slots.size()) throw Failure("FlashInfer's plan has " + std::to_string(slots.size() - x) + " tiles more");
  }

 private:
  static constexpr bool kGraph = false, kNoSplit = false, kFixedUniform = false;
  static constexpr int32_t kNoWindow = -1, kNoFixedSplit = -1;
  static constexpr int64_t kColocated = 0, kUniform = 0;

  const uint32_t tokens_;
  HostLengths lengths_;
  std::unique_ptr<Workspace> workspace_;
  flashinfer::PrefillPlanInfo plan_;
};

// Tiles of query rows and ranges of keys, balanced over the multiprocessors. The copy is its caller's.
class MlaPlanner : public FlashinferPlanner {
 public:
  explicit MlaPlanner(const Inputs& inputs) : lengths_(inputs), workspace_(kMlaIndexBytes, kMlaPartialBytes) {}

  void Plan() override {
    size_t bytes = 0;
    BENCH_CUDA(flashinfer::MLAPlan<int32_t>(workspace_.partial(), workspace_.partial_bytes(), workspace_.device(),
                                            workspace_.host(), workspace_.index_bytes(), plan_, bytes,
                                            lengths_.q_indptr.data(), lengths_.kv_indptr.data(), lengths_.kv_len.data(),
                                            lengths_.slots(), kQHeads, kMlaHeadDim,
                                            /*causal=*/false, TheGpu().stream));
    BENCH_CUDA(cudaMemcpyAsync(workspace_.device(), workspace_.host(), bytes, cudaMemcpyHostToDevice, TheGpu().stream));
  }

  void Check() override {
    const int64_t works = workspace_.Read(plan_.work_indptr_offset, plan_.num_blks_y + 1).back();
    const std::vector<int32_t> first_token = workspace_.Read(plan_.q_indptr_offset, works);
    const std::vector<int32_t> first_row = workspace_.Read(plan_.q_start_offset, works);
    const std::vector<int32_t> begin = workspace_.Read(plan_.kv_start_offset, works);
    const std::vector<int32_t> end = workspace_.Read(plan_.kv_end_offset, works);
    std::map<std::pair<int32_t, int32_t>, std::map<int32_t, int32_t>> keys;  // of a tile of rows: ends by begin
    for (size_t i = 0; i < first_token.size(); ++i) keys[{first_token[i], first_row[i]}][begin[i]] = end[i];
    const int64_t tile_rows = 64 * plan_.num_blks_x;
    size_t tiles = 0;
    for (uint32_t b = 0; b < lengths_.slots(); ++b) {
      for (int64_t row = 0; row < lengths_.tokens(b) * kQHeads; row += tile_rows, ++tiles) {
        int32_t covered = 0;
        for (const auto& range : keys[{lengths_.q_indptr[b], static_cast<int32_t>(row)}]) {
          if (range.first != covered) Differ("kv_start of slot ", b, range.first, covered);
          covered = range.second;
        }
        if (covered != lengths_.kv_len[b]) Differ("kv_end of slot ", b, covered, lengths_.kv_len[b]);
      }
    }
    if (keys.size() != tiles) throw Failure("FlashInfer's plan has " + std::to_string(keys.size()) + " tiles of rows");
  }

 private:
  HostLengths lengths_;
  Workspace workspace_;
  flashinfer::MLAPlanInfo plan_ = {};
};

}  // namespace

std::unique_ptr<FlashinferPlanner> MakeFlashinferPlanner(const Case& c, const Inputs& inputs) {
  if (c.mla) return std::make_unique<MlaPlanner>(inputs);
  return std::make_unique<PrefillPlanner>(c, inputs);
}

}  // namespace fwdmeta_bench
