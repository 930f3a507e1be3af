// Two mappings: their lists of tiles and the prefix sums of tiles.
#pragma once

#include "build/cuda/role.cuh"

namespace fwdmeta {

template <int kItems, bool kChunked, Mapping kFirst, Mapping kSecond>
class TilesRole : RoleBlock<kItems, kChunked> {
  using Base = RoleBlock<kItems, kChunked>;
  using Base::args_, Base::shared_, Base::block_, Base::share_, Base::shares_, Base::piece_, Base::pieces_;
  using typename Base::Block, typename Base::Scan;

 public:
  __device__ TilesRole(const BuildArgs& args, BlockShared<kItems, kChunked>& shared, int32_t role, uint32_t index)
      : Base(args, shared, role, index) {}

  __device__ void Run() {
    const uint32_t previous[2] = {static_cast<uint32_t>(args_.set->mapping[kFirst]),
                                  static_cast<uint32_t>(args_.set->mapping[kSecond])};
    block_.Load();
    uint32_t best = 0;
    MlaChunk chunk = {args_.plan.block, 0, 0};
    if constexpr (kFirst == kDecoder) chunk = block_.ChooseMlaChunk(&best);
    uint32_t tiles[2][kItems], sum[2] = {0, 0}, to[2], flags = 0;
#pragma unroll
    for (int i = 0; i < kItems; ++i) {
      tiles[0][i] = TilesOf<kFirst>(block_.slot[i], chunk);
      tiles[1][i] = TilesOf<kSecond>(block_.slot[i], chunk);
#pragma unroll
      for (int m = 0; m < 2; ++m) {
        sum[m] += tiles[m][i];
        if (tiles[m][i] > kOwnerEntries) flags |= kFirstFlag << m;
      }
    }
    flags |= this->Arrived(previous[0] | previous[1]);
    block_.PutVerdict(flags);
    block_.PutTokens();
    to[0] = kFirst == kDecoder ? block_.PutScan(kScanRow, sum[0]) : block_.PutSparseScan(kScanRow, sum[0]);
    to[1] = block_.PutSparseScan(kScanRow + 1, sum[1]);
    __syncthreads();
    this->InputsRead();
    const bool last = this->LastToRead();
    const bool good = block_.Good(kSumTokensLow);
    const int32_t first_quantity =
        kFirst == kDecoder && best > 0 ? kSumCandidates + static_cast<int32_t>(best) - 1 : kDecoderNumBlocks + kFirst;
    const Scan scan[2] = {this->FinishScan(good, kScanRow, to[0], sum[0], first_quantity),
                          this->FinishScan(good, kScanRow + 1, to[1], sum[1], kDecoderNumBlocks + kSecond)};
    bool by_owner[2];
#pragma unroll
    for (int m = 0; m < 2; ++m) {
      by_owner[m] = (block_.flags() & kFirstFlag << m) == 0;
      if (!good) {
#pragma unroll
        for (int i = 0; i < kItems; ++i) tiles[m][i] = 0;
      }
      if (!by_owner[m]) this->SharePrefix(m, scan[m], [&](int i) { return tiles[m][i]; });
    }
    if (!by_owner[0] || !by_owner[1]) __syncthreads();
    StoreMapping<kFirst>(0, scan[0], by_owner[0], tiles[0], previous[0]);
    StoreMapping<kSecond>(1, scan[1], by_owner[1], tiles[1], previous[1]);
    if (last) {
      args_.set->mapping[kFirst] = static_cast<int32_t>(scan[0].all);
      args_.set->mapping[kSecond] = static_cast<int32_t>(scan[1].all);
    }
  }

 private:
  template <Mapping kMapping>
  __device__ uint32_t TilesOf(const Slot& slot, const MlaChunk& chunk) const {
    if constexpr (kMapping == kDecoder) return DecoderTiles(args_.plan, slot, chunk);
    if constexpr (kMapping == kEncoder) return EncoderTiles(args_.plan, slot);
    if constexpr (kMapping == kKv) return KvTiles(args_.plan, slot);
    return PreCacheTiles(args_.plan, slot);
  }

  template <Mapping kMapping>
  __device__ void StoreMapping(int32_t which, const Scan& scan, bool by_owner, const uint32_t (&tiles)[kItems],
                               uint32_t previous) {
    constexpr MappingFields kFields = kMappingFields[kMapping];
    int32_t* batch_ids = args_.out.i32(kFields.batch_ids);
    int32_t* tile_ids = args_.out.i32(kFields.tile_ids);
    this->StoreCu(args_.out.i32(kFields.cu_tiles), scan, [&](int i) { return tiles[i]; });
    const Range range = Piece(scan.before, scan.before + scan.total, share_, shares_, 4);
    if (by_owner) {
      uint32_t x = scan.before + scan.exclusive;
#pragma unroll
      for (int i = 0; i < kItems; ++i) {
        for (uint32_t tile = 0; tile < tiles[i]; ++tile, ++x) {
          if (!range.Contains(x)) continue;
          if (batch_ids != nullptr) batch_ids[x] = block_.first_slot() + i;
          if (tile_ids != nullptr) tile_ids[x] = static_cast<int32_t>(tile);
        }
      }
    } else {
      this->StorePairs(batch_ids, tile_ids, range, [&](uint32_t x, const Range& valid, int2(&pair)[4]) {
        const uint32_t* prefix = shared_.prefix[which];
        uint32_t slot = this->FindInBlock(which, max(x, valid.begin) - scan.before);
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
    this->ErasePairs(batch_ids, tile_ids, scan.all, previous);
    if (this->HasTail()) this->FillCuTail(args_.out.i32(kFields.cu_tiles), scan);
  }
};

}  // namespace fwdmeta
