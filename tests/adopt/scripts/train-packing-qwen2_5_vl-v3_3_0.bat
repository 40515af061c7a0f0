REM 4 * 36GB
set CUDA_VISIBLE_DEVICES=0,1,2,3
set NPROC_PER_NODE=4
swift sft ^
    --model Qwen/Qwen2.5-VL-7B-Instruct ^
    --tuner_type lora ^
    --dataset "AI-ModelScope/coco#2000" ^
    --torch_dtype bfloat16 ^
    --num_train_epochs 1 ^
    --per_device_train_batch_size 1 ^
    --learning_rate 1e-4 ^
    --lora_rank 8 ^
    --lora_alpha 32 ^
    --target_modules all-linear ^
    --gradient_accumulation_steps 1 ^
    --max_length 8192 ^
    --packing true ^
    --attn_impl flash_attn ^
    --deepspeed zero2 ^
    --warmup_ratio 0.05 ^
    --logging_steps 5 ^
    --save_total_limit 2 ^
    --output_dir output
