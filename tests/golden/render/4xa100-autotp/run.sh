#!/usr/bin/env bash
# Qwen/Qwen2.5-7B-Instruct: full, strategy tensor-parallel, for 4xa100-sxm4-80gb-80-nvlink-ram256.
# Effective batch 16 = 8 a device x 2 ranks x 1 accumulation. Plan cfa1e8da.
# Written by autoswift; needs ms-swift 4.6 only. Start it in the project folder, or set ROOT.
set -euo pipefail
RUN="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
ROOT="${ROOT:-$PWD}"
export RUN ROOT
[ -e "$ROOT"/rows.jsonl ] || { echo "$ROOT/rows.jsonl is not there: start this in the project folder" >&2; exit 2; }

export NPROC_PER_NODE=4
export MASTER_PORT="${MASTER_PORT:-$(python3 -c 'import socket; s = socket.socket(); s.bind(("", 0)); print(s.getsockname()[1])')}"
export AUTOSWIFT_TELEMETRY_DIR="$RUN"/autoswift
export CUDA_VISIBLE_DEVICES="${CUDA_VISIBLE_DEVICES:-0,1,2,3}"
export PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True

cd "$ROOT"
exec swift sft \
    --model Qwen/Qwen2.5-7B-Instruct \
    --dataset "$ROOT"/rows.jsonl \
    --max_length 512 \
    --tuner_type full \
    --torch_dtype bfloat16 \
    --per_device_train_batch_size 8 \
    --gradient_accumulation_steps 1 \
    --gradient_checkpointing false \
    --deepspeed "$RUN"/autoswift/ds.json \
    --deepspeed_autotp_size 2 \
    --learning_rate 1e-05 \
    --warmup_ratio 0.05 \
    --num_train_epochs 3 \
    --dataloader_num_workers 4 \
    --logging_steps 5 \
    --save_steps 50 \
    --save_total_limit 2 \
    --output_dir "$RUN" \
    --add_version false \
    --external_plugins "$RUN"/autoswift/plugins/telemetry.py \
    --callbacks autoswift_telemetry
