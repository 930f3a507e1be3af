#ifndef FWDMETA_COMMAND_SLICES_H
#define FWDMETA_COMMAND_SLICES_H

#include <fwdmeta.h>

#include <cstdint>
#include <string>
#include <vector>

#include "output.h"

namespace fwdmeta::command {

inline constexpr const char* kSlicesSchema = "fwdmeta.slices/1";

// The content of a slices file. What is left out has the library's default.
struct SlicesFile {
  fwdmeta_slice_args_t args = FWDMETA_SLICE_ARGS_INITIALIZER;  // without the arrays
  std::vector<int64_t> query_lens;
  std::vector<int64_t> seq_lens;
};

// Throws InputError for whatever is not of the format. Numbers that only the library can judge are left to it.
SlicesFile read_slices_file(const std::string& path);

// A slice and its requests, those of the padding included.
struct ShownSlice {
  fwdmeta_slice_t range;
  std::vector<int32_t> query_start_loc;
  std::vector<int32_t> seq_lens;
};

std::vector<ShownSlice> plan_slices(const SlicesFile& file);

Json to_json(const std::vector<ShownSlice>& slices);
std::string to_table(const std::vector<ShownSlice>& slices, const SlicesFile& file);

}  // namespace fwdmeta::command

#endif
