#!/bin/sh
# Installs torch by hash: torch.sh PYTHON [INDEX]. Which build is pip's own choice: the CPU build
# where INDEX or pip's settings offer it. pip is asked first and then told, since by hash it takes
# the build whose hash an index announces before one whose hash it would have to compute.
# What the CUDA build needs besides comes by hash too, from torch.lock beside this file.
set -eu
python=$1
lock=$(dirname "$0")/torch.lock
pinned=$(grep -o '^torch==[0-9.]*' "$lock")
set -- install --no-compile ${2:+--extra-index-url "$2"}
report=$("$python" -m pip "$@" --dry-run --quiet --no-deps --ignore-installed --report - "$pinned")
read='import json, sys; print(json.load(sys.stdin)["install"][0]["metadata"]["version"])'
version=$(printf %s "$report" | "$python" -c "$read")
"$python" -m pip "$@" --require-hashes --constraint "$lock" "torch==$version"
