// Prefix sums of the lengths and what else there is one of per slot.
#pragma once

#include "build/cuda/role.cuh"

namespace fwdmeta {

template <int kItems, bool kChunked>
class LengthsRole : RoleBlock<kItems, kChunked> {
  using Base = RoleBlock<kItems, kChunked>;
  using Base::args_, Base::shared_, Base::block_, Base::share_, Base::shares_, Base::piece_, Base::pieces_;
  using typename Base::Block, typename Base::Scan;

 public:
  __device__ LengthsRole(const BuildArgs& args, BlockShared<kItems, kChunked>& shared, int32_t role, uint32_t index)
      : Base(args, shared, role, index) {}

  __device__ void Run() {
    block_.Load();
    block_.PutVerdict(0);
    const uint32_t tokens = this->TokensOfThread();
    const uint32_t kv = this->SumOfThread([](const Slot& slot) { return slot.kv(); });
    const uint32_t attn_kv = this->SumOfThread([](const Slot& slot) { return slot.attn_kv(); });
    const uint32_t tokens_to = block_.PutScan(kScanRow, tokens);
    const uint32_t kv_to = block_.PutScan(kScanRow + 1, kv);
    const uint32_t attn_kv_to = block_.PutScan(kScanRow + 2, attn_kv);
    __syncthreads();
    this->InputsRead();
    const bool good = block_.Good(kScanRow);
    if (!good) block_.Clear();
    const Scan q = this->FinishScan(good, kScanRow, tokens_to, tokens, kSumTokensLow);
    const Scan k = this->FinishScan(good, kScanRow + 1, kv_to, kv, kSumKvLow);
    const Scan attn = this->FinishScan(good, kScanRow + 2, attn_kv_to, attn_kv, kSumAttnKv);
    const Outputs& out = args_.out;
    this->StoreCu(out.i32(FWDMETA_FIELD_CU_SEQLENS_Q), q, [this](int i) { return block_.slot[i].this_time; });
    this->StoreCu(out.i32(FWDMETA_FIELD_CU_SEQLENS_K), k, [this](int i) { return block_.slot[i].kv(); });
    this->StoreCu(out.i32(FWDMETA_FIELD_ATTN_CU_SEQLENS_K), attn, [this](int i) { return block_.slot[i].attn_kv(); });
    this->StoreSlots(out.i32(FWDMETA_FIELD_SEQ_LENS_KV), args_.plan.pad_seq_len,
                     [](const Slot& slot) { return slot.kv(); });
    this->StoreSlots(out.i32(FWDMETA_FIELD_SEQ_LENS_KV_LOCAL), 0,
                     [this](const Slot& slot) { return LocalKvLength(args_.plan, slot.kv()); });
    uint32_t end = q.before + q.exclusive;
    this->StoreSlots(out.i32(FWDMETA_FIELD_LAST_TOKEN_INDEX), -1, [&end](const Slot& slot) {
      end += slot.this_time;
      return static_cast<int32_t>(end) - 1;
    });
    if (!this->HasTail()) return;
    this->FillCuTail(out.i32(FWDMETA_FIELD_CU_SEQLENS_Q), q);
    this->FillCuTail(out.i32(FWDMETA_FIELD_CU_SEQLENS_K), k);
    this->FillCuTail(out.i32(FWDMETA_FIELD_ATTN_CU_SEQLENS_K), attn);
    this->FillSlotsTail(out.i32(FWDMETA_FIELD_SEQ_LENS_KV), args_.plan.pad_seq_len);
    this->FillSlotsTail(out.i32(FWDMETA_FIELD_SEQ_LENS_KV_LOCAL), 0);
    this->FillSlotsTail(out.i32(FWDMETA_FIELD_LAST_TOKEN_INDEX), -1);
  }
};

}  // namespace fwdmeta
