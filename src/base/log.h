// The library's log: standard error or the engine's callback, warnings and worse by default.
#pragma once

#include "fwdmeta.h"

namespace fwdmeta {

__attribute__((format(printf, 2, 3))) void Log(fwdmeta_log_level_t level, const char* format, ...);

void SetLogLevel(fwdmeta_log_level_t level);
void SetLogCallback(fwdmeta_log_callback_t callback, void* user);

}  // namespace fwdmeta
