#!/usr/bin/env bash
# Qwen/Qwen2.5-0.5B-Instruct: lora, strategy cpu, for 1xcpu-ram16.
# Effective batch 16 = 1 a device x 1 ranks x 16 accumulation. Plan 13c03d8e.
# Written by autoswift; needs ms-swift 4.6 only. Start it in the project folder, or set ROOT.
set -euo pipefail
RUN="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
ROOT="${ROOT:-$PWD}"
export RUN ROOT
[ -e "$ROOT"/rows.jsonl ] || { echo "$ROOT/rows.jsonl is not there: start this in the project folder" >&2; exit 2; }

unset NPROC_PER_NODE NNODES  # one process, without torchrun
export AUTOSWIFT_TELEMETRY_DIR="$RUN"/autoswift
export CUDA_VISIBLE_DEVICES=''
export OMP_WAIT_POLICY=PASSIVE
export ACCELERATE_USE_CPU=true
export DS_ACCELERATOR=cpu

cd "$ROOT"
exec swift sft \
    --model Qwen/Qwen2.5-0.5B-Instruct \
    --dataset "$ROOT"/rows.jsonl \
    --max_length 512 \
    --tuner_type lora \
    --torch_dtype float32 \
    --fp16 false \
    --bf16 false \
    --lora_rank 8 \
    --lora_alpha 32 \
    --target_modules all-linear \
    --per_device_train_batch_size 1 \
    --gradient_accumulation_steps 16 \
    --gradient_checkpointing false \
    --learning_rate 0.0001 \
    --warmup_ratio 0.05 \
    --num_train_epochs 3 \
    --dataloader_num_workers 1 \
    --logging_steps 5 \
    --save_steps 50 \
    --save_total_limit 2 \
    --output_dir "$RUN" \
    --add_version false \
    --external_plugins "$RUN"/autoswift/plugins/telemetry.py \
    --callbacks autoswift_telemetry \
    --use_cpu true
