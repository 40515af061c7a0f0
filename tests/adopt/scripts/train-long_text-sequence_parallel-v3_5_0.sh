# GPU Memory: 4 * 53GiB, Training Speed 50s/it
PYTORCH_CUDA_ALLOC_CONF='expandable_segments:True' \
CUDA_VISIBLE_DEVICES=0,1,2,3 \
NPROC_PER_NODE=4 \
swift sft \
    --model=Qwen/Qwen2.5-7B-Instruct \
    --tuner_type=full \
    --dataset 'AI-ModelScope/alpaca-gpt4-data-zh#500' 'swift/self-cognition#500' \
    --torch_dtype=bfloat16 \
    --num_train_epochs=1 \
    --per_device_train_batch_size=1 \
    --learning_rate=1e-5 \
    --gradient_accumulation_steps=8 \
    --max_length=65536 \
    --packing=true \
    --attn_impl=flash_attn \
    --deepspeed=zero3 \
    --sequence_parallel_size=4 \
    --warmup_ratio=0.05 \
    --logging_steps=5 \
    --save_total_limit=2 \
    --output_dir=output
