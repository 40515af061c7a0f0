# 22GB
export CUDA_VISIBLE_DEVICES=0
torchrun --nproc_per_node=1 --master_port 29501 \
    /opt/ms-swift/swift/cli/sft.py \
    --model Qwen/Qwen2.5-7B-Instruct \
    --tuner_type lora \
    --dataset 'AI-ModelScope/alpaca-gpt4-data-zh#500' 'swift/self-cognition#500' \
    --torch_dtype bfloat16 \
    --num_train_epochs 1 \
    --per_device_train_batch_size 1 \
    --learning_rate 1e-4 \
    --lora_rank 8 \
    --lora_alpha 32 \
    --target_modules all-linear \
    --gradient_accumulation_steps 16 \
    --max_length 2048 \
    --warmup_ratio 0.05 \
    --logging_steps 5 \
    --save_total_limit 2 \
    --output_dir output
