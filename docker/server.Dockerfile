# The server, for a CPU (`--target cpu`) or an NVIDIA GPU (`--target cuda`). A mirror is told by
# BASE, and to pip as a secret: `--secret id=pip,src=pip.conf`.
ARG BASE=python:3.12-slim-bookworm
ARG TORCH=torch==2.13.0

FROM ${BASE} AS packages
RUN python3 -m venv /opt/venv
ENV PATH=/opt/venv/bin:$PATH PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
WORKDIR /build
# Dependencies alone: without the sources here, a change of them installs nothing anew.
COPY pyproject.toml setup.py ./
COPY client client
RUN touch README.md

FROM packages AS cpu-packages
ARG TORCH
# PyPI's torch brings gigabytes of CUDA. Empty: whatever index pip is told.
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
RUN --mount=type=secret,id=pip,target=/etc/pip.conf \
    pip install ${TORCH_INDEX:+--index-url "$TORCH_INDEX"} "$TORCH" && \
    pip install ./client ".[cpu,trace]" && \
    pip uninstall --yes pip

FROM ${BASE} AS code
WORKDIR /app
COPY docker/ready.py .
COPY models models
COPY service service
COPY basin basin
COPY checkpoints checkpoints
COPY memories memories
# The root may be read-only; unchecked, because times of files do not survive every registry.
RUN python3 -m compileall -q --invalidation-mode unchecked-hash . && chmod -R a+rX .

FROM ${BASE} AS runtime
# What RDKit draws with.
RUN apt-get update && \
    apt-get install --yes --no-install-recommends libexpat1 libxext6 libxrender1 && \
    rm -rf /var/lib/apt/lists/*
RUN groupadd --gid 10001 basin && \
    useradd --uid 10001 --gid 10001 --no-create-home --home-dir /var/lib/basin basin && \
    install --directory --owner 10001 --group 10001 /var/lib/basin
LABEL org.opencontainers.image.title="Basin" \
      org.opencontainers.image.description="A REST server for energy transformers" \
      org.opencontainers.image.licenses="Apache-2.0"
# All that is written: memories, graphs, jobs, and the kernels that numba compiles for the CPU it finds.
ENV PATH=/opt/venv/bin:$PATH \
    PYTHONPATH=/app \
    PYTHONDONTWRITEBYTECODE=1 \
    BASIN_HOST=0.0.0.0 \
    BASIN_MEMORY_STORE=/var/lib/basin/memories \
    BASIN_JOB_STORE=/var/lib/basin/jobs.sqlite \
    BASIN_GRAPH_STORE=/var/lib/basin/graphs.sqlite \
    NUMBA_CACHE_DIR=/var/lib/basin/numba
VOLUME /var/lib/basin
WORKDIR /app
USER 10001:10001
EXPOSE 8000
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=5s --start-period=120s CMD ["python", "/app/ready.py"]
CMD ["python", "-m", "service"]

FROM runtime AS cpu
COPY --from=cpu-packages /opt/venv /opt/venv
COPY --from=code /app /app

FROM packages AS cuda-packages
ARG TORCH
ARG TORCH_INDEX=
RUN --mount=type=secret,id=pip,target=/etc/pip.conf \
    pip install ${TORCH_INDEX:+--index-url "$TORCH_INDEX"} "$TORCH" && \
    pip install ./client ".[gpu,trace]" && \
    pip uninstall --yes pip

FROM runtime AS cuda
# What the NVIDIA container runtime looks for.
ENV NVIDIA_VISIBLE_DEVICES=all NVIDIA_DRIVER_CAPABILITIES=compute,utility
COPY --from=cuda-packages /opt/venv /opt/venv
COPY --from=code /app /app
