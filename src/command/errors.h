#ifndef FWDMETA_COMMAND_ERRORS_H
#define FWDMETA_COMMAND_ERRORS_H

#include <fwdmeta.h>

#include <stdexcept>
#include <string>

namespace fwdmeta::command {

// Wrong usage or unreadable input: exit status 2, nothing on standard output.
class InputError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// The library's refusal: exit status 1, with the answer's JSON on standard output.
class LibraryError : public std::runtime_error {
 public:
  LibraryError(fwdmeta_status_t status, const std::string& message) : std::runtime_error(message), status_(status) {}
  fwdmeta_status_t status() const { return status_; }

 private:
  fwdmeta_status_t status_;
};

inline void check(fwdmeta_status_t status) {
  if (status != FWDMETA_OK) throw LibraryError(status, fwdmeta_last_error());
}

}  // namespace fwdmeta::command

#endif
