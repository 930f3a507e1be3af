// Where there is no CUDA compiler: main() has said why and does not come here.
#include "soak.h"

namespace fwdmeta_soak {

int RunOnCuda(const std::vector<Case>&, const Options&) { throw std::runtime_error("built without CUDA"); }

}  // namespace fwdmeta_soak
