# GPU Memory: 4 * 60GB
nproc_per_node=4

CUDA_VISIBLE_DEVICES=0,1,2,3 \
NPROC_PER_NODE=$nproc_per_node \
swift sft \
    --model Qwen/Qwen2-VL-7B-Instruct \
    --tuner_type full \
    --dataset 'AI-ModelScope/coco#2000' \
    --torch_dtype bfloat16 \
    --num_train_epochs 1 \
    --per_device_train_batch_size 1 \
    --learning_rate 1e-5 \
    --deepspeed zero2 \
    --warmup_ratio 0.05 \
    --logging_steps 5 \
    --save_total_limit 2 \
    --output_dir output
