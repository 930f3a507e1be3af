#include <fwdmeta/device.cuh>

#include "view_kernels.h"

namespace fwdmeta_bench {
namespace {

constexpr unsigned kThreads = 128;

template <fwdmeta_mapping_t mapping, TileBy by>
__global__ void Consume(const __grid_constant__ fwdmeta_device_view_v1_t view, WrittenTile* out) {
  fwdmeta::Tile tile = {-1, -1, false};
  if constexpr (by == TileBy::kList) tile = fwdmeta::tile_of(view, mapping, blockIdx.x);
  if constexpr (by == TileBy::kSearch) tile = fwdmeta::tile_of_search(view, mapping, blockIdx.x);
  if constexpr (by == TileBy::kWarpSearch) tile = fwdmeta::tile_of_warp_search(view, mapping, blockIdx.x);
  // Every thread needs its tile, as in a kernel that works on it: which one writes follows from the tile.
  if (threadIdx.x == (static_cast<unsigned>(tile.tile) & (kThreads - 1))) out[blockIdx.x] = {tile.slot, tile.tile};
}

template <fwdmeta_mapping_t mapping>
cudaError_t Launch(const fwdmeta_device_view_v1_t& view, TileBy by, WrittenTile* out, cudaStream_t stream) {
  const auto grid = static_cast<unsigned>(view.mappings[mapping].capacity);
  switch (by) {
    case TileBy::kNothing:
      Consume<mapping, TileBy::kNothing><<<grid, kThreads, 0, stream>>>(view, out);
      break;
    case TileBy::kList:
      Consume<mapping, TileBy::kList><<<grid, kThreads, 0, stream>>>(view, out);
      break;
    case TileBy::kSearch:
      Consume<mapping, TileBy::kSearch><<<grid, kThreads, 0, stream>>>(view, out);
      break;
    case TileBy::kWarpSearch:
      Consume<mapping, TileBy::kWarpSearch><<<grid, kThreads, 0, stream>>>(view, out);
      break;
  }
  return cudaGetLastError();
}

}  // namespace

cudaError_t LaunchConsumer(const fwdmeta_device_view_v1_t& view, fwdmeta_mapping_t mapping, TileBy by, WrittenTile* out,
                           cudaStream_t stream) {
  return mapping == FWDMETA_MAPPING_DECODER ? Launch<FWDMETA_MAPPING_DECODER>(view, by, out, stream)
                                            : Launch<FWDMETA_MAPPING_ENCODER>(view, by, out, stream);
}

}  // namespace fwdmeta_bench
