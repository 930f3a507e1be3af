// The layers of a model: a name and a borrowed pointer each, numbered in the order of registration.
#pragma once

#include <atomic>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/status.h"

namespace fwdmeta {

// Checks a name of 1..longest bytes and hands out its length.
Status CheckNameLength(const char* name, size_t longest, size_t* length);

class Layers {
 public:
  static Status Create(fwdmeta_layers_t* out);
  static Status Destroy(fwdmeta_layers_t handle);
  static Status Find(fwdmeta_layers_t handle, std::shared_ptr<Layers>* out);

  Status Add(const char* name, void* layer, int32_t is_moe, int64_t* out_index);
  Status IndexOf(const char* name, int64_t* out_index) const;
  Status Get(int64_t index, const char** out_name, void** out_layer) const;
  void Count(int64_t* out_count, int64_t* out_num_moe) const;

  // Nothing is added after the first call, so that reading needs no lock. Returns the number of layers.
  int64_t Freeze();
  // Of a frozen registry: the indices of the MoE layers in order.
  const std::vector<int64_t>& moe() const { return moe_; }

 private:
  struct Layer {
    std::string name;
    void* layer;
  };
  std::unique_lock<std::mutex> ReadLock() const;

  mutable std::mutex mutex_;  // guards what follows until it is frozen
  std::atomic<bool> frozen_{false};
  std::deque<Layer> layers_;  // a deque: names stay where they are
  std::unordered_map<std::string_view, int64_t> index_;
  std::vector<int64_t> moe_;
};

}  // namespace fwdmeta
