// One mapping: its list of tiles and their prefix sums.
#pragma once

#include "build/cuda/role.cuh"

namespace fwdmeta {

template <int kItems, bool kChunked, Mapping kMapping>
class TilesRole : RoleBlock<kItems, kChunked> {
  using Base = RoleBlock<kItems, kChunked>;
  using Base::args_, Base::shared_, Base::block_, Base::share_, Base::shares_, Base::piece_, Base::pieces_;
  using typename Base::Block, typename Base::Scan;

 public:
  __device__ TilesRole(const BuildArgs& args, BlockShared<kItems, kChunked>& shared, int32_t role, uint32_t index)
      : Base(args, shared, role, index) {}

  __device__ void Run() {
    const uint32_t previous = static_cast<uint32_t>(args_.set->mapping[kMapping]);
    block_.Load();
    uint32_t best = 0;
    MlaChunk chunk = {args_.plan.block, 0, 0};
    if constexpr (kMapping == kDecoder) chunk = block_.ChooseMlaChunk(&best);
    uint32_t tiles[kItems], sum = 0, flags = this->Arrived(previous);
#pragma unroll
    for (int i = 0; i < kItems; ++i) {
      tiles[i] = TilesOf(block_.slot[i], chunk);
      sum += tiles[i];
      if (tiles[i] > kOwnerEntries) flags = kFirstFlag;
    }
    block_.PutVerdict(flags);
    block_.PutTokens();
    const uint32_t to = kMapping == kDecoder ? block_.PutScan(kScanRow, sum) : block_.PutSparseScan(kScanRow, sum);
    __syncthreads();
    this->InputsRead();
    const bool last = this->LastToRead();
    const bool good = block_.Good(kSumTokensLow);
    const int32_t quantity = kMapping == kDecoder && best > 0 ? kSumCandidates + static_cast<int32_t>(best) - 1
                                                              : kDecoderNumBlocks + kMapping;
    const Scan scan = this->FinishScan(good, kScanRow, to, sum, quantity);
    if (!good) {
#pragma unroll
      for (int i = 0; i < kItems; ++i) tiles[i] = 0;
    }
    constexpr MappingFields kFields = kMappingFields[kMapping];
    int32_t* batch_ids = args_.out.i32(kFields.batch_ids);
    int32_t* tile_ids = args_.out.i32(kFields.tile_ids);
    const Range range = Piece(scan.before, scan.before + scan.total, share_, shares_, 4);
    if (block_.flags() == 0) {
      uint32_t x = scan.before + scan.exclusive;
#pragma unroll
      for (int i = 0; i < kItems; ++i) {
#pragma unroll 1
        for (uint32_t tile = 0; tile < tiles[i]; ++tile, ++x) {
          if (!range.Contains(x)) continue;
          if (batch_ids != nullptr) batch_ids[x] = block_.first_slot() + i;
          if (tile_ids != nullptr) tile_ids[x] = static_cast<int32_t>(tile);
        }
      }
    } else {
      this->SharePrefix(0, scan, [&](int i) { return tiles[i]; });
      __syncthreads();
      this->StorePairs(batch_ids, tile_ids, range, [&](uint32_t x, const Range& valid, int2(&pair)[4]) {
        const uint32_t* prefix = shared_.prefix[0];
        uint32_t slot = this->FindInBlock(0, max(x, valid.begin) - scan.before);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          if (!valid.Contains(x + i)) continue;
          const uint32_t entry = x + i - scan.before;
          while (prefix[slot + 1] <= entry) ++slot;
          pair[i] =
              make_int2(block_.block_first() + static_cast<int32_t>(slot), static_cast<int32_t>(entry - prefix[slot]));
        }
      });
    }
    this->StoreCu(args_.out.i32(kFields.cu_tiles), scan, [&](int i) { return tiles[i]; });
    this->ErasePairs(batch_ids, tile_ids, scan.all, previous);
    if (this->HasTail()) this->FillCuTail(args_.out.i32(kFields.cu_tiles), scan);
    if (last) args_.set->mapping[kMapping] = static_cast<int32_t>(scan.all);
  }

 private:
  __device__ uint32_t TilesOf(const Slot& slot, const MlaChunk& chunk) const {
    if constexpr (kMapping == kDecoder) return DecoderTiles(args_.plan, slot, chunk);
    if constexpr (kMapping == kEncoder) return EncoderTiles(args_.plan, slot);
    if constexpr (kMapping == kKv) return KvTiles(args_.plan, slot);
    return PreCacheTiles(args_.plan, slot);
  }
};

}  // namespace fwdmeta
