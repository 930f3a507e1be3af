#ifndef FWDMETA_COMMAND_INSPECT_PICTURE_H
#define FWDMETA_COMMAND_INSPECT_PICTURE_H

#include <string>

#include "inspect.h"

namespace fwdmeta::command {

// Slots against thread blocks, as SVG.
std::string to_picture(const Inspection& inspection, const BatchFile& file, const CapacityReport& capacities);

}  // namespace fwdmeta::command

#endif
