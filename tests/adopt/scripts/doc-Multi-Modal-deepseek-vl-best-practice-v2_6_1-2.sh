# 4 * 70GB GPU memory
CUDA_VISIBLE_DEVICES=0,1,2,3 \
NPROC_PER_NODE=4 \
swift sft \
    --model_id_or_path deepseek-ai/deepseek-vl-7b-chat \
    --sft_type full \
    --dataset 'AI-ModelScope/coco#2000' \
    --dtype bf16 \
    --num_train_epochs 1 \
    --batch_size 1 \
    --learning_rate 1e-5 \
    --use_flash_attn true \
    --deepspeed default-zero2 \
    --warmup_ratio 0.05 \
    --logging_steps 5 \
    --save_total_limit 2 \
    --output_dir output
