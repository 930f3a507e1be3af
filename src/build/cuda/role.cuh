// What the roles of a build share: their part of the work, prefix sums over the slots, stores.
#pragma once

#include "build/cuda/block.cuh"

namespace fwdmeta {

struct Range {
  uint32_t begin, end;
  __device__ bool Contains(uint32_t i) const { return i >= begin && i < end; }
};

// Kept out of line: blocks that have the whole of a range, which most have, should not fetch its instructions.
static __noinline__ __device__ Range PieceOfMany(uint32_t begin, uint32_t end, uint32_t index, uint32_t count,
                                                 uint32_t alignment) {
  const uint64_t mask = alignment - 1;
  const uint64_t size = ((end - begin + count - 1) / count + mask) & ~mask;
  const auto bound = [&](uint32_t i) {
    const uint64_t at = (begin + size * i + mask) & ~mask;
    return i == 0 ? begin : at < end ? static_cast<uint32_t>(at) : end;
  };
  return {bound(index), bound(index + 1)};
}

// Piece `index` of `count` of [begin, end), cut at multiples of `alignment`.
__device__ __forceinline__ Range Piece(uint32_t begin, uint32_t end, uint32_t index, uint32_t count,
                                       uint32_t alignment) {
  if (count == 1 || begin >= end) return {begin, end};
  return PieceOfMany(begin, end, index, count, alignment);
}

// The last index whose prefix is not past `value`; prefix[0] never is.
__device__ __forceinline__ uint32_t FindSlot(const uint32_t* prefix, uint32_t count, uint32_t value) {
  uint32_t position = 0;
  for (uint32_t step = count <= 1 ? 0 : 1u << (31 - __clz(count - 1)); step > 0; step /= 2) {
    if (position + step < count && prefix[position + step] <= value) position += step;
  }
  return position;
}

template <class T>
__device__ __forceinline__ void FillThreads(T* array, const Range& range, T value) {
  if (array == nullptr) return;
#pragma unroll 1
  for (uint32_t i = range.begin + threadIdx.x; i < range.end; i += blockDim.x) array[i] = value;
}

// Once for each thread block of a grid that reads staged lengths.
__device__ __forceinline__ void NoteInputsRead(BuilderState* builder, MirrorEntry* entry, int64_t step) {
  if (atomicInc(&builder->inputs_ticket, gridDim.x - 1) == gridDim.x - 1) {
    *const_cast<volatile int64_t*>(&entry->inputs_read) = step;
  }
}

// One thread block of one role.
template <int kItems, bool kChunked>
class RoleBlock {
 protected:
  using Block = SlotBlock<kItems, kChunked>;

  __device__ RoleBlock(const BuildArgs& args, BlockShared<kItems, kChunked>& shared, int32_t role, uint32_t index)
      : args_(args),
        shared_(shared),
        role_(role),
        shares_(args.shares[role]),
        share_(kChunked ? index % shares_ : index),
        piece_(index),
        pieces_(kChunked ? shares_ * args.num_chunks : shares_),
        block_(args, shared, kChunked ? index / shares_ : 0) {
    if constexpr (kChunked) block_.LoadChunkSums();
  }

  // Called by every thread once the block has read its lengths, after a barrier. A slice's offsets are read later,
  // before the token role publishes its counters.
  __device__ void InputsRead() {
    if (kChunked || !args_.staged || threadIdx.x != 0) return;
    NoteInputsRead(args_.builder, args_.entry, args_.step);
  }

  // Of numbers without a sign: no flag. But what is put in shared memory before the barrier then depends on the set's
  // state. A load that nothing has waited for can still be under way behind the barrier, and would get what the last
  // block of the role puts in its place.
  static __device__ uint32_t Arrived(uint32_t previous) { return previous >> 31; }

  // After a barrier that follows the reads of the set's state: true in one thread of the last block of the role.
  __device__ bool LastToRead() {
    if (threadIdx.x != 0) return false;
    return pieces_ == 1 || atomicInc(&args_.builder->tickets[role_], pieces_ - 1) == pieces_ - 1;
  }

  // A quantity's prefix sum over the slots, as one thread sees it. All zero in an error step.
  struct Scan {
    uint32_t exclusive;  // within the block, of the thread's first slot
    uint32_t total;      // of the block
    uint32_t before;     // of the chunks before
    uint32_t all;        // of the batch
  };
  __device__ Scan FinishScan(bool good, int32_t row, uint32_t inclusive, uint32_t own, int32_t quantity) {
    if (!good) return {0, 0, 0, 0};
    Scan scan;
    scan.exclusive = block_.SumOfWarpsBefore(row) + inclusive - own;
    scan.total = block_.Sum(row);
    if constexpr (kChunked) {
      const bool wide = quantity == kSumTokensLow || quantity == kSumKvLow;
      const int32_t high = quantity == kSumTokensLow ? kSumTokensHigh : kSumKvHigh;
      scan.before = wide ? static_cast<uint32_t>(Block::Join(shared_.before[quantity], shared_.before[high]))
                         : shared_.before[quantity];
      scan.all = wide ? static_cast<uint32_t>(Block::Join(shared_.total[quantity], shared_.total[high]))
                      : shared_.total[quantity];
    } else {
      scan.before = 0;
      scan.all = scan.total;
    }
    return scan;
  }

  template <class Rule>
  __device__ uint32_t SumOfThread(Rule rule) const {
    uint32_t sum = 0;
#pragma unroll
    for (int i = 0; i < kItems; ++i) sum += rule(block_.slot[i]);
    return sum;
  }
  __device__ uint32_t TokensOfThread() const {
    return SumOfThread([](const Slot& slot) { return slot.this_time; });
  }

  // Stores an exclusive prefix sum for this thread's slots, and the total behind them.
  template <class Rule>
  __device__ void StoreCu(int32_t* cu, const Scan& scan, Rule rule) {
    if (cu == nullptr || share_ != 0) return;
    int32_t values[kItems];
    uint32_t sum = scan.before + scan.exclusive;
#pragma unroll
    for (int i = 0; i < kItems; ++i) {
      values[i] = static_cast<int32_t>(sum);
      sum += rule(i);
    }
    block_.StorePerSlot(cu, values, args_.inputs.batch_size);
    if (piece_ == 0 && threadIdx.x == 0) cu[args_.inputs.batch_size] = static_cast<int32_t>(scan.all);
  }
  template <class Rule>
  __device__ void StoreSlots(int32_t* array, int32_t idle, Rule rule) {
    if (array == nullptr || share_ != 0) return;
    int32_t values[kItems];
#pragma unroll
    for (int i = 0; i < kItems; ++i) values[i] = block_.slot[i].live() ? rule(block_.slot[i]) : idle;
    block_.StorePerSlot(array, values, args_.inputs.batch_size);
  }
  // What lies past the batch, shared among the role's blocks.
  __device__ bool HasTail() const { return args_.inputs.batch_size < args_.plan.max_batch_size; }
  __device__ void FillCuTail(int32_t* cu, const Scan& scan) {
    FillThreads(cu, Piece(args_.inputs.batch_size + 1, args_.plan.max_batch_size + 1, piece_, pieces_, 32),
                static_cast<int32_t>(scan.all));
  }
  __device__ void FillSlotsTail(int32_t* array, int32_t idle) {
    FillThreads(array, Piece(args_.inputs.batch_size, args_.plan.max_batch_size, piece_, pieces_, 32), idle);
  }

  // Leaves the exclusive prefix sums of the block's slots in shared memory, to be read after a barrier.
  template <class Rule>
  __device__ void SharePrefix(int32_t which, const Scan& scan, Rule rule) {
    uint32_t sums[kItems], sum = scan.exclusive;
#pragma unroll
    for (int i = 0; i < kItems; ++i) {
      sums[i] = sum;
      sum += rule(i);
    }
    StoreShared(which, sums);
    if (threadIdx.x == blockDim.x - 1) shared_.prefix[which][blockDim.x * kItems] = sum;
  }
  __device__ void StoreShared(int32_t which, const uint32_t (&values)[kItems]) {
    uint32_t* to = &shared_.prefix[which][threadIdx.x * kItems];
    if constexpr (kItems == 4) {
      *reinterpret_cast<uint4*>(to) = make_uint4(values[0], values[1], values[2], values[3]);
    } else {
      to[0] = values[0];
    }
  }
  __device__ uint32_t FindInBlock(int32_t which, uint32_t entry) const {
    return FindSlot(shared_.prefix[which], block_.num_slots(), entry);
  }

  // Writes the int32 pairs of [range): entry(x) gives the pair. Four entries to a thread, in 16-byte stores.
  template <class Entry>
  __device__ void StorePairs(int32_t* first, int32_t* second, const Range& range, Entry entry) {
    for (uint32_t x = (range.begin & ~3u) + 4 * threadIdx.x; x < range.end; x += 4 * blockDim.x) {
      int2 pair[4];
      entry(x, range, pair);
      if (x >= range.begin && x + 4 <= range.end) {
        if (first != nullptr) {
          *reinterpret_cast<int4*>(first + x) = make_int4(pair[0].x, pair[1].x, pair[2].x, pair[3].x);
        }
        if (second != nullptr) {
          *reinterpret_cast<int4*>(second + x) = make_int4(pair[0].y, pair[1].y, pair[2].y, pair[3].y);
        }
        continue;
      }
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        if (!range.Contains(x + i)) continue;
        if (first != nullptr) first[x + i] = pair[i].x;
        if (second != nullptr) second[x + i] = pair[i].y;
      }
    }
  }
  __device__ void ErasePairs(int32_t* first, int32_t* second, uint32_t count, uint32_t previous) {
    if (count >= previous) return;
    StorePairs(first, second, Piece(count, previous, piece_, pieces_, 4), [](uint32_t, const Range&, int2(&pair)[4]) {
#pragma unroll
      for (int i = 0; i < 4; ++i) pair[i] = make_int2(-1, -1);
    });
  }

  const BuildArgs& args_;
  BlockShared<kItems, kChunked>& shared_;
  const int32_t role_;
  const uint32_t shares_, share_;  // of the block's chunk
  const uint32_t piece_, pieces_;  // of the whole role
  Block block_;
};

}  // namespace fwdmeta
