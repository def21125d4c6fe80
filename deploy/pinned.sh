#!/bin/sh
# Installs packages of the locks by hash, without what they need: pinned.sh PYTHON NAME...
set -eu
python=$1
shift
locks="$(dirname "$0")/requirements.lock $(dirname "$0")/torch.lock"
for name; do
    shift
    # shellcheck disable=SC2086 # two words
    set -- "$@" "$(grep -oh "^$name==[0-9.]*" $locks)"
done
for lock in $locks; do
    set -- --constraint "$lock" "$@"
done
"$python" -m pip install --no-compile --no-deps --require-hashes "$@"
