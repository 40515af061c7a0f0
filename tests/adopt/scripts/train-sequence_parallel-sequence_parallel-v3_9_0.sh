# GPU Memory: 8 * 40GiB, Training Speed 26s/it
CUDA_VISIBLE_DEVICES=0,1,2,3,4,5,6,7 \
NPROC_PER_NODE=8 \
swift sft \
    --model_id_or_path Qwen/Qwen2.5-3B-Instruct \
    --sft_type lora \
    --dataset 'AI-ModelScope/alpaca-gpt4-data-zh#500' 'swift/self-cognition#500' \
    --dtype bf16 \
    --num_train_epochs 1 \
    --batch_size 4 \
    --learning_rate 1e-4 \
    --lora_rank 8 \
    --lora_alpha 32 \
    --lora_target_modules ALL \
    --gradient_accumulation_steps 8 \
    --max_length 65536 \
    --use_flash_attn true \
    --sequence_parallel_size 8 \
    --warmup_ratio 0.05 \
    --logging_steps 5 \
    --save_total_limit 2 \
    --output_dir output
