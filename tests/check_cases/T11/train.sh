torchrun --nproc_per_node=2 pretrain_gpt.py \
  --num-layers 40 --hidden-size 5120 --ffn-hidden-size 13824 --num-attention-heads 40 \
  --swiglu --normalization RMSNorm --disable-bias-linear --untie-embeddings-and-output-weights \
  --position-embedding-type rope --tokenizer-type NullTokenizer --vocab-size 32000 \
  --seq-length 512 --max-position-embeddings 4096 \
  --tensor-model-parallel-size 2 --micro-batch-size 1 --global-batch-size 2 \
  --recompute-granularity full --recompute-method uniform --recompute-num-layers 1 \
  --bf16 --optimizer adam --lr 3e-5 --min-lr 3e-6 --clip-grad 2 --weight-decay 0.02 --train-iters 1000
