#include "progress.h"

#include <unistd.h>

#include <cstdio>

namespace fwdmeta::command {

namespace {

constexpr int kWidth = 40;
constexpr std::chrono::milliseconds kInterval(100);

}  // namespace

Progress::Progress() : is_shown_(isatty(STDERR_FILENO) == 1) {}

Progress::~Progress() {
  if (is_shown_) std::fputs("\r\033[K", stderr);
}

void Progress::show(double fraction, const std::string& text) {
  const auto now = std::chrono::steady_clock::now();
  if (!is_shown_ || now < next_) return;
  next_ = now + kInterval;
  const int filled = static_cast<int>(fraction * kWidth);
  const std::string bar = std::string(filled, '#') + std::string(kWidth - filled, '.');
  std::fprintf(stderr, "\r[%s] %3d%% %s\033[K", bar.c_str(), static_cast<int>(fraction * 100), text.c_str());
}

}  // namespace fwdmeta::command
