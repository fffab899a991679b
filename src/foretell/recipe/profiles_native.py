"""Profiles of frameworks with model code of their own: torchtitan, torchtune, LitGPT, thunder, torchao, MMSegmentation."""

from __future__ import annotations

from foretell.recipe.formats import AUTOCAST, BF16, FP32, FSDP, MIXED
from foretell.recipe.profile import STATES, Profile
from foretell.recipe.style import Style

TORCHTITAN = Profile(
    name="torchtitan",
    title="torchtitan (FSDP2, TP with SP, PP)",
    sources=("pytorch/torchtitan torchtitan/models/llama3, torchtitan/distributed",),
    formats=FSDP,
    style=Style(
        norm="fused",
        gate="eager",
        rope="complex",
        attention="flash",
        fused_qkv=True,
        gqa_expand=True,
        chunked_head=True,
        fsdp_units="split",
    ),
    losses=(("vocab-parallel", "loss-parallel"),),
    sharding="fsdp2",
    zero=(0, 2, 3),
    default_zero=3,
    pipeline=True,
    tensor=True,
    context=True,
    expert=True,
    sequence_parallel=True,
    default_expert_tp=1,
    offloads=STATES,
    offloads_together=True,
    adapters_4bit=False,
    expandable=True,
)
TORCHTUNE = Profile(
    # torchtune/modules: rms_norm.py (fp32, type_as), attention.py (keys and values expanded), transformer.py
    # (output(h).float(), chunked_output), loss/ce_chunked_output_loss.py; recipes/configs: fused AdamW
    name="torchtune",
    title="torchtune recipes, all-bf16",
    sources=("pytorch/torchtune 1814feb17",),
    formats=BF16,
    style=Style(
        norm="eager",
        gate="eager",
        rope="eager",
        attention="flash",
        gqa_expand=True,
        loss="output-chunked",
        logits_float=True,
        fsdp_units="layers",  # 70B_full.yaml custom_sharded_layers; the LoRA configurations leave it out
    ),
    losses=(("eager", "eager"), ("chunked", "output-chunked")),
    adapter_fsdp_units="root",
    sharding="fsdp2",
    zero=(0, 2, 3),
    tensor=True,  # models/llama3/_parallelism.py: the sequence is divided between the matrices
    context=True,  # recipes/full_finetune_distributed.py context_parallel_dim
    sequence_parallel=True,
    optimizer_impl="fused",
)
THUNDER = Profile(
    # thunder/benchmarks/benchmark_litgpt.py: LitGPT's model, one fused graph whose saved tensors are eager code's
    name="thunder",
    title="lightning-thunder on LitGPT models, bf16-true",
    aliases=("lightning-thunder",),
    sources=("Lightning-AI/lightning-thunder benchmark_litgpt.py",),
    formats=BF16,
    style=Style(norm="eager", gate="eager", rope="eager", attention="flash", gqa_expand=True),
    compiles="kernels",
    sharding="fsdp2",
    zero=(0, 2, 3),
    optimizer_impl="fused",
    offloads=frozenset(),
    supports_adapters=False,
)
LITGPT = Profile(
    # litgpt/finetune/lora.py: lora_dropout, no_backward_sync, `logits` held by the loop; utils.chunked_cross_entropy;
    # lightning fabric/plugins/precision: bitsandbytes.py quantises every nn.Linear from fp16, convert_output to fp32
    name="litgpt",
    title="LitGPT (Lightning Fabric), bf16-true",
    sources=("Lightning-AI/litgpt 26857050",),
    formats=AUTOCAST | {"bf16": BF16["bf16"]},
    quantizes_head=True,
    quantizes_many=False,
    dequantized="fp16",
    style=Style(
        autocast=True,
        residual=4.0,
        norm="eager",
        norm_scale_wide=True,
        gate="eager",
        rope="eager",
        attention="flash",
        heads_first=True,
        gqa_expand=True,
        loss="list-chunked",
        logits_carried=True,
    ),
    losses=(("chunked", "list-chunked"),),
    rewrite="litgpt",
    lora_dropout=0.05,
    sharding="fsdp1",
    zero=(0, 3),
    no_sync=True,
    offloads=frozenset(),
)
TORCHAO = Profile(
    name="torchao",
    title="torchao benchmark scripts: autocast over fp32 parameters",
    sources=("pytorch/ao benchmarks/benchmark_low_bit_adam.py",),
    formats=AUTOCAST,
    style=Style(autocast=True, residual=4.0, norm="fused", gate="eager", attention="flash"),
    zero=(0,),
    optimizer_impl="fused",
)
MMSEG = Profile(
    # MMDistributedDataParallel; mmcv/runner/hooks/optimizer.py Fp16OptimizerHook: a half model, fp32 copies for the update
    name="mmseg",
    title="MMSegmentation on MMCV, DDP, fp32",
    aliases=("mmsegmentation", "openmmlab"),
    sources=("open-mmlab/mmsegmentation v0.5 docs/model_zoo.md",),
    formats={"fp32": FP32, "fp16": MIXED["fp16"]},
    style=Style(norm="fused", gate="eager", act="eager", attention="eager", scores="composite"),
    zero=(0,),
    offloads=frozenset(),
    supports_adapters=False,
)
LLM_FOUNDRY = Profile(
    # llmfoundry/models/layers/norm.py (LPLayerNorm: one kernel in the compute format), attention.py (flash), ffn.py;
    # the fused loss of models/mpt/modeling_mpt.py comes beside train metrics (LanguageCrossEntropy, LanguagePerplexity)
    # that read the logits as PyTorch's composite loss does
    name="llm-foundry",
    title="MosaicML llm-foundry on Composer, FSDP1",
    aliases=("composer", "mosaicml"),
    sources=("mosaicml/llm-foundry 8c8dd48 llmfoundry/models",),
    formats=FSDP,
    style=Style(norm="fused", gate="eager", attention="flash", loss="eager", early_stop=False),
    rewrite="fused-attention",
    sharding="fsdp1",
    zero=(2, 3),
    default_zero=3,
    offloads=STATES,
    offloads_together=True,
    supports_adapters=False,
)
