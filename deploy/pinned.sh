#!/bin/sh
# Installs packages of the locks by hash, without what they need: pinned.sh PYTHON NAME...
set -eu
python=$1
folder=$(dirname "$0")
shift
for name; do
    sed -n "/^$name==/,/[^\\\\]\$/p" "$folder/requirements.lock" "$folder/torch.lock"
done | "$python" -m pip install --no-compile --no-deps --require-hashes --requirement /dev/stdin
