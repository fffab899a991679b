"""Shell scripts are parsed, never run."""

from __future__ import annotations

import contextlib
import time

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


@pytest.mark.parametrize(
    ("asked", "line", "each", "every", "said"),
    [
        ("--nodes=4\n#SBATCH --ntasks=4", "srun torchrun --nnodes 4 --nproc_per_node 8 -m torchtitan.train", 8, 32,
         "--nproc_per_node 8, --nnodes 4"),
        ("--ntasks=4", "mpirun -np 4 torchrun --nnodes 4 --nproc_per_node 8 a.py", 8, 32, "--nproc_per_node 8, --nnodes 4"),
        ("--ntasks-per-node=1\n#SBATCH --gres=gpu:h100:4", "srun python a.py", 4, 4, "--gres=gpu:h100:4"),
        ("--ntasks-per-node=1\n#SBATCH --gpus-per-node=a100:8 --nodes=2", "srun torchrun a.py", 8, 16,
         "--gpus-per-node=a100:8, --nodes 2"),
        ("--ntasks-per-node=1 --nodes=2", "srun torchrun a.py", None, None, ""),
        ("--ntasks-per-node=8", "srun vllm serve m", None, None, ""),
        ("--ntasks-per-node=8", "srun python -m sglang.launch_server --model m", None, None, ""),
        ("--ntasks=4 --nodes=4", "srun python a.py", None, None, ""),
        ("--ntasks-per-node=8 --nodes=2", "srun python a.py", 8, 16, "--ntasks-per-node 8, --nodes 2"),
        ("--gres=nvme:1,gpu:8(S:0-1)", "python a.py", 8, 8, "--gres=nvme:1,gpu:8(S:0-1)"),
        ("--gpus=h100:16", "srun python a.py", None, 16, "--gpus=h100:16"),
        ("--ntasks-per-node=4 --gpus-per-task=1", "srun python a.py", 4, 4, "--gpus-per-task=1, --ntasks-per-node 4"),
        ("--nodes=2 --gres=gpu:8", "srun accelerate launch --num_processes 16 a.py", 8, 16, "--num_processes 16"),
    ],
)  # fmt: skip
def test_tasks_of_a_scheduler_are_not_gpus(asked: str, line: str, each: int | None, every: int | None, said: str) -> None:
    (made,) = launchers(f"#!/bin/bash\n#SBATCH {asked}\n{line}\n", "a.sh")
    assert (made.per_node and made.per_node[0]) == each
    assert (made.processes and made.processes[0]) == every
    assert (made.processes[2] if made.processes else "") == said


@pytest.mark.parametrize(
    ("asked", "kind"),
    [("--gres=gpu:h100:4", "h100"), ("--gpus-per-node=a100:8", "a100"), ("--gpus=l40s:2", "l40s"), ("--gres=gpu:4", None),
     ("--gres=gpu", None), ("--gpus-per-node=8", None), ("--gpus-per-node=a100:4,v100:4", None), ("--gres=gpu:$N", None)],
)  # fmt: skip
def test_a_scheduler_names_the_gpu(asked: str, kind: str | None) -> None:
    (made,) = launchers(f"#!/bin/bash\n#SBATCH --ntasks-per-node=1\n#SBATCH {asked}\nsrun python a.py\n", "a.sh")
    assert made.gpu == (None if kind is None else (kind, 3, asked))


def test_the_gpu_is_taken_where_the_catalog_has_it() -> None:
    from foretell.readers.read import read_texts

    text = "#!/bin/bash\n#SBATCH --gres=gpu:{}:4\nsrun torchrun --nproc_per_node 4 run_clm.py --model_name_or_path gpt2\n"
    made = read_texts([("a.sh", text.format("h100"))])
    assert (made.settings["gpu"].value, made.settings["gpu"].said) == ("h100", "--gres=gpu:h100:4")
    assert made.settings["gpu"].origin.line == 2
    for name in ("magic9", "x.yaml"):
        other = read_texts([("a.sh", text.format(name))])
        assert "gpu" not in other.settings
        assert any("names a GPU that is not known here" in note for note in other.notes)


STRINGS = """TP=2
GPT_ARGS="
    --num-layers 24
    --hidden-size 1024 \\
    --tp $TP --seq ${SEQ:-2048} --n $(nproc  --all)
    --lr=1e-4 --glued ${TP}x
"
MORE='--x 3
  --y 4'
GPT_ARGS+=" --z 5"
torchrun a.py $GPT_ARGS \\
  ${MORE} --mine="7"
"""


def test_words_of_strings_over_several_lines_have_their_own_places() -> None:
    (made,) = launchers(STRINGS, "a.sh")
    root = arguments(made, made.words).root
    assert isinstance(root.value, dict)
    lines = {"num_layers": 3, "hidden_size": 4, "tp": 1, "seq": 5, "lr": 6, "x": 8, "y": 9, "z": 10, "mine": 12}
    assert {key: root.value[key].line for key in lines} == lines
    for key in lines:
        node = root.value[key]
        assert STRINGS[node.start : node.end] == node.raw
    for key, text in (("n", "$(nproc  --all)"), ("glued", "2x")):  # no place of their own
        node = root.value[key]
        assert (node.raw, node.start) == (text, node.end)


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
            if word.start < word.end and not word.quoted:
                assert text[word.start : word.end] == word.text


@pytest.mark.parametrize(
    "text",
    [
        "#!/bin/bash\n" + "#SBATCH --nodes=2 --x\n" * 4000 + "vllm serve m\n",
        'X="' + "x" * 60_000 + '"\nvllm serve "' + "$X" * 20_000 + '"\n',
        "A=(" + "x " * 1000 + ")\nvllm serve " + "${A[@]} " * 1000 + "\n",
        "A=1\n" * 30_000,
    ],
)
def test_scripts_that_swell_are_refused_or_read_quickly(text: str) -> None:
    start = time.perf_counter()
    with contextlib.suppress(ConfigError):
        launchers(text, "a.sh")
    assert time.perf_counter() - start < 2.0


@pytest.mark.parametrize(
    ("line", "program"),
    [
        ("python -W ignore -X dev train.py --a 1", "train.py"),
        ("timeout 10m vllm serve m", "vllm"),
    ],
)
def test_what_stands_in_front_of_a_program(line: str, program: str) -> None:
    (made,) = launchers(line, "command line")
    assert made.program == program


def test_a_count_in_other_digits_is_refused() -> None:
    with pytest.raises(ConfigError, match="nproc_per_node"):
        launchers("torchrun --nproc_per_node=\u00b2 a.py", "a.sh")
