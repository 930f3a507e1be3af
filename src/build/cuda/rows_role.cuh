// The rows that need logits.
#pragma once

#include "build/cuda/role.cuh"

namespace fwdmeta {

template <int kItems, bool kChunked>
class RowsRole : RoleBlock<kItems, kChunked> {
  using Base = RoleBlock<kItems, kChunked>;
  using Base::args_, Base::shared_, Base::block_, Base::share_, Base::shares_, Base::piece_, Base::pieces_;
  using typename Base::Block, typename Base::Scan;

 public:
  __device__ RowsRole(const BuildArgs& args, BlockShared<kItems, kChunked>& shared, int32_t role, uint32_t index)
      : Base(args, shared, role, index) {}

  __device__ void Run() {
    const uint32_t previous = args_.set->rows;
    block_.Load();
    const uint32_t tokens = this->TokensOfThread();
    const uint32_t rows = this->SumOfThread([](const Slot& slot) { return slot.output_rows(); });
    uint32_t flags = 0;
#pragma unroll
    for (int i = 0; i < kItems; ++i) {
      if (block_.slot[i].output_rows() > static_cast<int32_t>(kOwnerEntries)) flags = kFirstFlag;
    }
    flags |= this->Arrived(previous);
    block_.PutVerdict(flags);
    const uint32_t tokens_to = block_.PutScan(kScanRow, tokens);
    const uint32_t rows_to = block_.PutScan(kScanRow + 1, rows);
    __syncthreads();
    this->InputsRead();
    const bool last = this->LastToRead();
    const bool good = block_.Good(kScanRow);
    const bool by_owner = block_.flags() == 0;
    if (!good) block_.Clear();
    const Scan q = this->FinishScan(good, kScanRow, tokens_to, tokens, kSumTokensLow);
    const Scan scan = this->FinishScan(good, kScanRow + 1, rows_to, rows, kSumRows);
    const Outputs& out = args_.out;
    this->StoreCu(out.i32(FWDMETA_FIELD_CU_SEQLENS_Q_OUTPUT), scan,
                  [this](int i) { return block_.slot[i].output_rows(); });
    this->StoreSlots(out.i32(FWDMETA_FIELD_SEQ_LENS_OUTPUT), 0, [](const Slot& slot) { return slot.output_rows(); });
    int32_t* batch_ids = out.i32(FWDMETA_FIELD_BATCH_ID_PER_TOKEN_OUTPUT);
    int32_t* indices = out.i32(FWDMETA_FIELD_LOGITS_INDICES);
    const Range range = Piece(scan.before, scan.before + scan.total, share_, shares_, 4);
    if (by_owner) {
      uint32_t x = scan.before + scan.exclusive, end = q.before + q.exclusive;
#pragma unroll
      for (int i = 0; i < kItems; ++i) {
        const int32_t count = block_.slot[i].output_rows();
        end += block_.slot[i].this_time;
        for (int32_t row = 0; row < count; ++row, ++x) {
          if (!range.Contains(x)) continue;
          if (batch_ids != nullptr) batch_ids[x] = block_.first_slot() + i;
          if (indices != nullptr) indices[x] = static_cast<int32_t>(end) - count + row;
        }
      }
    } else {
      this->SharePrefix(0, q, [this](int i) { return block_.slot[i].this_time; });
      this->SharePrefix(1, scan, [this](int i) { return block_.slot[i].output_rows(); });
      __syncthreads();
      this->StorePairs(batch_ids, indices, range, [&](uint32_t x, const Range& valid, int2(&pair)[4]) {
        const uint32_t* prefix = shared_.prefix[1];
        uint32_t slot = this->FindInBlock(1, max(x, valid.begin) - scan.before);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          if (!valid.Contains(x + i)) continue;
          const uint32_t entry = x + i - scan.before;
          while (prefix[slot + 1] <= entry) ++slot;
          // Rows are the last tokens of their slot.
          pair[i] = make_int2(block_.block_first() + static_cast<int32_t>(slot),
                              static_cast<int32_t>(q.before + shared_.prefix[0][slot + 1] - prefix[slot + 1] + entry));
        }
      });
    }
    this->ErasePairs(batch_ids, indices, scan.all, previous);
    if (this->HasTail()) {
      this->FillCuTail(out.i32(FWDMETA_FIELD_CU_SEQLENS_Q_OUTPUT), scan);
      this->FillSlotsTail(out.i32(FWDMETA_FIELD_SEQ_LENS_OUTPUT), 0);
    }
    if (last) args_.set->rows = static_cast<int32_t>(scan.all);
  }
};

}  // namespace fwdmeta
