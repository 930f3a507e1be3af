// Tensors that the engine sets by name; nothing is copied but their descriptions.
#pragma once

#include <string>
#include <vector>

#include "base/status.h"

namespace fwdmeta {

constexpr size_t kLongestName = 63;

// A fixed number of named descriptions. Guarded by its owner's mutex.
class TensorTable {
 public:
  struct Entry {
    char name[kLongestName + 1];
    fwdmeta_tensor_t tensor;
  };

  // Allocates room for `capacity` entries, so that setting one later does not.
  void Reserve(size_t capacity) {
    capacity_ = capacity;
    entries_.reserve(capacity);
  }
  void Clear() { entries_.clear(); }
  // A null tensor removes the name.
  Status Set(const char* name, const fwdmeta_tensor_t* tensor);
  const fwdmeta_tensor_t* Find(const char* name) const;
  const std::vector<Entry>& entries() const { return entries_; }

 private:
  size_t capacity_ = 0;
  std::vector<Entry> entries_;
};

// Validates a name that an engine gives: 1..63 characters.
Status CheckName(const char* name);
// Validates an engine's description of a tensor.
Status ReadTensor(const fwdmeta_tensor_t* in, fwdmeta_tensor_t* out);

}  // namespace fwdmeta
