# rag-train for CPUs. In the repository's directory:
#   docker build --file docker/cpu.Dockerfile --tag rag-train:cpu .
#   docker run --rm --volume "$PWD:/work" rag-train:cpu                  # what is here: rag-train doctor
#   docker run --rm --volume "$PWD:/work" rag-train:cpu demo             # DeepRAG end to end, minutes on two cores
#   docker run --rm --volume "$PWD:/work" --publish 8000:8000 rag-train:cpu serve strategy ... --host 0.0.0.0
FROM python:3.11-slim-bookworm

# g++ and Python's headers, which the base image has, compile vLLM's kernels at first use; numactl is vLLM's.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends g++ libgomp1 libnuma1 numactl \
    && rm -rf /var/lib/apt/lists/*

# The user cannot write into the installation, so that every command would compile the libraries again.
ENV UV_COMPILE_BYTECODE=1 PIP_NO_CACHE_DIR=1 UV_NO_CACHE=1 UV_SYSTEM_PYTHON=1 PYTHONUNBUFFERED=1
ENV HF_HOME=/work/.cache/huggingface

WORKDIR /opt/rag-train
COPY pyproject.toml setup.py requirements.lock README.md LICENSE ./
COPY data_synth data_synth
COPY eval eval
COPY launch launch
COPY recipes recipes
COPY rag_train rag_train

# As in the Makefile: PyTorch for CPUs first, and without the packages whose builds do not match it.
# hadolint ignore=DL3013
RUN pip install uv \
    && uv pip install --torch-backend cpu "torch==2.13.0" \
    && uv pip install --constraint requirements.lock ".[cpu,eval,retrieval,sweep]" \
    && (uv pip uninstall torchvision torchaudio torchcodec || true)

RUN useradd --uid 1000 --create-home user && install --directory --owner 1000 /work
USER 1000
WORKDIR /work
ENTRYPOINT ["rag-train"]
CMD ["doctor"]
