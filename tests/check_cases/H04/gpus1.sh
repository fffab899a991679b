torchrun --nproc_per_node=1 train.py --deepspeed zero3.json \
  --model_name_or_path huggyllama/llama-7b --data_path instructions.json --output_dir out \
  --bf16 True --tf32 True --model_max_length 512 --gradient_checkpointing True \
  --per_device_train_batch_size 24 --gradient_accumulation_steps 1 --learning_rate 2e-5
