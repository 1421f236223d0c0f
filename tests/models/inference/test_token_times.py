"""Extrapolation of the runtime from a few layers."""

from collections.abc import Callable
from types import SimpleNamespace

import pytest
from transformers import PreTrainedModel

from evalsuite.models import build_student
from evalsuite.models.decoder import StudentConfig
from evalsuite.models.inference import token_times
from evalsuite.models.inference.registry import EngineSettings
from evalsuite.models.inference.torch.engine import TorchEngine

MIXERS = ["softmax", "gla", "deltanet", "gla"] * 3


@pytest.mark.parametrize("student", [False, True])
@pytest.mark.parametrize("depth", [3, 12])
def test_time_is_linear_in_the_number_of_layers(
    make_teacher: Callable[..., PreTrainedModel], monkeypatch: pytest.MonkeyPatch, depth: int, student: bool
) -> None:
    model = make_teacher(layers=depth)
    if student:
        model = build_student(model, MIXERS[:depth])
    built: list[TorchEngine] = []

    def seconds(engine: TorchEngine, rows: int, length: int, count: int) -> float:
        built.append(engine)
        layers = len(engine.checkpoint.model.get_decoder().layers)
        # A fixed cost, then per token the cost of the head and of every layer.
        return 5.0 + rows * (length * 0.01 * layers + (count - 1) * (0.5 + 0.25 * layers))

    monkeypatch.setattr(token_times, "_time_generation", seconds)
    found = token_times.measure_token_times(
        TorchEngine,
        model.config,
        SimpleNamespace(eos_token_id=1),
        EngineSettings(device="cpu", dtype="float32"),
        parameters=model.num_parameters(),
        prompt_tokens=32,
        num_responses=9,
    )
    batch = token_times.PREFILL_TOKENS["cpu"] // 32
    assert found.num_seqs == 9
    assert found.prefill == pytest.approx(5.0 / (32 * batch) + 0.01 * depth)
    assert found.decode == pytest.approx(0.5 + 0.25 * depth)
    assert found.seconds(100, 10) == pytest.approx(100 * found.prefill + 10 * found.decode)
    sizes = {len(engine.checkpoint.model.get_decoder().layers) for engine in built}
    assert sizes == ({3} if depth == 3 else {2, 6})
    # Otherwise a response would end at a random end-of-sequence token.
    assert all(not engine.eos_ids for engine in built)


def test_a_shallow_student_has_the_mixers_of_the_selected_layers(
    make_teacher: Callable[..., PreTrainedModel],
) -> None:
    config = build_student(make_teacher(layers=12), MIXERS, options={"gla": {"gate_rank": 4}}).config
    cut = token_times.with_layers(config, [0, 6, 0])
    assert isinstance(cut, StudentConfig)
    assert cut.mixers == ["softmax", "deltanet", "softmax"]
    assert cut.mixer_options == {}
    assert token_times.with_layers(config, [1]).mixer_options == config.mixer_options
    assert cut.get_text_config().num_hidden_layers == 3
    assert len(config.mixers) == 12


def test_per_layer_fields_are_reduced_to_the_selected_layers(
    make_teacher: Callable[..., PreTrainedModel],
) -> None:
    config = make_teacher("qwen3", layers=6).config
    config.layer_types = ["full_attention", "sliding_attention"] * 3
    cut = token_times.with_layers(config, [1, 3])
    assert cut.layer_types == ["sliding_attention"] * 2
    assert cut.num_hidden_layers == 2
    assert config.num_hidden_layers == 6
