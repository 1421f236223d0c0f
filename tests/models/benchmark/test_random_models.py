"""Models of published shapes, without weights."""

from pathlib import Path

import pytest

from evalsuite.foundation import ConfigError
from evalsuite.models.benchmark.random_models import (
    build,
    parse_mixers,
    random_models,
    read_shape,
    shape_names,
)
from evalsuite.models.decoder.cost import ModelCost

PARAMETERS = {
    "Llama-3.1-8B": 8030.3,
    "Qwen2.5-7B": 7615.6,
    "Qwen3-0.6B": 596.0,
    "Qwen3-1.7B": 1720.6,
    "Qwen3-4B": 4022.5,
    "Qwen3-8B": 8190.7,
    "SmolLM2-1.7B": 1711.4,
    "SmolLM2-135M": 134.5,
}
"""Millions, as published with the weights."""


@pytest.mark.parametrize("name", PARAMETERS)
def test_shapes_have_the_published_size(name: str) -> None:
    label, config = read_shape(name.lower())
    assert label == name
    assert ModelCost.of(config).num_params / 1e6 == pytest.approx(PARAMETERS[name], abs=0.05)


def test_every_shape_is_checked() -> None:
    assert shape_names() == sorted(PARAMETERS)


def test_hybrids_keep_every_nth_layer() -> None:
    assert parse_mixers("gla+softmax/4", 8) == [*["gla"] * 3, "softmax"] * 2
    assert parse_mixers("gla+softmax/3", 4) == ["gla", "gla", "softmax", "gla"]
    assert parse_mixers("gla", 2) == ["gla", "gla"]


@pytest.mark.parametrize(
    ("text", "message"),
    [("gal", "no mixer.*'gla'"), ("gla+softmax/0", "no mixer"), ("gal+softmax/4", "no mixer.*'gla'")],
)
def test_unknown_mixers_are_refused(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse_mixers(text, 4)


def test_the_teacher_is_first_and_every_model_has_an_identity() -> None:
    models = random_models("SmolLM2-135M", ["gla", "softmax", "gla+softmax/4", "gla"])
    assert [each.label for each in models] == [
        "SmolLM2-135M, teacher",
        "SmolLM2-135M, gla",
        "SmolLM2-135M, gla+softmax/4",
    ]
    assert len({each.weights_id for each in models}) == 3
    assert {each.teacher for each in models[1:]} == {models[0].weights_id}
    assert random_models("SmolLM2-135M", [])[0].weights_id == models[0].weights_id


@pytest.mark.parametrize(
    ("like", "message"),
    [("SmolLM2-136M", "no shape.*SmolLM2-135M"), ("missing/config.json", "does not exist")],
)
def test_unknown_shapes_are_refused(like: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        read_shape(like)


def test_an_unknown_architecture_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "lama"}')
    with pytest.raises(ConfigError, match=r"config.json: 'model_type' = 'lama'"):
        read_shape(str(tmp_path))


def test_weights_are_the_same_every_time(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(
        '{"model_type": "llama", "hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 2, '
        '"num_attention_heads": 2, "vocab_size": 50}'
    )
    for model in random_models(str(tmp_path), ["retnet"]):
        first, second = (build(model, device="cpu", dtype="bfloat16").model for _ in range(2))
        for name, value in first.state_dict().items():
            assert value.equal(second.state_dict()[name]), name
        assert first.dtype == second.dtype == first.lm_head.weight.dtype
