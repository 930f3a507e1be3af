#!/usr/bin/env bash
# Installs what is missing, builds into build/ with the tests and runs them all. Arguments go to ctest.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/.ci/setup.sh"

ensure_packages build-essential cmake ninja-build libspdlog-dev libcli11-dev nlohmann-json3-dev libgtest-dev \
  ccache pkg-config groff-base
(ensure_packages python3-numpy) || say "going on without NumPy: its test is skipped"
configure -DFWDMETA_BUILD_TESTS=ON -DFWDMETA_BUILD_EXAMPLES=ON
compile

say "testing"
ctest --test-dir "$build" --output-on-failure --no-tests=error "$@"
