#!/bin/bash
# Runs a command with CANN's and NNAL's variables. Both scripts read variables that may be unset, so no `set -u` here.
set -eo pipefail
source /usr/local/Ascend/ascend-toolkit/set_env.sh
source /usr/local/Ascend/nnal/atb/set_env.sh
exec "$@"
