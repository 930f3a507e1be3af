#include "base/log.h"

#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

#include <atomic>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <string>
#include <type_traits>

namespace fwdmeta {
namespace {

spdlog::level::level_enum ToSpdlog(fwdmeta_log_level_t level) {
  constexpr spdlog::level::level_enum kLevels[] = {spdlog::level::trace, spdlog::level::debug, spdlog::level::info,
                                                   spdlog::level::warn,  spdlog::level::err,   spdlog::level::off};
  return kLevels[level];
}

fwdmeta_log_level_t LevelOfEnvironment() {
  constexpr const char* kNames[] = {"trace", "debug", "info", "warn", "error", "off"};
  const char* value = std::getenv("FWDMETA_LOG_LEVEL");
  for (int level = 0; value != nullptr && level <= FWDMETA_LOG_OFF; ++level) {
    if (std::string(value) == kNames[level]) return level;
  }
  return FWDMETA_LOG_WARN;
}

struct State {
  std::atomic<fwdmeta_log_level_t> level{LevelOfEnvironment()};
  std::mutex mutex;  // guards the pair below
  fwdmeta_log_callback_t callback = nullptr;
  void* user = nullptr;
};
static_assert(std::is_trivially_destructible_v<State>, "records of the library's last moments still have it");

State& TheState() {
  static State state;
  return state;
}

// A logger for each record: one that is kept would have to end with the library, but not before its last record.
void WriteToStderr(fwdmeta_log_level_t level, const char* message) {
  try {
    spdlog::logger logger("fwdmeta", std::make_shared<spdlog::sinks::stderr_sink_mt>());
    logger.set_level(spdlog::level::trace);
    logger.set_pattern("[%Y-%m-%d %H:%M:%S.%e] [fwdmeta] [%l] %v");
    logger.set_error_handler([](const std::string&) {});
    logger.log(ToSpdlog(level), spdlog::string_view_t(message));
  } catch (...) {  // no memory for it
  }
}

}  // namespace

void Log(fwdmeta_log_level_t level, const char* format, ...) {
  State& state = TheState();
  if (level < state.level.load(std::memory_order_relaxed)) return;
  char message[512];
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(message, sizeof(message), format, arguments);
  va_end(arguments);
  fwdmeta_log_callback_t callback;
  void* user;
  {
    std::lock_guard<std::mutex> lock(state.mutex);
    callback = state.callback;
    user = state.user;
  }
  if (callback != nullptr) {
    callback(level, message, user);
  } else {
    WriteToStderr(level, message);
  }
}

void SetLogLevel(fwdmeta_log_level_t level) { TheState().level.store(level, std::memory_order_relaxed); }

void SetLogCallback(fwdmeta_log_callback_t callback, void* user) {
  State& state = TheState();
  std::lock_guard<std::mutex> lock(state.mutex);
  state.callback = callback;
  state.user = user;
}

}  // namespace fwdmeta
