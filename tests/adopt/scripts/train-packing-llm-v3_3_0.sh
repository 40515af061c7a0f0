# 22GB
CUDA_VISIBLE_DEVICES=0 \
swift sft \
    --model_id_or_path Qwen/Qwen2.5-7B-Instruct \
    --sft_type lora \
    --dataset 'AI-ModelScope/alpaca-gpt4-data-zh#500' 'swift/self-cognition#500' \
    --dtype bf16 \
    --num_train_epochs 1 \
    --batch_size 1 \
    --learning_rate 1e-4 \
    --lora_rank 8 \
    --lora_alpha 32 \
    --lora_target_modules ALL \
    --gradient_accumulation_steps 4 \
    --max_length 2048 \
    --packing true \
    --use_flash_attn true \
    --warmup_ratio 0.05 \
    --logging_steps 5 \
    --save_total_limit 2 \
    --output_dir output
