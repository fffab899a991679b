"""Networks of MMSegmentation: what their names say, losses per pixel, and what older PyTorch kept."""

from __future__ import annotations

import pytest

from foretell.arch.readers import read_config
from foretell.cost.training_memory import StageMemory, training_memory
from foretell.errors import InputError
from foretell.recipe.parallelism import Parallelism
from foretell.recipe.profiles import profile
from foretell.recipe.resolve import resolve
from foretell.recipe.training import TrainingRecipe

PIXELS = 512 * 1024


def network(name: str, image: tuple[int, int] = (512, 1024)) -> dict[str, object]:
    return {"model_type": "mmseg", "name": name, "image_size": list(image)}


def memory(name: str, date: str = "") -> StageMemory:
    recipe = TrainingRecipe(micro_batch=2, seq_len=1, framework="mmseg", precision="fp32", optimizer="sgdm", date=date)
    return training_memory(read_config(network(name)), resolve(recipe, Parallelism(dp=4), profile("mmseg")))[0]


@pytest.mark.parametrize(
    ("name", "millions"),
    # both heads included; torchvision's ResNet-50 and -101 without their classifiers have 23.5 and 42.5 million
    [("FCN R-50-D8", 49.5), ("FCN R-101-D8", 68.5), ("FCN R-18-D8", 12.8), ("U-Net S5-D16 + FCN", 29.1)],
)
def test_parameters(name: str, millions: float) -> None:
    assert read_config(network(name)).parameters / 1e6 == pytest.approx(millions, abs=0.05)


def test_an_unknown_name_is_refused() -> None:
    with pytest.raises(InputError, match="FCN R-"):
        read_config(network("PSPNet R-50-D8"))


def test_each_head_keeps_log_probabilities_of_every_pixel() -> None:
    scores = 2 * PIXELS * 19 * 4.0
    now, before = memory("FCN R-50-D8"), memory("FCN R-50-D8", "2020")
    assert now.phases["loss"].terms["logits"] == pytest.approx(2 * scores)
    # before PyTorch 1.11 the resized scores were kept as well
    assert before.phases["loss"].terms["logits"] == pytest.approx(4 * scores)


def test_gradients_stay_allocated_before_pytorch_2() -> None:
    parameters = read_config(network("FCN R-50-D8")).parameters
    assert memory("FCN R-50-D8", "2020").states - memory("FCN R-50-D8").states == pytest.approx(4 * parameters)


def test_output_stride_sixteen_halves_the_last_stages() -> None:
    assert memory("FCN R-50-D16").peak.bytes < 0.7 * memory("FCN R-50-D8").peak.bytes


def test_a_vit_keeps_scores_twice_before_pytorch_1_11() -> None:
    tokens, heads, layers = 1025, 12, 12
    config = {"model_type": "mmseg", "name": "UPerNet ViT-B + MLN", "image_size": [512, 512]}

    def activations(date: str) -> float:
        recipe = TrainingRecipe(micro_batch=2, seq_len=1, framework="mmseg", precision="fp32", date=date)
        run = resolve(recipe, Parallelism(), profile("mmseg"))
        return float(training_memory(read_config(config), run)[0].phases["loss"].terms["activations"])

    assert activations("2020") - activations("") == pytest.approx(2 * layers * heads * tokens**2 * 4.0, rel=0.001)
