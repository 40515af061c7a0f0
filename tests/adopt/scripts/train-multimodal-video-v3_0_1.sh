# 4*80GB
PYTORCH_CUDA_ALLOC_CONF='expandable_segments:True' \
CUDA_VISIBLE_DEVICES=0,1,2,3 \
NPROC_PER_NODE=4 \
swift sft \
    --model_id_or_path Qwen/QVQ-72B-Preview \
    --sft_type lora \
    --dataset 'AI-ModelScope/coco#2000' \
    --dtype bf16 \
    --num_train_epochs 1 \
    --batch_size 1 \
    --learning_rate 1e-4 \
    --lora_rank 8 \
    --lora_alpha 32 \
    --lora_target_modules ALL \
    --gradient_accumulation_steps 4 \
    --max_length 2048 \
    --deepspeed default-zero3 \
    --warmup_ratio 0.05 \
    --logging_steps 5 \
    --save_total_limit 2 \
    --output_dir output
