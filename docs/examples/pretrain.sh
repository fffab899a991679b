#!/bin/bash
#SBATCH --nodes=8
#SBATCH --gpus-per-node=8

GPUS_PER_NODE=8
TP=${TP:-4}
PP=2

MODEL_ARGS=(
    --num-layers 40 --hidden-size 5120 --num-attention-heads 40
    --group-query-attention --num-query-groups 8
    --ffn-hidden-size 17408 --swiglu --normalization RMSNorm
    --position-embedding-type rope --disable-bias-linear
    --untie-embeddings-and-output-weights
    --seq-length 4096 --max-position-embeddings 4096
    --vocab-size 151936
)
TRAINING_ARGS=(
    --micro-batch-size 2 --global-batch-size 1024
    --bf16 --use-distributed-optimizer
    --lr 3e-4 --train-iters 100000
    --recompute-activations
)

srun torchrun --nproc_per_node $GPUS_PER_NODE --nnodes $SLURM_NNODES \
    pretrain_gpt.py "${MODEL_ARGS[@]}" "${TRAINING_ARGS[@]}" \
    --tensor-model-parallel-size $TP --pipeline-model-parallel-size $PP \
    --sequence-parallel
