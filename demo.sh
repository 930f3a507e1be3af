#!/usr/bin/env bash
# Installs what is missing, builds into build/ and shows the command on the two examples. Safe to run again.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/.ci/setup.sh"

ensure_packages build-essential cmake ninja-build libspdlog-dev libcli11-dev nlohmann-json3-dev
configure -DFWDMETA_BUILD_TESTS=OFF -DFWDMETA_BUILD_EXAMPLES=OFF
compile

fwdmeta=build/src/command/fwdmeta
cd "$root"
show() {
  say "$*"
  "$@"
}
show $fwdmeta inspect examples/batch.json
show $fwdmeta replay examples/trace.csv --check
