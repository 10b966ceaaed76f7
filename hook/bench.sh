#!/bin/sh
# Prints what the limiter adds to a call, as `name value unit` lines.
set -eu
cd "$(dirname "$0")/.."
exec go run ./hook/bench
