# syntax=docker/dockerfile:1
# Build:  docker build -t compile-tuner .
# Run:    docker run --rm --gpus all -v "$PWD/studies:/work/studies" compile-tuner search --budget-gb 24
# The devel image: Triton needs a C compiler, inductor's max-autotune may need ptxas.
ARG CUDA_TAG=13.0.1-devel-ubuntu24.04
FROM nvidia/cuda:${CUDA_TAG}

# Another CUDA: --build-arg CUDA_TAG=12.8.1-devel-ubuntu24.04 --build-arg TORCH_INDEX=https://download.pytorch.org/whl/cu128
ARG TORCH=torch==2.13.0
ARG TORCH_INDEX=https://download.pytorch.org/whl/cu130

SHELL ["/bin/bash", "-o", "pipefail", "-c"]

# Versions of system packages are those of the image's Ubuntu release.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install -y --no-install-recommends g++ python3 python3-dev python3-venv \
    && rm -rf /var/lib/apt/lists/*

ENV VIRTUAL_ENV=/opt/venv
ENV PATH=/opt/venv/bin:$PATH

WORKDIR /opt/compile-tuner
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY tuner tuner
COPY strategies strategies
# torch comes first, from its own index; its pin is an argument, so it is left out of the constraints,
# which pin all the rest.
# hadolint ignore=DL3013
RUN python3 -m venv "$VIRTUAL_ENV" \
    && pip install --no-cache-dir --index-url "$TORCH_INDEX" "$TORCH" \
    && grep -v '^torch==' constraints.txt > /tmp/constraints.txt \
    && pip install --no-cache-dir '.[postgres]' -c /tmp/constraints.txt \
    && rm /tmp/constraints.txt

# Not root: what a search writes on a mounted folder belongs to the person who mounted it
# (--build-arg UID=$(id -u)). Ubuntu 24.04 images already have a user with id 1000.
ARG UID=1000
RUN if ! getent passwd "$UID" > /dev/null; then useradd --create-home --no-log-init --uid "$UID" tuner; fi \
    && mkdir -p /work/studies && chown -R "$UID" /work
WORKDIR /work
ENV HOME=/work
USER ${UID}

ENTRYPOINT ["tuner"]
CMD ["--help"]
