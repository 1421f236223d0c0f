"""Models of published shapes, without weights."""

from pathlib import Path

import pytest

from evalsuite.foundation import ConfigError
from evalsuite.models.benchmark.random_models import (
    build,
    parse_student,
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


@pytest.mark.parametrize(
    ("text", "mixers", "options"),
    [
        ("gla+softmax/4", [*["gla"] * 3, "softmax"], {}),
        ("gla+softmax/3", ["gla", "gla", "softmax", "gla"], {}),
        ("gla", ["gla"] * 4, {}),
        ("kda:preset=gendistill", ["kda"] * 4, {"kda": {"preset": "gendistill"}}),
        (
            "gla:preset=native+softmax@0,3",
            ["softmax", "gla", "gla", "softmax"],
            {"gla": {"preset": "native"}},
        ),
    ],
)
def test_a_student_has_softmax_layers_and_a_preset(
    text: str, mixers: list[str], options: dict[str, dict[str, str]]
) -> None:
    assert parse_student(text, 4) == (mixers, options)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("gal", "no mixer.*'gla'"),
        ("gal+softmax/4", "no mixer.*'gla'"),
        ("gla+softmax/0", "write NAME"),
        ("gla:native", "write NAME"),
        ("gla+softmax@0,30", "no layer 30; layers are 0 to 29"),
        ("gla:preset=natve", "natve.*native"),
    ],
)
def test_what_is_no_student_is_refused(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        random_models("SmolLM2-135M", [text])


def test_the_students_of_gendistill_have_the_parameters_of_its_table_8() -> None:
    """arXiv 2603.26556: its Figures 2 and 5 measure them."""
    layers = "+softmax@0,2,6,11,13,18,21"
    students = random_models(
        "Qwen3-0.6B", [f"{name}:preset=gendistill{layers}" for name in ("kda", "mamba2")]
    )[1:]
    assert [round(ModelCost.of(each.config).num_params / 1e6) for each in students] == [613, 641]


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
