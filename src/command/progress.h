#ifndef FWDMETA_COMMAND_PROGRESS_H
#define FWDMETA_COMMAND_PROGRESS_H

#include <chrono>
#include <string>

namespace fwdmeta::command {

// A bar on standard error, if that is a terminal. It leaves an empty line behind.
class Progress {
 public:
  Progress();
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  // `fraction` is 0..1. Redraws a few times a second, however often it is called.
  void show(double fraction, const std::string& text);

 private:
  bool is_shown_;
  std::chrono::steady_clock::time_point next_{};
};

}  // namespace fwdmeta::command

#endif
