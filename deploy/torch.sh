#!/bin/sh
# Installs torch by hash: torch.sh PYTHON [INDEX]. pip chooses the build: the CPU build if INDEX or
# pip's settings offer it. First pip says which build it would take, then it installs that one. If
# hashes were given at once, pip would prefer a build whose hash an index announces to one whose
# hash it has to compute. What else the CUDA build needs comes by hash too, from torch.lock.
set -eu
python=$1
lock=$(dirname "$0")/torch.lock
pinned=$(grep -o '^torch==[0-9.]*' "$lock")
set -- install --no-compile ${2:+--extra-index-url "$2"}
report=$("$python" -m pip "$@" --dry-run --quiet --no-deps --ignore-installed --report - "$pinned")
read='import json, sys; print(json.load(sys.stdin)["install"][0]["metadata"]["version"])'
version=$(printf %s "$report" | "$python" -c "$read")
"$python" -m pip "$@" --require-hashes --constraint "$lock" "torch==$version"
