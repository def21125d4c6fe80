#!/bin/sh
# Writes to dist/ what is of every architecture: dist.sh PYTHON, which has pip and setuptools. That
# is the sdists of the service and of its client, the client's wheel, and the bundled model's.
set -eu
python=$1
root=$(pwd)
rm -rf dist
for folder in client .; do
    (cd $folder && "$python" -c "from setuptools import build_meta; build_meta.build_sdist('$root/dist')")
done
"$python" -m pip wheel --wheel-dir dist --no-deps --no-build-isolation dist/headlight_serve_client-*.tar.gz
"$python" deploy/minilm/repack.py dist
