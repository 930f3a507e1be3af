// A value per layer and slice, by index, in memory of a fixed size.
#pragma once

#include <vector>

#include "base/status.h"

namespace fwdmeta {

// Values can also be set for all layers at once; of the two that a layer then has, the later one counts. Every value
// bears the ordinal of its setting, which makes that, and clearing, one store.
template <class T>
class LayerTable {
 public:
  LayerTable(const char* name, int64_t num_layers, int64_t max_slices)
      : name_(name),
        num_layers_(num_layers),
        max_slices_(max_slices),
        cells_(static_cast<size_t>((num_layers + 1) * max_slices)) {}

  Status Set(int64_t layer, int64_t slice, const T& value) {
    FWDMETA_TRY(CheckRange(layer, slice));
    cells_[Index(layer, slice)] = {++ordinal_, value};
    return FWDMETA_OK;
  }

  Status Get(int64_t layer, int64_t slice, T* out) const {
    FWDMETA_TRY(CheckRange(layer, slice));
    const Cell& own = cells_[Index(layer, slice)];
    const Cell& all = cells_[Index(FWDMETA_ALL_LAYERS, slice)];
    const Cell& later = own.ordinal > all.ordinal ? own : all;
    if (later.ordinal <= cleared_) {
      return Fail(FWDMETA_NOT_SET, "%s of layer %lld, slice %lld, is not set", name_, (long long)layer,
                  (long long)slice);
    }
    *out = later.value;
    return FWDMETA_OK;
  }

  void Clear() { cleared_ = ordinal_; }

 private:
  struct Cell {
    uint64_t ordinal = 0;
    T value = {};
  };

  Status CheckRange(int64_t layer, int64_t slice) const {
    if ((layer < 0 || layer >= num_layers_) && layer != FWDMETA_ALL_LAYERS) {
      return Fail(FWDMETA_OUT_OF_RANGE, "layer %lld: there are %lld", (long long)layer, (long long)num_layers_);
    }
    if (slice < 0 || slice >= max_slices_) {
      return Fail(FWDMETA_OUT_OF_RANGE, "slice %lld: max_slices is %lld", (long long)slice, (long long)max_slices_);
    }
    return FWDMETA_OK;
  }

  // FWDMETA_ALL_LAYERS, -1, is the first row.
  size_t Index(int64_t layer, int64_t slice) const { return static_cast<size_t>((layer + 1) * max_slices_ + slice); }

  const char* name_;
  int64_t num_layers_;
  int64_t max_slices_;
  uint64_t ordinal_ = 0;  // of the latest value
  uint64_t cleared_ = 0;  // values up to this one are unset
  std::vector<Cell> cells_;
};

}  // namespace fwdmeta
