#ifndef FWDMETA_COMMAND_REPLAY_PICTURE_H
#define FWDMETA_COMMAND_REPLAY_PICTURE_H

#include <string>

#include "replay.h"

namespace fwdmeta::command {

// Tokens, tiles and build time over the steps, as SVG.
std::string to_picture(const ReplayReport& report);

}  // namespace fwdmeta::command

#endif
