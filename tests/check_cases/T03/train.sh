accelerate launch --config_file fsdp.yaml pretrain.py \
  --model_name_or_path ./config.json --output_dir out --bf16 True --max_seq_length 1024 \
  --per_device_train_batch_size 2 --gradient_accumulation_steps 1 --optim adamw_torch --learning_rate 6e-4
