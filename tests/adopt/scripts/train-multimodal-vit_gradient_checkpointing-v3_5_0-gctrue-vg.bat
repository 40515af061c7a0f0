REM gc true, vgc true: 48GiB, 2.45s/it
set CUDA_VISIBLE_DEVICES=0,1,2,3
set NPROC_PER_NODE=4
swift sft ^
    --model Qwen/Qwen2.5-VL-7B-Instruct ^
    --tuner_type full ^
    --dataset "AI-ModelScope/coco#2000" ^
    --torch_dtype bfloat16 ^
    --num_train_epochs 1 ^
    --per_device_train_batch_size 4 ^
    --learning_rate 1e-5 ^
    --gradient_accumulation_steps 1 ^
    --max_length 2048 ^
    --attn_impl flash_attn ^
    --use_liger_kernel true ^
    --deepspeed zero3 ^
    --warmup_ratio 0.05 ^
    --logging_steps 5 ^
    --save_total_limit 2 ^
    --output_dir output
