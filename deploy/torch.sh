#!/bin/sh
# Installs torch by hash: torch.sh PYTHON [INDEX [tell]]. Where there is no NVIDIA card, the CPU build
# if INDEX or pip's settings offer it; else the build that pip chooses. First pip says which build it
# would take, then it installs that one. If hashes were given at once, pip would prefer a build whose
# hash an index announces to one whose hash it has to compute. What else the CUDA build needs comes
# by hash too, from torch.lock. With `tell` nothing is installed: it says what will be, before
# anything is downloaded.
set -eu
python=$1 index=${2:-} tell=${3:-}
lock=$(dirname "$0")/torch.lock
pinned=$(grep -o '^torch==[0-9.]*' "$lock")
set -- install --no-compile ${index:+--extra-index-url "$index"}
ask="--quiet --no-deps --ignore-installed --report -"
read='import json, sys; print(json.load(sys.stdin)["install"][0]["metadata"]["version"])'
report=
card=$(test -e /dev/nvidiactl || nvidia-smi -L > /dev/null 2>&1 && echo yes) || true
test "$card" || report=$("$python" -m pip "$@" --dry-run $ask "$pinned+cpu" 2> /dev/null) || true
test "$report" || report=$("$python" -m pip "$@" --dry-run $ask "$pinned")
version=$(printf %s "$report" | "$python" -c "$read")
if test ! "$tell"; then
	"$python" -m pip "$@" --require-hashes --constraint "$lock" "torch==$version"
elif test "$card" || test "$version" != "${version%+cpu}"; then
	echo "torch $version"
else
	cat >&2 <<-END
	No NVIDIA card is here, and pip finds torch's CUDA build alone: 3.3 GB to download, 6.9 GB of disk.
	With the CPU build it is 0.8 GB and 2.9 GB. For that press Ctrl-C, and give the same command with
	TORCH_INDEX=<the address that PyTorch's installation page has for pip, Linux and CPU>
	END
fi
