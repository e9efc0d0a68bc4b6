#!/usr/bin/env bash
# Train with torchrun, without Accelerate's launcher. The arguments are those of rag_train.train.
# On one machine, with all its GPUs:
#   launch/torchrun.sh recipes/deeprag_sft.yaml
# On two machines, with the same command on both, where node0 is the first:
#   NNODES=2 RDZV_ENDPOINT=node0:29500 launch/torchrun.sh recipes/deeprag_sft.yaml
# With ZeRO instead of DDP:
#   DEEPSPEED=launch/deepspeed/zero3.json launch/torchrun.sh recipes/deeprag_sft.yaml
#
# Environment variables, with their defaults:
# NNODES          number of machines (1)
# NPROC_PER_NODE  processes on each machine (gpu: one per GPU)
# RDZV_ENDPOINT   host:port of the first machine (localhost:29500)
# RDZV_ID         name of the run, the same on all machines (rag-train)
# DEEPSPEED       configuration file in launch/deepspeed/ (none: DDP)
set -euo pipefail

if [[ -n "${DEEPSPEED:-}" ]]; then
  export ACCELERATE_USE_DEEPSPEED=true ACCELERATE_DEEPSPEED_CONFIG_FILE="$DEEPSPEED"
fi
exec torchrun \
  --nnodes "${NNODES:-1}" \
  --nproc-per-node "${NPROC_PER_NODE:-gpu}" \
  --rdzv-backend c10d \
  --rdzv-id "${RDZV_ID:-rag-train}" \
  --rdzv-endpoint "${RDZV_ENDPOINT:-localhost:29500}" \
  -m rag_train.train "$@"
