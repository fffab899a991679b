torchrun --nproc_per_node=4 train_mem.py \
  --model_name_or_path huggyllama/llama-7b --data_path conversations.json --output_dir out \
  --bf16 True --tf32 True --model_max_length 2048 --gradient_checkpointing True \
  --per_device_train_batch_size 2 --gradient_accumulation_steps 16 \
  --num_train_epochs 3 --learning_rate 2e-5 --lr_scheduler_type cosine --warmup_ratio 0.03 \
  --fsdp "full_shard auto_wrap" --fsdp_transformer_layer_cls_to_wrap LlamaDecoderLayer
