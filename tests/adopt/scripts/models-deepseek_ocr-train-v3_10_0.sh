# 24GiB
CUDA_VISIBLE_DEVICES=0 \
swift sft \
    --model deepseek-ai/DeepSeek-OCR \
    --train_type lora \
    --dataset 'AI-ModelScope/coco#2000' \
    --torch_dtype bfloat16 \
    --num_train_epochs 1 \
    --per_device_train_batch_size 1 \
    --learning_rate 1e-4 \
    --lora_rank 8 \
    --lora_alpha 32 \
    --target_modules all-linear \
    --gradient_accumulation_steps 16 \
    --max_length 4096 \
    --warmup_ratio 0.05 \
    --logging_steps 5 \
    --save_total_limit 2 \
    --output_dir output
