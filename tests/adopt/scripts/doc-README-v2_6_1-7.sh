# GPU Memory Requirement: 4 * 30GB
PYTORCH_CUDA_ALLOC_CONF='expandable_segments:True' \
CUDA_VISIBLE_DEVICES=0,1,2,3 \
NPROC_PER_NODE=4 \
swift sft \
    --model_id_or_path Qwen/Qwen1.5-7B \
    --sft_type full \
    --dataset 'AI-ModelScope/alpaca-gpt4-data-zh#500' 'swift/self-cognition#500' \
    --dtype bf16 \
    --num_train_epochs 1 \
    --batch_size 1 \
    --learning_rate 1e-5 \
    --deepspeed default-zero3 \
    --warmup_ratio 0.05 \
    --logging_steps 5 \
    --save_total_limit 2 \
    --output_dir output
