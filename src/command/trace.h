#ifndef FWDMETA_COMMAND_TRACE_H
#define FWDMETA_COMMAND_TRACE_H

#include <cstdint>
#include <string>
#include <vector>

namespace fwdmeta::command {

struct Request {
  int64_t prompt_tokens;
  int64_t output_tokens;
};

// The requests of a trace in the order of their timestamps: CSV under the header
// TIMESTAMP,ContextTokens,GeneratedTokens, or JSON lines with timestamp, input_length and output_length. InputError
// with file:line for a line that is neither.
std::vector<Request> read_trace(const std::string& path);

}  // namespace fwdmeta::command

#endif
