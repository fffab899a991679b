"""Logs: every form of message and line that is known, with bytes, counters and lines; and that no text breaks the reader."""

# ruff: noqa: E501  # lines of logs are as long as they are

from __future__ import annotations

import io
import random
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from foretell.errors import ConfigError
from foretell.readers.logs import Figure, LogReading, Oom, Refusal, read_log, read_log_text
from foretell.readers.logs._read import HEAD, RULES, TAIL

GIB, MIB = 2.0**30, 2.0**20


def oom(text: str) -> Oom:
    found = read_log(text).ooms
    assert len(found) == 1, found
    return found[0]


def one(text: str, counter: str, moment: str = "peak") -> Figure:
    found = [figure for figure in read_log(text).figures if (figure.counter, figure.moment) == (counter, moment)]
    assert len(found) == 1, found
    return found[0]


def refusal(text: str) -> Refusal:
    found = read_log(text).refusals
    assert len(found) == 1, found
    return found[0]


def count(text: str, name: str) -> float:
    found = read_log(text).count(name)
    assert found is not None
    return found.value


# -- PyTorch's messages -------------------------------------------------------------------------------------

NEW = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.50 GiB. GPU 1 has a total capacity of 79.10 GiB of which "
    "608.00 MiB is free. Including non-PyTorch memory, this process has 60.00 GiB memory in use. Process 77 has 18.00 GiB memory "
    "in use. Of the allocated memory 55.25 GiB is allocated by PyTorch, with 2.00 GiB allocated in private pools (e.g., CUDA "
    "Graphs), and 3.50 GiB is reserved by PyTorch but unallocated. If reserved but unallocated memory is large try setting ..."
)
OLD = (
    "RuntimeError: CUDA out of memory. Tried to allocate 2.00 GiB (GPU 0; 79.15 GiB total capacity; 70.10 GiB already allocated; "
    "1.20 GiB free; 76.00 GiB reserved in total by PyTorch) If reserved memory is >> allocated memory try setting max_split_size_mb"
)


def test_a_message_of_pytorch_2() -> None:
    found = oom(f"step 3\n\n{NEW}\n")
    assert (found.line, found.backend, found.gpu) == (3, "CUDA", 1)
    assert (found.tried, found.free) == (1.5 * GIB, 608 * MIB)
    assert found.capacity == pytest.approx(79.1 * GIB)
    assert (found.allocated, found.unallocated, found.private) == (55.25 * GIB, 3.5 * GIB, 2 * GIB)
    assert (found.process, found.reserved, found.outside) == (60 * GIB, 58.75 * GIB, 1.25 * GIB)
    assert [(other.pid, other.bytes) for other in found.others] == [(77, 18 * GIB)]
    assert found.foreign == 18 * GIB
    assert found.tried_within == pytest.approx(2 * MIB + 0.005 * GIB)  # whole segments of 2 MiB, two decimals
    assert found.step == 3


def test_a_message_of_pytorch_1() -> None:
    found = oom(OLD)
    assert (found.gpu, found.tried) == (0, 2 * GIB)
    assert found.allocated == pytest.approx(70.1 * GIB)
    assert found.reserved == pytest.approx(76 * GIB)  # it prints the sum, and what no tensor uses is the difference
    assert found.unnamed == pytest.approx(1.95 * GIB)
    assert (found.process, found.others) == (None, ())


def test_up_to_1_3_cached_was_what_no_tensor_uses() -> None:
    text = "CUDA out of memory. Tried to allocate 96.00 MiB (GPU 0; 10.92 GiB total capacity; 9.75 GiB already allocated; 33.56 MiB free; 12.00 MiB cached)"
    assert oom(text).unallocated == 12 * MIB


def test_pieces_of_a_message_are_taken_each_by_itself() -> None:
    found = oom(
        "CUDA out of memory. Tried to allocate 90.00 MiB. GPU 0 has a total capacity of 24.00 GiB. ... 23.00 GiB is allocated by PyTorch"
    )
    assert (found.capacity, found.allocated, found.free, found.reserved) == (24 * GIB, 23 * GIB, None, None)


@pytest.mark.parametrize(
    ("text", "backend", "tried"),
    [
        (NEW.replace("CUDA out", "HIP out"), "HIP", 1.5 * GIB),
        ("torch.OutOfMemoryError: XPU out of memory. Tried to allocate 20.00 MiB. GPU 0 has a total capacity of 11.93 GiB", "XPU", 20 * MIB),
        ("RuntimeError: NPU out of memory. Tried to allocate 31.67 GiB (NPU 0; 32.00 GiB total capacity; 6.30 GiB already allocated; 24.39 GiB free; 6.55 GiB reserved in total by PyTorch)", "NPU", 31.67 * GIB),
        ("RuntimeError: MPS backend out of memory (MPS allocated: 17.00 GiB, other allocations: 464.00 KiB, max allowed: 18.13 GiB). Tried to allocate 192.00 MiB on private pool.", "MPS", 192 * MIB),
        ("XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory while trying to allocate 4294967296 bytes.", "XLA", 4 * GIB),
        ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 512.00 KiB. GPU 0", "CUDA", 2.0**19),
    ],
)  # fmt: skip
def test_other_backends_say_it_alike(text: str, backend: str, tried: float) -> None:
    found = oom(text)
    assert found.backend == backend
    assert found.tried == pytest.approx(tried)


@pytest.mark.parametrize(
    "text",
    [
        "RuntimeError: CUDA error: out of memory",
        "ncclUnhandledCudaError: ... Cuda failure 2 'out of memory'",
        "RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
        "Failed to CUDA calloc async 608 bytes",
    ],
)
def test_libraries_fail_outside_of_the_allocator(text: str) -> None:
    found = oom(text)
    assert (found.backend, found.tried) == ("CUDA library", None)


def test_words_that_are_no_failure() -> None:
    text = "If out-of-memory error occurs during cudagraph capture, consider\nwe ran out of memory yesterday\nrun out of memory. Try again"
    assert not read_log(text).died


def test_a_message_that_was_wrapped_and_quoted() -> None:
    wrapped = "\n> # ".join(OLD.replace("; ", ";|").replace(" (GPU", "|(GPU").split("|"))
    assert oom(wrapped).reserved == pytest.approx(76 * GIB)
    assert oom(NEW.replace(". ", ".\n")).private == 2 * GIB


def test_in_a_container_the_process_does_not_know_its_number() -> None:
    text = NEW.replace("Including non-PyTorch memory, this process", "Process 4711")
    found = oom(text)
    assert found.process == 60 * GIB
    assert [other.pid for other in found.others] == [77]


def test_equal_messages_of_many_prints_are_one() -> None:
    assert oom(f"{NEW}\n{NEW}\nException: {NEW}\n").times == 3


def test_a_carriage_return_of_a_progress_bar_ends_no_message() -> None:
    found = oom(f" 12%|█▏        | 120/1000 [10:00<1:00, 1.2it/s]\r{NEW}")
    assert (found.step, found.tried) == (120, 1.5 * GIB)


def test_bars_of_loading_are_no_steps() -> None:
    assert oom(f"Loading checkpoint shards: 100%|██████████| 4/4 [00:10<00:00]\n{NEW}").step is None


def test_the_allocator_tried_again() -> None:
    text = (
        "[rank{}]:[W910 23:40:43.144601916 CUDACachingAllocator.cpp:3933] memory allocation failed with OOM on device 0 while trying "
        "to allocate 7516192768 bytes (free: 1547173888, total: 191495471104).\n"
    )
    log = read_log(text.format(0) + text.format(0) + "WARNING - 3 CUDA memory allocation retries.\n")
    assert [(r.tried, r.free, r.capacity, r.rank, r.times) for r in log.retries] == [
        (7516192768.0, 1547173888.0, 191495471104.0, "rank0", 2)
    ]
    assert not log.died
    assert count(text.format(0) + "WARNING - 3 CUDA memory allocation retries.\n", "allocation_retries") == 3


def test_a_memory_summary() -> None:
    text = (
        "| Allocated memory      |  11000 MiB |  12000 MiB |  99999 MiB |  88888 MiB |\n"
        "| GPU reserved memory   |  13000 MiB |  14000 MiB |  14000 MiB |      0 B   |\n"
    )
    assert one(text, "allocated").bytes == 12000 * MIB
    assert one(text, "reserved").bytes == 14000 * MIB
    assert one(text, "allocated", "now").bytes == 11000 * MIB


# -- tracebacks ---------------------------------------------------------------------------------------------


def raised(*frames: tuple[str, str, str], mark: str = "") -> str:
    lines = [f"{mark}Traceback (most recent call last):"]
    for path, function, code in frames:
        lines += [f'{mark}  File "{path}", line 12, in {function}', f"{mark}    {code}"]
    return "\n".join([*lines, f"{mark}{NEW}"])


TRAIN = ("/app/train.py", "<module>", "trainer.train()")
FORWARD = ("/env/torch/nn/modules/module.py", "_call_impl", "return forward_call(*args, **kwargs)")
BACKWARD = ("/env/torch/autograd/graph.py", "_engine_run_backward", "return Variable._execution_engine.run_backward(")


@pytest.mark.parametrize(
    ("frames", "phase", "term"),
    [
        (((FORWARD), ("/env/transformers/loss/loss_utils.py", "fixed_cross_entropy", "nn.functional.cross_entropy(")), "loss", "logits_and_loss"),
        (((FORWARD), ("/env/transformers/models/llama/modeling_llama.py", "forward", "logits = logits.float()")), "loss", "logits_and_loss"),
        (((FORWARD), ("/env/transformers/models/llama/modeling_llama.py", "forward", "logits = self.lm_head(hidden_states)")), "loss", "logits_and_loss"),
        (((FORWARD), ("/env/transformers/models/gpt2/modeling_gpt2.py", "eager_attention_forward", "nn.functional.softmax(attn_weights, dim=-1)")), "forward", "activations"),
        (((FORWARD), ("/env/transformers/models/llama/modeling_llama.py", "forward", "self.down_proj(self.act_fn(self.gate_proj(x)))")), "forward", "activations"),
        (((BACKWARD),), "backward", ""),
        (((BACKWARD), ("/env/torch/utils/checkpoint.py", "recompute_fn", "fn(*args, **kwargs)")), "backward", "activations"),
        (((BACKWARD), ("/env/deepspeed/runtime/zero/stage3.py", "reduce_independent_p_g_buckets_and_remove_grads", "x")), "backward", "communication_buffers"),
        ((("/env/torch/optim/adamw.py", "step", "self._init_group("), ("/env/torch/optim/adamw.py", "_init_group", 'state["exp_avg"] = torch.zeros_like(')), "optimizer", "optimizer_state"),
        ((("/env/torch/optim/adamw.py", "_multi_tensor_adamw", "exp_avg_sq_sqrt = torch._foreach_sqrt(device_exp_avg_sqs)"),), "optimizer", "optimizer_workspace"),
        ((("/env/torch/nn/utils/clip_grad.py", "clip_grad_norm_", "norms = torch._foreach_norm(grads)"),), "optimizer", "optimizer_workspace"),
        ((("/env/torch/distributed/fsdp/fully_sharded_data_parallel.py", "state_dict", "x"),), "checkpoint_save", ""),
        ((("/env/transformers/trainer.py", "evaluation_loop", "x"), ("/env/transformers/trainer_pt_utils.py", "nested_concat", "torch.cat(")), "evaluation", "logits_and_loss"),
        ((("/env/transformers/generation/utils.py", "_sample", "outputs = self(**model_inputs)"),), "generation", ""),
        ((("/env/transformers/modeling_utils.py", "from_pretrained", "x"), ("/env/accelerate/utils/modeling.py", "set_module_tensor_to_device", "x")), "load", ""),
        (((FORWARD), ("/env/torch/distributed/fsdp/_runtime_utils.py", "_unshard", "handle.unshard()")), "forward", "gathered_weights"),
        ((("/env/vllm/v1/worker/gpu_worker.py", "determine_available_memory", "self.model_runner.profile_run()"),), "profile", ""),
        ((("/env/vllm/v1/worker/gpu_model_runner.py", "capture_model", "x"),), "graphs", ""),
        ((("/env/sglang/srt/model_executor/model_runner.py", "init_memory_pool", "x"),), "kv", ""),
        ((("/env/vllm/model_executor/model_loader/base_loader.py", "load_model", "x"),), "engine-load", ""),
    ],
)  # fmt: skip
def test_frames_say_what_the_run_was_doing(frames: tuple[tuple[str, str, str], ...], phase: str, term: str) -> None:
    found = oom(raised(TRAIN, *frames))
    assert (found.phase, found.term) == (phase, term)
    assert len(found.frames) == len(frames) + 1
    assert found.frames[-1].code == frames[-1][2]


def test_ranks_that_write_at_once_are_told_apart() -> None:
    mine = raised(TRAIN, FORWARD, ("a.py", "cross_entropy", "loss()"), mark="[rank1]: ").split("\n")
    other = raised(("b.py", "state_dict", "save()"), mark="[rank0]: ").split("\n")[:-1]
    mixed = [line for pair in zip(mine, [*other, *[""] * len(mine)], strict=False) for line in pair]
    found = oom("\n".join(mixed))
    assert (found.rank, found.phase) == ("rank1", "loss")
    assert {frame.path for frame in found.frames} == {"/app/train.py", FORWARD[0], "a.py"}


def test_a_traceback_belongs_to_the_nearest_error() -> None:
    text = f"{raised(TRAIN, BACKWARD)}\n{OLD}\n"
    first, second = read_log(text).ooms
    assert (first.phase, second.phase, second.frames) == ("backward", "", ())


def test_tracebacks_of_ipython_and_rich() -> None:
    ipython = f"File /env/torch/_tensor.py:525, in Tensor.backward(self)\n    524 x\n--> 525 torch.autograd.backward(\n{NEW}"
    old = f"/env/torch/_tensor.py in backward(self)\n--> 255 torch.autograd.backward(self)\n{NEW}"
    rich = f"│ /env/torch/_tensor.py:525 in backward   │\n│ ❱ 525 │   torch.autograd.backward( │\n{NEW}"
    for text in (ipython, old, rich):
        found = oom(text)
        assert found.phase == "backward", text
        assert "torch.autograd.backward(" in found.frames[-1].code


def test_a_traceback_in_one_line_of_json() -> None:
    text = (
        r'{"error": "Traceback (most recent call last):\n  File \"/env/torch/optim/adam.py\", line 9, in step\n    go()\n'
        + NEW
        + '"}'
    )
    found = oom(text)
    assert (found.phase, found.allocated) == ("optimizer", 55.25 * GIB)


# -- engines ------------------------------------------------------------------------------------------------

VLLM_V0 = """\
INFO 01-02 03:04:05 model_runner.py:1097] Loading model weights took 5.2032 GB
INFO 01-02 03:04:05 worker.py:241] Memory profiling takes 0.69 seconds
INFO 01-02 03:04:05 worker.py:241] the current vLLM instance can use total_gpu_memory (79.25GiB) x gpu_memory_utilization (0.90) = 71.33GiB
INFO 01-02 03:04:05 worker.py:241] model weights take 5.20GiB; non_torch_memory takes 0.26GiB; PyTorch activation peak memory takes 1.42GiB; the rest of the memory reserved for KV Cache is 64.45GiB.
INFO 01-02 03:04:06 gpu_executor.py:76] # GPU blocks: 12,345, # CPU blocks: 1310
INFO 01-02 03:04:06 gpu_executor.py:80] Maximum concurrency for 2048 tokens per request: 96.45x
"""
VLLM_V1 = """\
INFO 01-02 03:04:05 [core.py:77] Initializing a V1 LLM engine (v0.11.2) with config: model='org/some-8b', speculative_config=None, dtype=torch.bfloat16, max_seq_len=16000, tensor_parallel_size=2, kv_cache_dtype=auto, enforce_eager=False
(Worker_TP0 pid=57) INFO [gpu_model_runner.py:2653] Model loading took 14.98 GiB memory and 3.1 seconds
(Worker_TP1 pid=58) INFO [gpu_model_runner.py:2653] Model loading took 14.99 GiB memory and 3.1 seconds
(Worker_TP0 pid=57) INFO [gpu_model_runner.py:6376] Estimated CUDA graph memory: 0.55 GiB total
(Worker_TP0 pid=57) INFO [gpu_worker.py:298] Available KV cache memory: 51.38 GiB
(Worker_TP1 pid=58) INFO [gpu_worker.py:298] Available KV cache memory: 51.12 GiB
(EngineCore pid=34) INFO [kv_cache_utils.py:1087] GPU KV cache size: 418,832 tokens, Maximum concurrency for 16,000 tokens per request: 26.18x
(Worker_TP0 pid=57) INFO [gpu_model_runner.py:3480] Graph capturing finished in 5 secs, took 0.47 GiB
(Worker_TP0 pid=57) DEBUG Free memory on device (78.19/79.19 GiB) on startup. Desired GPU memory utilization is (0.9, 71.27 GiB). Actual usage is 14.98 GiB for weight, 3.75 GiB for peak activation, 0.63 GiB for non-torch memory, and 0.47 GiB for CUDAGraph memory. Replace gpu_memory_utilization config with `--kv-cache-memory=5` (4.2 GiB) to fit into requested memory. Current kv cache memory in use is 51.38 GiB.
"""


def amounts(log: LogReading) -> dict[str, float]:
    made = {
        name: log.figure(name)
        for name in ("capacity", "budget", "weights", "non_torch", "activation", "graphs", "kv_pool", "consumed")
    }
    return {name: round(figure.bytes / GIB, 4) for name, figure in made.items() if figure is not None}


def test_vllm_v0() -> None:
    log = read_log(VLLM_V0)
    assert log.engine == "vLLM"
    assert amounts(log) == {
        "capacity": 79.25, "budget": 71.33, "weights": 5.2032, "non_torch": 0.26, "activation": 1.42, "kv_pool": 64.45,
    }  # fmt: skip
    assert (count(VLLM_V0, "blocks"), count(VLLM_V0, "concurrency"), count(VLLM_V0, "memory_share")) == (12345, 96.45, 0.9)
    weights = log.figure("activation")
    assert weights is not None
    assert weights.line == 4
    assert weights.within == pytest.approx(0.005 * GIB)


def test_vllm_v1_with_its_ranks_and_settings() -> None:
    log = read_log(VLLM_V1)
    assert amounts(log) == {
        "capacity": 79.19, "budget": 71.27, "weights": 14.99, "non_torch": 0.63, "activation": 3.75, "graphs": 0.47, "kv_pool": 51.12,
    }  # fmt: skip
    assert {figure.rank for figure in log.figures if figure.counter == "weights"} == {"Worker_TP0 pid=57", "Worker_TP1 pid=58"}
    assert count(VLLM_V1, "kv_tokens") == 418_832
    told = {one.name: one.value for one in log.told}
    assert told["version"] == "0.11.2"
    assert (told["model"], told["tensor_parallel_size"], told["max_model_len"]) == ("org/some-8b", "2", "16000")
    assert "kv_cache_dtype" not in told  # "auto" says nothing


def test_vllm_0_29_counts_weights_and_non_torch_together() -> None:
    text = "Actual usage is 10.29 GiB for consumed memory (weights + non-torch), 0.27 GiB for peak activation, and 0.78 GiB for CUDAGraph memory."
    assert amounts(read_log(text)) == {"consumed": 10.29, "activation": 0.27, "graphs": 0.78}


def test_vllm_does_not_start() -> None:
    needed = refusal(
        "(EngineCore_DP0 pid=18799) ERROR 10-08 20:33:48 [core.py:708] ValueError: To serve at least one request with the models's max "
        "seq len (40960), (5.62 GiB KV cache is needed, which is larger than the available KV cache memory (4.50 GiB).\nBased on the "
        "available memory, the estimated maximum model length is 32,768. Try increasing `gpu_memory_utilization`"
    )
    assert (needed.kind, needed.wanted_tokens, needed.held_tokens) == ("longest", 40960, 32768)
    assert needed.needed == pytest.approx(5.62 * GIB)
    assert needed.available == 4.5 * GIB
    assert needed.rank == "EngineCore_DP0 pid=18799"
    bare = refusal("To serve at least one request with the model's max seq len (8192), 2.0 GiB KV cache is needed ...")
    assert (bare.needed, bare.available) == (2 * GIB, None)
    old = refusal(
        "ValueError: The model's max seq len (131072) is larger than the maximum number of tokens that can be stored in KV cache (93760)."
    )
    assert (old.kind, old.wanted_tokens, old.held_tokens) == ("longest", 131072, 93760)
    none = refusal("ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization`")
    assert (none.kind, none.engine) == ("no-blocks", "vLLM")
    full = refusal(
        "ValueError: Free memory on device cuda:0 (3.25/23.50 GiB) on startup is less than desired GPU memory utilization (0.96, "
        "22.56 GiB). Decrease GPU memory utilization or reduce GPU memory used by other processes."
    )
    assert (full.kind, full.available, full.share) == ("startup", 3.25 * GIB, 0.96)
    assert (full.capacity, full.needed) == (23.5 * GIB, 22.56 * GIB)
    states = refusal("ValueError: max_num_seqs (256) exceeds available Mamba cache blocks (60).")
    assert (states.kind, states.wanted_tokens, states.held_tokens) == ("states", 256, 60)


SGLANG = """\
[2026-01-02 03:04:05] server_args=ServerArgs(model_path='org/some-8b', tp_size=2, mem_fraction_static=0.85, context_length=None)
[2026-01-02 03:04:05 TP0] Init torch distributed ends. elapsed=0.27 s, mem usage=0.09 GB
[2026-01-02 03:04:06 TP0] Load weight begin. avail mem=78.50 GB
[2026-01-02 03:04:07 TP0] Load weight end. elapsed=1.97 s, type=Qwen3ForCausalLM, dtype=torch.bfloat16, avail mem=63.22 GB, mem usage=15.28 GB.
[2026-01-02 03:04:08 TP0] KV Cache is allocated. #tokens: 392896, K size: 26.50 GB, V size: 26.50 GB
[2026-01-02 03:04:09 TP0] Capture cuda graph end. Time elapsed: 8.04 s. mem usage=0.80 GB. avail mem=9.30 GB.
[2026-01-02 03:04:09 TP0] max_total_num_tokens=392896, chunked_prefill_size=8192, max_prefill_tokens=16384, max_running_requests=2048, context_len=40960, available_gpu_mem=9.30 GB
"""


def test_sglang() -> None:
    log = read_log(SGLANG)
    assert log.engine == "SGLang"
    assert amounts(log) == {"weights": 15.28, "non_torch": 0.09, "graphs": 0.8, "kv_pool": 53.0}
    assert (count(SGLANG, "kv_tokens"), count(SGLANG, "longest_tokens")) == (392896, 40960)
    assert {figure.rank for figure in log.figures} == {"TP0"}
    assert [(one.name, one.value) for one in log.told] == [
        ("model", "org/some-8b"), ("tensor_parallel_size", "2"), ("memory_share", "0.85"),
    ]  # fmt: skip
    latent = "KV Cache is allocated. dtype: torch.bfloat16, #tokens: 76416, KV size: 5.01 GB"
    assert one(latent, "kv_pool", "now").bytes == pytest.approx(5.01 * GIB)
    assert count(latent, "kv_tokens") == 76416


def test_sglang_does_not_start() -> None:
    small = refusal(
        "RuntimeError: Not enough memory. Please try to increase --mem-fraction-static. Current value: mem_fraction_static=0.8"
    )
    assert (small.kind, small.engine, small.share) == ("no-blocks", "SGLang", 0.8)
    weights = refusal(
        "ValueError: Loaded weights leave no GPU memory for the KV cache under --mem-fraction-static=0.85. Raise --mem-fraction-static "
        "above 0.913 (minimum viable = 1 - available/pre = 0.9127). If using speculative decoding, draft weights are now counted."
    )
    assert (weights.kind, weights.share, weights.least_share) == ("weights", 0.85, 0.9127)


def test_other_engines() -> None:
    llama = (
        "load_tensors:        CUDA0 model buffer size =  4095.05 MiB\nload_tensors:   CPU_Mapped model buffer size =  9000.00 MiB\n"
        "llama_kv_cache:      CUDA0 KV buffer size =   512.00 MiB\nllama_context:      CUDA0 compute buffer size =   296.00 MiB\n"
        "ggml_backend_cuda_buffer_type_alloc_buffer: allocating 12345.50 MiB on device 1: cudaMalloc failed: out of memory\n"
    )
    log = read_log(llama)
    assert amounts(log) == {"weights": round(4095.05 / 1024, 4), "activation": round(296 / 1024, 4), "kv_pool": 0.5}
    assert one(llama, "host", "now").bytes == 9000 * MIB
    assert (log.ooms[0].tried, log.ooms[0].gpu) == (12345.5 * MIB, 1)
    trt = "[TensorRT-LLM][INFO] [MemUsageChange] Allocated 64.15 GiB for max tokens in paged KV cache (525,376)."
    assert one(trt, "kv_pool", "now").bytes == pytest.approx(64.15 * GIB)
    assert count(trt, "kv_tokens") == 525_376


# -- training frameworks ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "source", "expected"),
    [
        ("[titan] \x1b[31mstep: 10  \x1b[32mloss:  4.1  \x1b[36mmemory: 42.27GiB(53.4%)  \x1b[34mtps: 1,234  \x1b[36mtflops: 9.50  \x1b[35mmfu: 45.67%\x1b[39m", "torchtitan", {"reserved": 42.27 * GIB}),
        ("{'loss': 1.2, 'memory/max_active (GiB)': 12.5, 'memory/max_allocated (GiB)': 12.25, 'memory/device_reserved (GiB)': 14.0}", "axolotl", {"active": 12.5 * GIB, "allocated": 12.25 * GIB, "reserved": 14 * GIB}),
        ("[2026-01-02 03:04:05,678] [DEBUG] [axolotl.utils.bench:120] [PID:9] cuda memory active: 12.500GB (+12.250GB allocated, +14.000GB reserved)", "axolotl", {"active": 12.5 * GIB, "allocated": 12.25 * GIB, "reserved": 14 * GIB}),
        ("[Rank 0] (after 2 iterations) memory (MB) | allocated: 1234.56 | max allocated: 2345.5 | reserved: 3000.0 | max reserved: 3456.0", "Megatron", {"allocated": 2345.5 * MIB, "reserved": 3456 * MIB}),
        ("[Rank 3] (after 2 iterations) memory (MB) | allocated: 1.5 | max allocated: 2.5 | reserved: 3.0 | max reserved: 4.0 | total device memory used: 9.0", "Megatron", {"allocated": 2.5 * MIB, "reserved": 4 * MIB}),
        ("  init_mem_gpu_alloc_delta = 1000MB\n  train_mem_gpu_alloc_delta = 2000MB\n  train_mem_gpu_peaked_delta = 3000MB\n", "transformers", {"allocated": 6000 * MIB}),
        ("{'loss': 1.2, 'memory(GiB)': 52.5, 'train_speed(iter/s)': 0.1}", "ms-swift", {"reserved": 52.5 * GIB}),
        ("Step 3 | loss:1.5 lr:2e-05 tokens_per_second_per_gpu:2100.5 peak_memory_active:24.5 peak_memory_alloc:24.25 peak_memory_reserved:26.0", "torchtune", {"active": 24.5 * GIB, "allocated": 24.25 * GIB, "reserved": 26 * GIB}),
        ("Memory stats after model init:\n\tGPU peak memory allocation: 16.00 GB\n\tGPU peak memory reserved: 17.00 GiB", "torchtune", {"allocated": 16e9, "reserved": 17 * GIB}),
        (" Memory usage: 1234.56MiB. Peak allocated 2345.50MiB. Peak reserved: 2567.50MiB", "nanotron", {"allocated": 2345.5 * MIB, "reserved": 2567.5 * MIB}),
        ("Memory used: 21.30 GB", "LitGPT", {"allocated": 21.3e9}),
        ("Max CUDA memory allocated was 21 GB\nMax CUDA memory reserved was 24 GB\n", "llama-cookbook", {"allocated": 21.5 * GIB, "reserved": 24.5 * GIB}),
        ("step:3 - perf/max_memory_allocated_gb:55.5 - perf/max_memory_reserved_gb:60.25", "verl", {"allocated": 55.5 * GIB, "reserved": 60.25 * GIB}),
        ("step 9 | epoch 0 | loss 1.2 | lr 1.00e-05 | mem 73.00 GiB | tps 123.00", "NeMo Automodel", {"allocated": 73 * GIB}),
        ("Peak reserved memory = 7.125 GB.", "unsloth", {"reserved": 7.125 * GIB}),
        ("GPU Total Peak Memory consumed during the train (max): 12345", "PEFT", {"allocated": 12345 * MIB}),
    ],
)  # fmt: skip
def test_a_frameworks_lines(text: str, source: str, expected: dict[str, float]) -> None:
    log = read_log(text)
    found = {figure.counter: figure.bytes for figure in log.figures if figure.moment == "peak"}
    assert found == pytest.approx(expected)
    assert {figure.source for figure in log.figures} == {source}
    assert not log.died


def test_deepspeed_says_where_it_looked() -> None:
    text = (
        "[2026-01-02 03:04:05,678] [INFO] [utils.py:785:see_memory_usage] Engine after forward\n"
        "[2026-01-02 03:04:05,679] [INFO] [utils.py:786:see_memory_usage] MA 12.25 GB         Max_MA 14.5 GB         CA 15.0 GB         Max_CA 15 GB \n"
        "[2026-01-02 03:04:05,679] [INFO] [utils.py:793:see_memory_usage] CPU Virtual Memory:  used = 25.0 GB, percent = 5.0%\n"
    )
    found = one(text, "reserved")
    assert (found.bytes, found.within, found.label, found.line) == (15 * GIB, 0.5 * GIB, "Engine after forward", 2)
    assert one(text, "allocated").bytes == 14.5 * GIB
    assert one(text, "allocated", "now").bytes == 12.25 * GIB


def test_of_lines_that_repeat_the_highest_is_kept() -> None:
    text = "".join(
        f"step: {i}  memory: {40 + i % 3}.00GiB(50.0%)  tps: {1000 + i}  tflops: 1.0  mfu: 40.00%\n" for i in range(100)
    )
    found = one(text, "reserved")
    assert (found.bytes, found.line, found.times) == (42 * GIB, 3, 100)
    assert count(text, "tokens_per_s_per_gpu") == 1099


def test_speeds() -> None:
    text = " iteration 10/ 100 | elapsed time per iteration (ms): 1234.5 | throughput per GPU (TFLOP/s/GPU): 412.3 |"
    assert (count(text, "step_ms"), count(text, "tflops_per_gpu")) == (1234.5, 412.3)


# -- devices and hosts --------------------------------------------------------------------------------------


def test_nvidia_smi() -> None:
    text = (
        "|  0%   45C    P8    20W / 350W |  70000MiB / 81559MiB |      0%      Default |\n"
        "|   1  N/A  N/A            123      C   python3                             69990MiB |\n"
        "|    0   N/A  N/A      1234      C   /usr/bin/python3 -m vllm        500MiB |\n"
    )
    log = read_log(text)
    assert [(f.counter, f.bytes / MIB, f.line) for f in log.figures] == [
        ("device", 70000, 1), ("capacity", 81559, 1), ("process", 69990, 2), ("process", 500, 3),
    ]  # fmt: skip
    assert log.figures[2].label == "GPU 1, pid 123, python3"


@pytest.mark.parametrize(
    ("text", "kind", "tried"),
    [
        ("RuntimeError: [enforce fail at alloc_cpu.cpp:114] err == 0. DefaultCPUAllocator: can't allocate memory: you tried to allocate 1073741824 bytes. Error code 12", "allocation", GIB),
        ("numpy.core._exceptions.MemoryError: Unable to allocate 12.5 GiB for an array with shape (1,)", "allocation", 12.5 * GIB),
        ("slurmstepd: error: Detected 1 oom_kill event in StepId=1.batch", "killed", None),
        ("Out of memory: Killed process 99 (python) total-vm:1kB", "killed", None),
        ("  exitcode  : -9 (pid: 1234)", "killed", None),
        ("RuntimeError: DataLoader worker (pid 5) is killed by signal: Bus error. It is possible that dataloader's workers are out of shared memory.", "shared-memory", None),
    ],
)  # fmt: skip
def test_hosts_fail_too(text: str, kind: str, tried: float | None) -> None:
    found = read_log(text).hosts
    assert [(host.kind, host.tried) for host in found] == [(kind, tried)]


# -- any text -----------------------------------------------------------------------------------------------


def test_a_log_from_a_file_a_stream_and_powershell(tmp_path: Path) -> None:
    path = tmp_path / "run.log"
    path.write_bytes(b"\xff\xfe" + f"x\r\n{NEW}\r\n".encode("utf-16-le"))
    text, name = read_log_text(str(path))
    assert read_log(text, name).ooms[0].line == 2
    assert name == str(path)
    assert read_log_text(io.BytesIO(b"\0\xff\n" + NEW.encode()))[1] == "standard input"
    with pytest.raises(ConfigError, match="cannot be read"):
        read_log_text(str(tmp_path / "none"))
    with pytest.raises(ConfigError, match="cannot be read"):
        read_log_text(str(tmp_path))


def test_of_a_large_log_the_ends_are_read_and_lines_keep_their_numbers() -> None:
    filler = b"x" * 99 + b"\n"
    lines = (HEAD + TAIL) // 100 + 200_000
    text, _ = read_log_text(io.BytesIO(VLLM_V0.encode() + filler * lines + NEW.encode() + b"\n"))
    assert len(text) < HEAD + TAIL + 3 * 2**20
    log = read_log(text)
    assert log.ooms[0].line == lines + 7
    assert log.lines == lines + 7
    assert log.figure("activation") is not None
    assert "were not read" in log.notes[0]


@settings(max_examples=200, deadline=None)
@given(st.text(max_size=300))
def test_any_text_is_read(text: str) -> None:
    read_log(text)


@settings(max_examples=300, deadline=None)
@given(
    st.lists(
        st.sampled_from([NEW, OLD, VLLM_V0, VLLM_V1, SGLANG, "".join(rule.key + " 1.5 GiB, " for rule in RULES)]), max_size=3
    ),
    st.randoms(),
)
def test_any_damage_to_real_lines_is_read(parts: list[str], chance: random.Random) -> None:
    letters = list("\n".join(parts))
    for _ in range(min(30, len(letters))):
        letters[chance.randrange(len(letters))] = chance.choice(["", "9", ".", ",", "\n", "-", "(", "\x00", "e", "é"])
    read_log("".join(letters))


def test_time_is_linear_in_a_hostile_log() -> None:
    size = 2**18
    fills = [
        "\n",
        " ",
        "1",
        "out of memory. Tried to allocate 2 GiB ",
        "memory: 1.5GiB(1%) ",
        "MA 1 GB Max_MA ",
        "max seq len (1), ",
        NEW,
    ]
    start = time.perf_counter()
    for fill in fills:
        read_log((fill * size)[:size])
    assert time.perf_counter() - start < 8  # 2 MiB; about 0.6 s here
