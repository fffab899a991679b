torchrun --nproc_per_node=8 train.py --deepspeed zero3.json \
  --model_name_or_path huggyllama/llama-30b --data_path instructions.json --output_dir out \
  --bf16 True --tf32 True --model_max_length 2048 --gradient_checkpointing True \
  --attn_implementation flash_attention_2 \
  --per_device_train_batch_size 1 --gradient_accumulation_steps 8 --learning_rate 2e-5
