torchrun --nproc_per_node=8 finetune.py --deepspeed zero3.json \
  --model_name_or_path ./config.json --data_path chats.json --output_dir out \
  --bf16 True --model_max_length 512 --gradient_checkpointing True --use_lora True \
  --lora_r 64 --lora_alpha 16 --lora_dropout 0.05 --lora_target_modules q_proj k_proj v_proj o_proj gate_proj up_proj \
  --per_device_train_batch_size 1 --gradient_accumulation_steps 8 --learning_rate 3e-4
