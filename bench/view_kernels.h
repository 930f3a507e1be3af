// Kernels that do nothing but find their tile by fwdmeta/device.cuh, and write it.
#ifndef FWDMETA_BENCH_VIEW_KERNELS_H_
#define FWDMETA_BENCH_VIEW_KERNELS_H_

#include <cuda_runtime.h>

#include "fwdmeta.h"

namespace fwdmeta_bench {

// kNothing: the same kernel with no tile to find, which is the floor of the others.
enum class TileBy { kNothing, kList, kSearch, kWarpSearch };

struct WrittenTile {
  int32_t slot, tile;  // -1 where there is none
};

// A thread block for each entry that the mapping has room for; `out` is as long. `mapping` is DECODER or ENCODER.
cudaError_t LaunchConsumer(const fwdmeta_device_view_v1_t& view, fwdmeta_mapping_t mapping, TileBy by, WrittenTile* out,
                           cudaStream_t stream);

}  // namespace fwdmeta_bench

#endif  // FWDMETA_BENCH_VIEW_KERNELS_H_
