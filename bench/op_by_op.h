// The baseline: a step's block lists made op by op, as FastDeploy 2.x makes them. A rendering from a description of the
// op get_block_shape_and_split_kv_block in its latest public form: the same kernels, memsets, copies and
// synchronisations in the same order, with its one-warp and one-thread loops. No line of it is copied.
//
// What it renders of that op, and what it leaves out:
//   - eager: maxima kernel, copy of the maxima to pageable memory, synchronise; the host then decides. Any cached
//   token:
//     memset of the whole decoder_batch_ids (sized for 1024 chunks a slot), one-warp split, count to pinned memory. Any
//     prefill: two memsets, one-thread split of kv pages, count to pageable memory; two memsets, one-warp split of
//     query tiles, count to pageable memory. Synchronise.
//   - mla: maxima, copy, synchronise; memsets of chunk, count and both lists, chunk search by one thread a candidate,
//     one-thread split, and no second synchronisation.
//   - captured: maxima copies, the decoder's count copy and synchronisations are skipped; branches follow the maxima of
//     the latest eager call. The counts of the prefill lists go to pinned memory here, which a capture surely allows.
//   - left out, in the baseline's favour: temporary allocations (Paddle's pool), all of the framework's own host time,
//   and
//     the other ops of a step (padding offsets, position ids, slot mapping, output rows, pre-cache lists).
#ifndef FWDMETA_BENCH_OP_BY_OP_H_
#define FWDMETA_BENCH_OP_BY_OP_H_

#include "fixture.h"
#include "gpu.h"
#include "gpu_builder.h"

namespace fwdmeta_bench {

class OpByOp {
 public:
  // Compares an eager run with the host backend, in what the two define alike when every slot is live.
  explicit OpByOp(CaseFixture* fixture);
  void RunEager();
  // To the main stream, under capture, after an eager run.
  void EnqueueCaptured();
  // One replay of a captured step, compared likewise.
  void CheckCaptured(const Graph& graph);
  int num_launches() const { return num_launches_; }  // of an eager run: kernels, memsets and copies

 private:
  static constexpr int kMaxLenEntries = 9;
  void BuildLists(bool captured);
  void BuildMlaLists();
  void CopyCount(int32_t* to, const int32_t* from);
  void Poison();
  void Compare(bool captured);
  void CompareList(const char* name, const DeviceBuffer& got, fwdmeta_field_t field, int64_t count);

  CaseFixture* const fixture_;
  const Case case_;
  const cudaStream_t stream_;
  DeviceInputs inputs_;
  DeviceBuffer decoder_ids_, decoder_tiles_, encoder_ids_, encoder_tiles_, kv_ids_, kv_tiles_;
  DeviceBuffer scalars_;  // maxima, counts, chunk
  PinnedBuffer pinned_;   // counts
  // Pageable, as in the op: each copy to it also blocks the host.
  std::vector<int32_t> max_len_, encoder_count_, kv_count_;
  int num_launches_ = 0;
};

}  // namespace fwdmeta_bench

#endif  // FWDMETA_BENCH_OP_BY_OP_H_
