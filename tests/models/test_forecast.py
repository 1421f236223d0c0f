"""What a few layers cost says what all of them will."""

from collections.abc import Callable
from types import SimpleNamespace

import pytest
from transformers import PreTrainedModel

from evalsuite.models import build_student, forecast
from evalsuite.models.engine.torch_engine import TorchEngine
from evalsuite.models.student import StudentConfig

MIXERS = ["softmax", "gla", "deltanet", "gla"] * 3


@pytest.mark.parametrize("student", [False, True])
@pytest.mark.parametrize("depth", [3, 12])
def test_time_grows_with_every_layer(
    make_teacher: Callable[..., PreTrainedModel], monkeypatch: pytest.MonkeyPatch, depth: int, student: bool
) -> None:
    model = make_teacher(layers=depth)
    if student:
        model = build_student(model, MIXERS[:depth])
    built: list[TorchEngine] = []

    def seconds(engine: TorchEngine, rows: int, length: int, count: int) -> float:
        built.append(engine)
        layers = len(engine.checkpoint.model.get_decoder().layers)
        # Something at once, then by the token, the head's share and that of every layer.
        return 5.0 + rows * (length * 0.01 * layers + (count - 1) * (0.5 + 0.25 * layers))

    monkeypatch.setattr(forecast, "_seconds", seconds)
    found = forecast.forecast(
        model.config,
        SimpleNamespace(eos_token_id=1),
        device="cpu",
        dtype="float32",
        parameters=model.num_parameters(),
        length=32,
        answers=9,
    )
    batch = forecast.PASS["cpu"] // 32
    assert found.rows == 9
    assert found.read == pytest.approx(5.0 / (32 * batch) + 0.01 * depth)
    assert found.written == pytest.approx(0.5 + 0.25 * depth)
    assert found.seconds(100, 10) == pytest.approx(100 * found.read + 10 * found.written)
    sizes = {len(engine.checkpoint.model.get_decoder().layers) for engine in built}
    assert sizes == ({3} if depth == 3 else {2, 6})
    # Answers would otherwise end whenever an end token is drawn.
    assert all(not engine.eos for engine in built)


def test_a_shortened_student_keeps_the_mixers_of_its_layers(
    make_teacher: Callable[..., PreTrainedModel],
) -> None:
    config = build_student(make_teacher(layers=12), MIXERS, options={"gla": {"gate_rank": 4}}).config
    cut = forecast.shortened(config, [0, 6, 0])
    assert isinstance(cut, StudentConfig)
    assert cut.mixers == ["softmax", "deltanet", "softmax"]
    assert cut.mixer_options == {}
    assert forecast.shortened(config, [1]).mixer_options == config.mixer_options
    assert cut.get_text_config().num_hidden_layers == 3
    assert len(config.mixers) == 12


def test_what_is_said_per_layer_is_cut_with_the_layers(make_teacher: Callable[..., PreTrainedModel]) -> None:
    config = make_teacher("qwen3", layers=6).config
    config.layer_types = ["full_attention", "sliding_attention"] * 3
    cut = forecast.shortened(config, [1, 3])
    assert cut.layer_types == ["sliding_attention"] * 2
    assert cut.num_hidden_layers == 2
    assert config.num_hidden_layers == 6
