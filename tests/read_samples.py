"""One small file or command of every family that `foretell check` reads."""

from __future__ import annotations

from typing import Final

__all__ = ["SAMPLES", "Sample"]

Sample = tuple[str, str, str]
"""(family, path, text)."""

AXOLOTL = """\
base_model: meta-llama/Llama-3.1-8B
adapter: lora
lora_r: 16
lora_target_linear: true
datasets:
  - path: some/data
    type: alpaca
sequence_len: 2048
sample_packing: true
micro_batch_size: 4
gradient_accumulation_steps: 2
optimizer: adamw_torch_fused
learning_rate: 2e-4
bf16: true
flash_attention: true
gradient_checkpointing: false
"""
LLAMAFACTORY = """\
model_name_or_path: Qwen/Qwen2.5-7B
stage: sft
do_train: true
finetuning_type: lora
lora_rank: 16
lora_target: all
dataset: own
template: qwen
cutoff_len: 4096
per_device_train_batch_size: 4
gradient_accumulation_steps: 4
bf16: true
output_dir: out
"""
TORCHTUNE = """\
model:
  _component_: torchtune.models.llama3_1.llama3_1_8b
tokenizer:
  _component_: torchtune.models.llama3.llama3_tokenizer
  path: /tmp/tokenizer.model
  max_seq_len: 4096
dataset:
  _component_: torchtune.datasets.alpaca_dataset
  packed: true
batch_size: 4
gradient_accumulation_steps: 2
optimizer:
  _component_: torch.optim.AdamW
  fused: true
  lr: 2e-5
loss:
  _component_: torchtune.modules.loss.CEWithChunkedOutputLoss
compile: false
enable_activation_checkpointing: false
dtype: bf16
"""
TORCHTITAN = """\
[model]
name = "llama3"
flavor = "8B"

[training]
local_batch_size = 2
seq_len = 8192
steps = 1000
compile = false

[parallelism]
data_parallel_shard_degree = -1
tensor_parallel_degree = 1

[activation_checkpoint]
mode = "none"
"""
MEGATRON = """\
#!/bin/bash
TP=2
ARGS=(
    --num-layers 32 --hidden-size 4096 --num-attention-heads 32
    --group-query-attention --num-query-groups 8
    --ffn-hidden-size 14336 --swiglu --normalization RMSNorm
    --seq-length 8192 --max-position-embeddings 8192
    --position-embedding-type rope --untie-embeddings-and-output-weights
    --vocab-size 128256 --bf16
    --micro-batch-size 2 --global-batch-size 64
    --use-distributed-optimizer
)
torchrun --nproc_per_node 8 pretrain_gpt.py "${ARGS[@]}" \\
    --tensor-model-parallel-size $TP --pipeline-model-parallel-size 1
"""
BRIDGE = """\
model:
  num_layers: 32
  hidden_size: 4096
  num_attention_heads: 32
  num_query_groups: 8
  ffn_hidden_size: 14336
  gated_linear_unit: true
  normalization: RMSNorm
  add_bias_linear: false
  share_embeddings_and_output_weights: false
  position_embedding_type: rope
  seq_length: 8192
  vocab_size: 128256
  tensor_model_parallel_size: 2
  pipeline_model_parallel_size: 1
  bf16: true
train:
  micro_batch_size: 2
  global_batch_size: 64
  train_iters: 100
ddp:
  use_distributed_optimizer: true
optimizer:
  optimizer: adam
"""
NANOTRON = """\
general: {project: p, run: r, seed: 1}
model:
  dtype: bfloat16
  model_config:
    hidden_size: 2048
    intermediate_size: 8192
    num_hidden_layers: 24
    num_attention_heads: 32
    num_key_value_heads: 8
    vocab_size: 49152
    max_position_embeddings: 4096
    tie_word_embeddings: true
    is_llama_config: true
optimizer:
  accumulate_grad_in_fp32: true
  clip_grad: 1.0
  optimizer_factory: {name: adamW, adam_beta1: 0.9, adam_beta2: 0.95, adam_eps: 1.0e-8, torch_adam_is_fused: true}
  weight_decay: 0.01
  zero_stage: 0
  learning_rate_scheduler: {learning_rate: 3.0e-4}
parallelism: {dp: 4, pp: 1, tp: 2, pp_engine: 1f1b, tp_mode: REDUCE_SCATTER, tp_linear_async_communication: true}
tokens:
  batch_accumulation_per_replica: 4
  micro_batch_size: 4
  sequence_length: 4096
  train_steps: 100
"""
FOUNDRY = """\
variables:
  max_seq_len: 2048
model:
  name: mpt_causal_lm
  d_model: 2048
  n_heads: 16
  n_layers: 24
  expansion_ratio: 4
  max_seq_len: ${variables.max_seq_len}
  vocab_size: 50368
  attn_config: {attn_impl: flash}
tokenizer: {name: EleutherAI/gpt-neox-20b, kwargs: {model_max_length: 2048}}
train_loader:
  name: text
  dataset: {local: data, split: train, shuffle: true, max_seq_len: 2048}
  drop_last: true
  num_workers: 8
optimizer: {name: decoupled_adamw, lr: 2.0e-4}
max_duration: 100ba
eval_interval: 0
global_train_batch_size: 64
device_train_microbatch_size: 4
precision: amp_bf16
fsdp_config:
  sharding_strategy: FULL_SHARD
  mixed_precision: PURE
  activation_checkpointing: false
"""
OLMO = """\
run_name: r
model:
  d_model: 2048
  n_heads: 16
  n_layers: 16
  mlp_ratio: 8
  weight_tying: true
  rope: true
  flash_attention: true
  include_bias: false
  block_type: sequential
  layer_norm_type: default
  layer_norm_with_affine: false
  activation_type: swiglu
  max_sequence_length: 2048
  vocab_size: 50280
  embedding_size: 50304
optimizer: {name: adamw, learning_rate: 4.0e-4}
global_train_batch_size: 64
device_train_microbatch_size: 4
precision: amp_bf16
fsdp: {wrapping_strategy: by_block, precision: mixed}
"""
MAXTEXT = """\
base_config: base.yml
model_name: llama3-8b
per_device_batch_size: 2
max_target_length: 4096
remat_policy: full
ici_fsdp_parallelism: -1
steps: 100
"""
RECIPE = """\
meta:
  title: Qwen3 8B
  slug: qwen3-8b
  provider: Qwen
model:
  model_id: Qwen/Qwen3-8B
  min_vllm_version: "0.9.0"
  architecture: dense
  parameter_count: 8.2B
  context_length: 40960
  base_args: [--max-model-len, "32768"]
variants:
  default:
    precision: bf16
    vram_minimum_gb: 20
"""
TRL = """\
model_name_or_path: Qwen/Qwen2.5-7B
dataset_name: some/data
max_length: 4096
packing: true
per_device_train_batch_size: 2
gradient_accumulation_steps: 4
gradient_checkpointing: false
bf16: true
loss_type: nll
output_dir: out
"""
TRAINER = """\
torchrun --nproc_per_node 8 run_clm.py --model_name_or_path meta-llama/Llama-3.1-8B --bf16 --block_size 2048 \\
    --per_device_train_batch_size 4 --gradient_accumulation_steps 2 --fsdp full_shard --output_dir out
"""
ACCELERATE = """\
compute_environment: LOCAL_MACHINE
distributed_type: FSDP
mixed_precision: bf16
num_machines: 1
num_processes: 8
fsdp_config:
  fsdp_version: 2
  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP
  fsdp_reshard_after_forward: true
"""
DEEPSPEED = """\
{"train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 4, "bf16": {"enabled": true},
 "zero_optimization": {"stage": 3, "reduce_bucket_size": 5e8, "offload_optimizer": {"device": "none"}},
 "optimizer": {"type": "AdamW", "params": {"lr": 1e-5}}}
"""

SAMPLES: Final[tuple[Sample, ...]] = (
    ("axolotl", "a.yaml", AXOLOTL),
    ("llamafactory", "a.yaml", LLAMAFACTORY),
    ("torchtune", "a.yaml", TORCHTUNE),
    ("torchtitan", "a.toml", TORCHTITAN),
    ("megatron", "a.sh", MEGATRON),
    ("megatron_bridge", "a.yaml", BRIDGE),
    ("nanotron", "a.yaml", NANOTRON),
    ("llm_foundry", "a.yaml", FOUNDRY),
    ("olmo", "a.yaml", OLMO),
    ("maxtext", "a.yaml", MAXTEXT),
    (
        "vllm",
        "command line",
        "vllm serve meta-llama/Llama-3.1-8B-Instruct -tp 2 --max-model-len 16384 --gpu-memory-utilization 0.9\n",
    ),
    ("vllm_recipes", "a.yaml", RECIPE),
    ("sglang", "command line", "python -m sglang.launch_server --model-path Qwen/Qwen3-8B --tp 2 --context-length 16384\n"),
    (
        "trtllm",
        "command line",
        "trtllm-serve meta-llama/Llama-3.1-8B-Instruct --tp_size 2 --max_batch_size 64 --max_seq_len 16384\n",
    ),
    ("trl", "a.yaml", TRL),
    ("trainer", "a.sh", TRAINER),
    ("accelerate", "a.yaml", ACCELERATE),
    ("deepspeed", "a.json", DEEPSPEED),
)
