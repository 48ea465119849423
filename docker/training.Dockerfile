# Training, on an NVIDIA GPU where there is one. A mirror is told as to server.Dockerfile.
ARG BASE=python:3.12-slim-bookworm
ARG TORCH=torch==2.13.0

FROM ${BASE} AS packages
RUN python3 -m venv /opt/venv
ENV PATH=/opt/venv/bin:$PATH PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
WORKDIR /build
COPY pyproject.toml setup.py ./
COPY client client
RUN touch README.md
ARG TORCH
ARG TORCH_INDEX=
RUN --mount=type=secret,id=pip,target=/etc/pip.conf \
    pip install ${TORCH_INDEX:+--index-url "$TORCH_INDEX"} "$TORCH" && \
    pip install ./client ".[train]" && \
    pip uninstall --yes pip

FROM ${BASE} AS code
WORKDIR /app
COPY models models
COPY training training
COPY checkpoints checkpoints
# The root may be read-only; unchecked, because times of files do not survive every registry.
RUN python3 -m compileall -q --invalidation-mode unchecked-hash . && chmod -R a+rX .

FROM ${BASE}
# What RDKit draws with.
RUN apt-get update && \
    apt-get install --yes --no-install-recommends libexpat1 libxext6 libxrender1 && \
    rm -rf /var/lib/apt/lists/*
RUN groupadd --gid 10001 basin && \
    useradd --uid 10001 --gid 10001 --no-create-home --home-dir /app/runs basin && \
    install --directory --owner 10001 --group 10001 /app/runs /data
LABEL org.opencontainers.image.title="Basin training" \
      org.opencontainers.image.description="Makes the checkpoints of energy transformers" \
      org.opencontainers.image.licenses="Apache-2.0"
ENV PATH=/opt/venv/bin:$PATH \
    PYTHONDONTWRITEBYTECODE=1 \
    BASIN_DATA=/data \
    NUMBA_CACHE_DIR=/app/runs/.numba \
    NVIDIA_VISIBLE_DEVICES=all \
    NVIDIA_DRIVER_CAPABILITIES=compute,utility
WORKDIR /app
VOLUME /app/runs /data
USER 10001:10001
STOPSIGNAL SIGTERM
ENTRYPOINT ["python", "-m", "training"]
CMD ["--help"]
COPY --from=packages /opt/venv /opt/venv
COPY --from=code /app /app
