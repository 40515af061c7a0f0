# 2 * 50GB GPU memory
export CUDA_VISIBLE_DEVICES=0,1
export NPROC_PER_NODE=2

# train
nohup swift sft \
    --model microsoft/Phi-3-vision-128k-instruct \
    --tuner_type lora \
    --dataset 'AI-ModelScope/coco#2000' \
    --torch_dtype bfloat16 \
    --num_train_epochs 1 \
    --per_device_train_batch_size 1 \
    --learning_rate 1e-4 \
    --lora_rank 8 \
    --lora_alpha 32 \
    --target_modules all-linear \
    --warmup_ratio 0.05 \
    --logging_steps 5 \
    --save_total_limit 2 \
    --output_dir output \
    > train.log 2>&1 &
