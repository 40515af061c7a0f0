# without padding_free: 4 * 60GiB, 26h
export CUDA_VISIBLE_DEVICES=0,1,2,3
export NPROC_PER_NODE=4

# train
nohup swift sft \
    --model Qwen/Qwen2.5-7B \
    --tuner_type full \
    --dataset 'AI-ModelScope/alpaca-gpt4-data-zh#500' 'swift/self-cognition#500' \
    --torch_dtype bfloat16 \
    --num_train_epochs 1 \
    --per_device_train_batch_size 8 \
    --learning_rate 1e-5 \
    --gradient_accumulation_steps 1 \
    --max_length 8192 \
    --attn_impl flash_attn \
    --use_liger_kernel true \
    --deepspeed zero3 \
    --warmup_ratio 0.05 \
    --logging_steps 5 \
    --save_total_limit 2 \
    --output_dir output \
    > train.log 2>&1 &
