# rag-train for NVIDIA GPUs; the host needs its driver and the NVIDIA Container Toolkit. In the repository's directory:
#   docker build --file docker/gpu.Dockerfile --tag rag-train:gpu .
#   docker run --rm --gpus all --volume "$PWD:/work" rag-train:gpu       # what is here: rag-train doctor
#   docker run --rm --gpus all --ipc host --volume "$PWD:/work" --entrypoint accelerate rag-train:gpu \
#       launch --config_file launch/accelerate/zero3.yaml -m rag_train.train recipes/deeprag_sft.yaml
# --ipc host: processes on several GPUs exchange data in shared memory.
FROM nvidia/cuda:13.0.2-devel-ubuntu24.04

# The compilers are for kernels that DeepSpeed and Triton build at first use.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends g++ ninja-build python3 python3-dev python3-venv \
    && rm -rf /var/lib/apt/lists/*

ENV VIRTUAL_ENV=/opt/venv PATH=/opt/venv/bin:$PATH
# The user cannot write into the installation, so that every command would compile the libraries again.
ENV UV_COMPILE_BYTECODE=1 PIP_NO_CACHE_DIR=1 UV_NO_CACHE=1 PYTHONUNBUFFERED=1 HF_HOME=/work/.cache/huggingface

WORKDIR /opt/rag-train
COPY pyproject.toml setup.py requirements-gpu.lock README.md LICENSE ./
COPY data_synth data_synth
COPY eval eval
COPY launch launch
COPY recipes recipes
COPY rag_train rag_train

# The versions of requirements-gpu.lock, which are built for CUDA 13 as the base image is: driver 580 or newer.
# hadolint ignore=DL3013
RUN python3 -m venv "$VIRTUAL_ENV" \
    && pip install uv \
    && uv pip install --constraint requirements-gpu.lock ".[gpu,eval,retrieval,sweep]"

RUN install --directory --owner 1000 /work # the base image has user 1000
USER 1000
WORKDIR /work
ENTRYPOINT ["rag-train"]
CMD ["doctor"]
