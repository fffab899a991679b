"""Shell scripts are parsed, never run."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from foretell.errors import ConfigError
from foretell.readers._arguments import POSITIONAL, arguments
from foretell.readers._launch import launchers
from foretell.readers._shell import parse_shell

SCRIPT = """#!/bin/bash
#SBATCH --nodes=4            # a comment
#SBATCH --gres=gpu:a100:8
export PYTORCH_CUDA_ALLOC_CONF="expandable_segments:True"
GPUS=8 ; TP=2
NNODES=${SLURM_NNODES:-1}
MODEL="org/a model"
ARGS=(
  --tensor-model-parallel-size ${TP}   # degrees
  --num-layers 32
  --swiglu
)
ARGS+=(--world $((GPUS*NNODES)))
MORE="--lr 2e-5 \\
   --bf16"
MORE="$MORE --x 3"
LAUNCH="--nproc_per_node $GPUS --nnodes $NNODES --master_addr $(hostname)"
if [ -z "$X" ]; then echo hi; fi
srun -N 4 torchrun $LAUNCH pretrain_gpt.py "${ARGS[@]}" $MORE --model "$MODEL" \\
   --y=4 >log 2>&1
"""


def test_a_script_with_arrays_variables_and_a_scheduler() -> None:
    (made,) = launchers(SCRIPT, "a.sh")
    found = arguments(made, made.words, frozenset(("swiglu", "bf16")))
    assert found.root.plain() == {
        "tensor_model_parallel_size": 2,
        "num_layers": 32,
        "swiglu": True,
        "world": 32,
        "lr": 2e-5,
        "bf16": True,
        "x": 3,
        "model": "org/a model",
        "y": 4,
    }
    assert made.name == "pretrain_gpt.py"
    assert made.processes is not None
    assert made.processes[:2] == (32, 5)  # where GPUS is set
    assert made.per_node is not None
    assert made.per_node[0] == 8
    assert made.environment["PYTORCH_CUDA_ALLOC_CONF"].text == "expandable_segments:True"


def test_values_keep_the_place_where_they_were_written() -> None:
    (made,) = launchers(SCRIPT, "a.sh")
    found = arguments(made, made.words, frozenset(("swiglu", "bf16")))
    for key, line, text in (
        ("tensor_model_parallel_size", 5, "2"),
        ("num_layers", 10, "32"),
        ("model", 7, '"org/a model"'),
        ("y", 20, "4"),
    ):
        node = found.at(key)
        assert node is not None
        assert (node.line, SCRIPT[node.start : node.end]) == (line, text)


@pytest.mark.parametrize(
    ("line", "program", "each", "every"),
    [
        ("torchrun --nproc-per-node=8 --nnodes=2 a.py --x 1", "a.py", 8, 16),
        ("torchrun --standalone --nproc_per_node 4 -m pkg.train --x 1", "pkg.train", 4, 4),
        ("python -m torch.distributed.run --nproc_per_node 2 a.py", "a.py", 2, 2),
        ("python3 -u -m torch.distributed.launch --nproc_per_node=2 a.py", "a.py", 2, 2),
        ("accelerate launch --num_processes 16 --num_machines 2 --multi_gpu a.py", "a.py", 8, 16),
        ("deepspeed --num_gpus 8 --num_nodes 2 a.py --deepspeed ds.json", "a.py", 8, 16),
        ("deepspeed --include localhost:0,1,2 a.py", "a.py", 3, 3),
        ("CUDA_VISIBLE_DEVICES=0,1 python a.py", "a.py", 2, 2),
        ("env A=1 CUDA_VISIBLE_DEVICES=3 python a.py", "a.py", 1, 1),
        ("mpirun -np 8 --allow-run-as-root python a.py", "a.py", None, 8),
        ("srun --ntasks-per-node=4 -N2 python a.py", "a.py", 4, 8),
        ("nohup uv run vllm serve m -tp 2 &", "vllm", None, None),
        ("cd /x && python -m vllm.entrypoints.openai.api_server --model m", "vllm.entrypoints.openai.api_server", None, None),
        ("composer -n 8 train.py a.yaml b=1", "train.py", 8, 8),
    ],
)  # fmt: skip
def test_launch_lines(line: str, program: str, each: int | None, every: int | None) -> None:
    (made,) = launchers(line, "command line")
    assert made.program == program
    assert (made.per_node and made.per_node[0]) == each
    assert (made.processes and made.processes[0]) == every


def test_what_only_a_shell_knows_stays_text_and_is_never_run(tmp_path: object) -> None:
    text = f"torchrun --nproc_per_node $N a.py --x $(touch {tmp_path}/pwned) --y `id` --z ${{HOME}}"
    (made,) = launchers(text, "a.sh")
    assert made.processes is None
    assert "only the machine knows" in made.notes[0]
    found = arguments(made, made.words).root.plain()
    assert found["x"].startswith("$(touch")
    assert found["y"] == "`id`"
    assert found["z"] == "${HOME}"
    import os

    assert not os.listdir(str(tmp_path))  # noqa: PTH208


def test_flags_lists_and_pairs() -> None:
    line = "python a.py pos.yaml --targets a b c --flag --neg -1 --json '{\"a\": 1}' opt.x=3 +new.y=z --t=5 --t 6"
    (made,) = launchers(line, "command line")
    assert arguments(made, made.words).root.plain() == {
        "targets": ["a", "b", "c"],
        "flag": True,
        "neg": -1,
        "json": '{"a": 1}',
        "opt.x": 3,
        "new.y": "z",
        "t": 6,
        POSITIONAL: ["pos.yaml"],
    }
    one = arguments(made, made.words, many=frozenset()).root.plain()
    assert one["targets"] == "a"
    assert one[POSITIONAL] == ["pos.yaml", "b", "c"]


@pytest.mark.parametrize("text", ["a 'b", 'a "b', "A=(b c"])
def test_what_is_no_shell_is_refused_with_its_line(text: str) -> None:
    with pytest.raises(ConfigError, match=r"x\.sh:2"):
        parse_shell("\n" + text, "x.sh")


def test_several_programs_are_said() -> None:
    from foretell.readers.read import read_texts

    with pytest.raises(ConfigError, match="starts no run"):
        read_texts([("a.sh", "echo hi\nls\n")])


@settings(max_examples=300, deadline=1000)
@given(st.text(alphabet="ab$\"'`\\\n (){}[]=;|&<>#@*-+:1~", max_size=120))
def test_any_text_is_parsed_or_refused(text: str) -> None:
    try:
        script = parse_shell(text, "x.sh")
    except ConfigError:
        return
    for command in script.commands:
        for word in command.words:
            assert 0 <= word.start <= word.end <= len(text)
