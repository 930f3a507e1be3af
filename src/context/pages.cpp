// Lists of pages: how many each sequence has, and allocation blocks as the kernels' pages.
#include "base/math.h"
#include "context/arrays.h"
#include "context/helpers.h"

namespace fwdmeta {

Status PagedIndptr(const int32_t* seq_lens, int64_t num_reqs, int64_t page_size, int32_t* indptr,
                   int32_t* last_page_len) {
  FWDMETA_TRY(CheckRange("num_reqs", num_reqs, 0));
  FWDMETA_TRY(CheckRange("page_size", page_size, 1));
  FWDMETA_TRY(CheckArray(seq_lens, num_reqs, "seq_lens"));
  FWDMETA_TRY(CheckAligned(indptr, "indptr"));
  FWDMETA_TRY(CheckAligned(last_page_len, "last_page_len"));
  FWDMETA_TRY(CheckLengths(seq_lens, static_cast<int32_t>(num_reqs), "seq_lens"));
  const auto pages = [&](int64_t i) { return CeilDiv(seq_lens[i], page_size); };
  int64_t total = 0;
  for (int64_t i = 0; i < num_reqs; ++i) {
    total += pages(i);
    if (total > INT32_MAX) {
      return Fail(FWDMETA_INVALID_BATCH, "the pages of requests 0..%lld are %lld, past %d", (long long)i,
                  (long long)total, INT32_MAX);
    }
  }
  int32_t sum = 0;
  for (int64_t i = 0; i < num_reqs; ++i) {
    const int32_t length = seq_lens[i];
    const int32_t own_pages = static_cast<int32_t>(pages(i));
    if (indptr != nullptr) indptr[i] = sum;
    if (last_page_len != nullptr) {
      last_page_len[i] = length == 0 ? 0 : static_cast<int32_t>(length - (own_pages - 1) * page_size);
    }
    sum += own_pages;
  }
  if (indptr != nullptr) indptr[num_reqs] = sum;
  return FWDMETA_OK;
}

Status ExpandBlockTable(const int32_t* blocks, int64_t count, int64_t block_size, int64_t kernel_block_size,
                        int32_t* out) {
  FWDMETA_TRY(CheckRange("count", count, 0));
  FWDMETA_TRY(CheckRange("block_size", block_size, 1));
  FWDMETA_TRY(CheckRange("kernel_block_size", kernel_block_size, 1));
  if (block_size % kernel_block_size != 0) {
    return Fail(FWDMETA_INVALID_ARGUMENT, "kernel_block_size %lld does not divide block_size %lld",
                (long long)kernel_block_size, (long long)block_size);
  }
  FWDMETA_TRY(CheckArray(blocks, count, "blocks"));
  FWDMETA_TRY(CheckArray(out, count, "out"));
  const int64_t per_block = block_size / kernel_block_size;
  for (int64_t i = 0; i < count; ++i) {
    const int64_t last = blocks[i] * per_block + per_block - 1;
    if (blocks[i] >= 0 && last > INT32_MAX) {
      return Fail(FWDMETA_OUT_OF_RANGE, "entry %lld: block %d has kernel block %lld, past %d", (long long)i, blocks[i],
                  (long long)last, INT32_MAX);
    }
  }
  for (int64_t i = 0; i < count; ++i) {
    for (int64_t j = 0; j < per_block; ++j) {
      *out++ = blocks[i] < 0 ? -1 : static_cast<int32_t>(blocks[i] * per_block + j);
    }
  }
  return FWDMETA_OK;
}

}  // namespace fwdmeta
