"""torchtitan's files, flags and known configurations."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from check_support import asked, round_trip
from foretell.arch import load_model
from foretell.errors import ConfigError
from foretell.readers.read import COMMAND, read_texts
from foretell.readers.torchtitan._models import _CATALOG, CONFIGS, model_of

TOML = """\
[job]
dump_folder = "./out"

[model]
name = "llama3"
flavor = "8B"
hf_assets_path = "./assets"
converters = []

[optimizer]
name = "AdamW"
lr = 3e-4

[training]
local_batch_size = 2
seq_len = 8192
steps = 1000
dataset = "c4"

[parallelism]
data_parallel_replicate_degree = 1
data_parallel_shard_degree = -1
tensor_parallel_degree = 1
pipeline_parallel_degree = 1

[activation_checkpoint]
mode = "selective"
selective_ac_option = "op"

[compile]
enable = false
components = ["model", "loss"]

[quantize.linear.float8]
enable_fsdp_float8_all_gather = false
filter_fqns = ["output"]
"""


def reading(text: str, **changes: str) -> Any:
    """The reading of a text with lines changed: key=whole new value."""
    for key, value in changes.items():
        old = next(line for line in text.splitlines() if line.startswith(f"{key} ="))
        text = text.replace(old, f"{key} = {value}", 1)
    return read_texts([("run.toml", text)], family="torchtitan")


def values(made: Any) -> dict[str, Any]:
    return {name: setting.value for name, setting in made.settings.items()}


def test_a_file_with_its_lines() -> None:
    made = reading(TOML)
    assert made.model == "llama-3.1-8b"
    assert values(made) == {
        "micro_batch": 2,
        "grad_accum": 1,
        "seq_len": 8192,
        "precision": "bf16",
        "loss": "eager",
        "optimizer": "adamw",
        "optimizer_impl": "fused",
        "recompute": "selective",
        "recompute_scope": "op",
        "framework": "torchtitan",
        "zero": 3,
        "tp": 1,
        "pp": 1,
        "cp": 1,
        "ep": 1,
        "software_date": "2026-02",
    }
    assert str(made.settings["micro_batch"].origin) == "run.toml:15"
    assert "TOML" in str(made.settings["zero"].origin)
    assert (made.unmodelled, made.unknown) == ((), ())
    launch = asked(made, "h100", gpus="8")
    assert (launch.par.dp, launch.recipe.date) == (8, "2026-02")
    assert launch.forecast().total_bytes > 0


def test_the_batch() -> None:
    assert values(reading(TOML.replace("steps = 1000", "global_batch_size = 64")))["global_batch"] == 64
    pipe = reading(TOML, pipeline_parallel_degree="2", local_batch_size="8")
    found = values(pipe)
    assert (found["pp"], found["micro_batch"], found["grad_accum"], found["schedule"]) == (2, 1, 8, "1f1b")
    old = TOML.replace("local_batch_size = 2", "batch_size = 8")
    assert values(reading(old))["software_date"] == "2025-04"
    assert values(reading(old, pipeline_parallel_degree="4"))["micro_batch"] == 2
    new = TOML.replace(
        "local_batch_size = 2\nseq_len = 8192", "num_tokens_per_microbatch_per_dp_rank = 16384\nmax_context_length = 4096"
    )
    found = values(reading(new))
    assert (found["micro_batch"], found["seq_len"], found["software_date"]) == (4, 4096, "2026-08")


def test_parallelism() -> None:
    made = values(reading(TOML, data_parallel_replicate_degree="2", data_parallel_shard_degree="8", tensor_parallel_degree="4"))
    assert (made["hsdp_replicas"], made["gpus"], made["tp"]) == (2, 64, 4)
    copies = values(reading(TOML, data_parallel_replicate_degree="4", data_parallel_shard_degree="1"))
    assert (copies["zero"], copies["sharding"], copies["gpus"]) == (0, "ddp", 4)
    never = values(reading(TOML.replace("pipeline_parallel_degree = 1", 'fsdp_reshard_after_forward = "never"')))
    assert never["zero"] == 2
    stages = 'pipeline_parallel_degree = 2\npipeline_parallel_schedule = "Interleaved1F1B"'
    loop = reading(TOML.replace("pipeline_parallel_degree = 1", stages))
    assert (values(loop)["schedule"], values(loop)["vpp"]) == ("interleaved-1f1b", 2)
    assert asked(loop, "h100", gpus="16", grad_accum="8").forecast().total_bytes > 0


def test_activations_and_formats() -> None:
    assert values(reading(TOML, mode='"full"'))["recompute"] == "full"
    assert values(reading(TOML, selective_ac_option='"1"'))["recompute"] == "full"
    every = values(reading(TOML, selective_ac_option='"2"'))
    assert (every["recompute"], every["recompute_scope"], every["recompute_layers"]) == ("selective", "layer", 2)
    eight = values(reading(TOML, converters='["float8"]', enable_fsdp_float8_all_gather="true"))
    assert (eight["precision"], eight["fp8_recipe"]) == ("fp8", "tensorwise")
    assert values(reading(TOML, converters='["quantize.linear.mx"]'))["precision"] == "mxfp8"
    whole = values(reading(TOML.replace("steps = 1000", 'dtype = "bfloat16"')))
    assert whole["precision"] == "bf16-true"
    compiled = values(reading(TOML, enable="true"))
    assert (compiled["compile"], compiled["loss"]) == (True, "compiled")
    assert "compile" not in values(reading(TOML, enable="true", components='["loss"]'))
    budget = reading(TOML, mode='"memory_budget"')
    assert [(row.key, row.effect) for row in budget.unmodelled] == [("activation_checkpoint.mode", "both")]


def test_files_of_2024() -> None:
    text = """\
[model]
name = "llama3"
flavor = "70B"
norm_type = "rmsnorm"
[training]
batch_size = 16
seq_len = 8192
data_parallel_degree = -1
tensor_parallel_degree = 8
compile = false
[experimental]
pipeline_parallel_degree = 1
[activation_checkpoint]
mode = "full"
"""
    made = reading(text)
    found = values(made)
    assert (made.model, found["tp"], found["micro_batch"], found["software_date"]) == ("llama-3.1-70b", 8, 16, "2024-08")
    assert found["optimizer_impl"] == "foreach"
    assert made.unknown == ()


def test_unknown_unmodelled_and_bad_values() -> None:
    made = reading(TOML + '\n[fault_tolerance]\nenable = true\nprocess_group = "nccl"\n[mine]\nx = 1\n')
    assert [row.key for row in made.unknown] == ["mine.x"]
    assert [(row.key, row.effect) for row in made.unmodelled] == [("fault_tolerance.enable", "both")]
    for key, value in (
        ("local_batch_size", '"two"'),
        ("mode", '"some"'),
        ("selective_ac_option", '"x"'),
        ("tensor_parallel_degree", "0"),
    ):
        with pytest.raises(ConfigError, match=rf"{key}.*"):
            reading(TOML, **{key: value})
    other = reading(TOML, flavor='"9B"')
    assert "flavor 9B" in other.needs["model"]


def test_models() -> None:
    for name, flavors in _CATALOG.items():
        for flavor in flavors:
            assert load_model(model_of(name, flavor)).parameters > 0  # type: ignore[arg-type]
    assert load_model(model_of("llama3", "debugmodel")).architecture.layers == 6  # type: ignore[arg-type]
    assert load_model(model_of("llama4", "17bx16e_irope")).architecture.experts == 16  # type: ignore[arg-type]
    assert model_of("flux", "flux-dev") is None
    for config in CONFIGS.values():
        assert model_of(config.model, config.flavor) is not None


def test_commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run.toml").write_text(TOML)
    flags = "--training.local-batch-size 4 --compile.enable --parallelism.tensor_parallel_degree=2"
    command = f"torchrun --nproc_per_node 8 --nnodes 2 -m torchtitan.train --job.config_file run.toml {flags}"
    found = values(read_texts([(COMMAND, command)], family="torchtitan"))
    assert (found["gpus"], found["micro_batch"], found["compile"], found["tp"]) == (16, 4, True, 2)
    shell = "NGPU=4 CONFIG_FILE=run.toml ./run_train.sh --compile.no-enable"
    made = read_texts([(COMMAND, shell)], family="torchtitan")
    assert (values(made)["gpus"], made.unknown) == (4, ())
    with pytest.raises(ConfigError, match="is not here"):
        read_texts([(COMMAND, "./run_train.sh --job.config_file other.toml")], family="torchtitan")


def test_configurations_in_python() -> None:
    command = "torchrun --nproc_per_node 8 -m torchtitan.train --module llama3 --config llama3_8b --training.steps 10"
    made = read_texts([(COMMAND, command)], family="torchtitan")
    found = values(made)
    assert made.model == "llama-3.1-8b"
    assert (found["micro_batch"], found["seq_len"], found["recompute_scope"], found["loss"]) == (1, 8192, "op", "chunked")
    assert made.unknown == ()
    flags = "MODULE=llama3 CONFIG=llama3_70b ./run_train.sh --parallelism.tensor_parallel_degree 4"
    assert values(read_texts([(COMMAND, flags)], family="torchtitan"))["tp"] == 4
    with pytest.raises(ConfigError, match="Python, which is not executed"):
        read_texts([(COMMAND, command.replace("llama3_8b", "mine"))], family="torchtitan")
    for name in CONFIGS:
        one = read_texts([(COMMAND, f"NGPU=64 MODULE=x CONFIG={name} ./run_train.sh")], family="torchtitan")
        assert asked(one, "h100").recipe.framework == "torchtitan"


@pytest.mark.parametrize(
    "options",
    [
        {"micro_batch": "1"},
        {"seq_len": "4096"},
        {"recompute": "full"},
        {"recompute": "none"},
        {"tp": "2"},
        {"cp": "2"},
        {"zero": "2"},
        {"compile": True},
        {"hsdp_replicas": "2"},
        {"offload": "grads,optimizer,params"},
        {"precision": "bf16-true"},
    ],
)
def test_edits_read_back(options: dict[str, str | bool]) -> None:
    text = TOML.replace('"selective"\nselective_ac_option = "op"', '"none"' if options != {"recompute": "none"} else '"full"')
    text = text.replace('components = ["model", "loss"]\n', "")
    round_trip([("run.toml", text)], options, "torchtitan", gpus="8")


@pytest.mark.parametrize("option", ["op", "1", "2"])
def test_smaller_micro_batches_read_back(option: str) -> None:
    """The passes are those of a global batch, whatever is recomputed; files of before have none."""
    text = TOML.replace("shard_degree = -1", "shard_degree = 8").replace('"op"', f'"{option}"')
    made = round_trip([("run.toml", text)], {"micro_batch": "1", "grad_accum": "2"}, "torchtitan")
    assert values(made.reading)["global_batch"] == 16
    whole = text.replace("steps = 1000", "global_batch_size = 64")
    round_trip([("run.toml", whole)], {"micro_batch": "1", "grad_accum": "8"}, "torchtitan")
    assert reading(text.replace("local_batch_size", "batch_size")).spell("grad_accum", "2") is None
    assert reading(TOML).spell("grad_accum", "2") is None
    given = read_texts([("run.toml", TOML)], family="torchtitan", given={"gpus": "16"}).spell("grad_accum", "2")
    assert given is not None
    assert given[0].value == 32
    tokens = text.replace("local_batch_size = 2", "num_tokens_per_microbatch_per_dp_rank = 16384")
    assert reading(tokens).spell("micro_batch", "1") is None


def test_age_is_said_once() -> None:
    """What dates a file is a note, not part of every default."""
    made = reading(TOML.replace("[quantize.linear.float8]", "[float8]"))
    assert [note for note in made.notes if "8a2686c4a" in note] == list(made.notes)
    assert not any("8a2686c4a" in str(setting.origin) for setting in made.settings.values())
