accelerate launch --config_file fsdp.yaml train.py \
  --model_name_or_path meta-llama/Llama-2-70b-hf --output_dir out --bf16 True --max_seq_length 4096 \
  --per_device_train_batch_size 1 --gradient_accumulation_steps 1 --optim adamw_torch --learning_rate 1e-4
