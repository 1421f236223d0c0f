"""Rounded weights and states: which tensors, when, and by how much the student's outputs change."""

from functools import partial
from pathlib import Path

import pytest
import torch
from torch import nn

from evalsuite.foundation import CheckpointError, ConfigError
from evalsuite.models import build_student, describe_checkpoint, load_checkpoint
from evalsuite.models.checkpoints.load import load_outline
from evalsuite.models.decoder import StudentForCausalLM
from evalsuite.models.decoder.precision import round_states, round_weights, rounds_states, state_precision
from evalsuite.models.inference.requests import GenerateRequest, SamplingParams, ScoreRequest
from evalsuite.models.inference.torch.engine import TorchEngine
from evalsuite.models.ops.quantization import quantize_dequantize


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An untrained hybrid of the pocket teacher."""
    teacher = load_checkpoint("pocket", dtype="float32", as_decoder=False)
    mixers = ["gated_deltanet", "softmax"] * teacher.model.config.num_hidden_layers
    student = build_student(teacher.model, mixers[: teacher.model.config.num_hidden_layers])
    path = tmp_path_factory.mktemp("student") / "hybrid"
    student.save_pretrained(path)
    teacher.tokenizer.save_pretrained(path)
    return path


def test_linear_layers_of_blocks_are_rounded_and_nothing_else(folder: Path) -> None:
    before, after = load_checkpoint(folder).model, load_checkpoint(f"{folder}:weights=int8").model
    linear = {
        f"{name}.weight"
        for name, module in before.named_modules()
        if isinstance(module, nn.Linear) and ".layers." in name
    }
    assert {name.rsplit(".", 2)[-2] for name in linear} >= {"q_proj", "o_proj", "b_proj", "down_proj"}
    rounded = after.state_dict()
    for name, weight in before.state_dict().items():
        expected = quantize_dequantize(weight, "int8", dim=1) if name in linear else weight
        assert torch.equal(rounded[name], expected), name


def read(model: StudentForCausalLM, *lengths: int) -> torch.Tensor:
    """Logits of one text that is read in parts of these lengths, from a cache."""
    tokens, start, found = torch.arange(5, 5 + sum(lengths))[None], 0, []
    cache = model.model.new_cache()
    for length in lengths:
        output = model(tokens[:, start : start + length], past_key_values=cache, use_cache=True)
        found.append(output.logits)
        start += length
    return torch.cat(found, 1)


@torch.inference_mode()
def test_states_are_rounded_when_they_are_stored_and_within_a_part_they_are_exact(folder: Path) -> None:
    model = load_checkpoint(folder).model
    exact = read(model, 20)
    changes = {}
    for kind in ("bf16", "int8", "fp8"):
        with state_precision(model, kind):
            assert torch.equal(read(model, 20), exact)
            in_parts = read(model, 12, *[1] * 8)
            cache = model.model.new_cache()
            model(torch.arange(5, 17)[None], past_key_values=cache, use_cache=True)
            state = cache.layers[0].read()["recurrent"]
            torch.testing.assert_close(quantize_dequantize(state, kind), state, rtol=1e-6, atol=0)
        torch.testing.assert_close(in_parts[:, :12], exact[:, :12])
        changes[kind] = float((in_parts - exact).abs().max() / exact.std())
    assert not rounds_states(model)
    torch.testing.assert_close(read(model, 12, *[1] * 8), exact, atol=1e-4, rtol=1e-4)
    # Half a step is 2^-9, 2^-8 and 2^-4 of the largest number of a row, at most.
    assert 1e-4 < changes["bf16"] < changes["fp8"] < 0.5
    assert 1e-4 < changes["int8"] < changes["fp8"]


def test_responses_do_not_depend_on_the_other_requests(folder: Path) -> None:
    checkpoint = load_checkpoint(f"{folder}:state=int8")
    engine = TorchEngine(checkpoint)
    assert rounds_states(checkpoint.model)
    start = tuple(range(5, 85))
    scores = [ScoreRequest((*start, last), ((7, 8, 9), (7, 9))) for last in range(5)]
    scores += [ScoreRequest((*start, 1), ((4, 3, 2),))]
    together = dict(engine.score(scores))
    prompts = [GenerateRequest((*start, last), SamplingParams(5)) for last in range(4)]
    generated = dict(engine.generate(prompts))
    for index, request in enumerate(scores):
        ((_, alone),) = engine.score([request])
        assert alone.logprobs == pytest.approx(together[index].logprobs, abs=1e-3)
    for index, prompt in enumerate(prompts):
        ((_, answer),) = engine.generate([prompt])
        assert answer.tokens == generated[index].tokens
    exact = dict(TorchEngine(load_checkpoint(folder)).score(scores))
    # A context's state is stored even before a single continuation.
    assert abs(exact[5].logprobs[0] - together[5].logprobs[0]) > 1e-5


def test_variants_are_other_checkpoints(folder: Path) -> None:
    names = ["", ":weights=int8", ":weights=fp8", ":state=bf16", ":weights=int8:state=bf16"]
    found = [load_checkpoint(f"{folder}{name}") for name in names]
    assert [each.label for each in found] == [
        "hybrid",
        "hybrid (int8 weights)",
        "hybrid (fp8 weights)",
        "hybrid (bf16 state)",
        "hybrid (int8 weights, bf16 state)",
    ]
    assert (
        len({each.weights_id for each in found})
        == len({TorchEngine(each).fingerprint for each in found})
        == 5
    )
    info = describe_checkpoint(f"{folder}:state=bf16:weights=int8", variants=True)
    assert (info.weights_id, info.label) == (found[4].weights_id, found[4].label)
    original = {"label": "hybrid", "weights_id": found[0].weights_id}
    assert info.lineage["variant_of"] == {**original, "weights": "int8", "state": "bf16"}
    assert info.training is None


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ("weight=int8", "unknown setting 'weight'; did you mean 'weights'"),
        ("weights=int4", "weights = 'int4': must be one of int8, fp8"),
        ("state=", "state = '': must be one of bf16, fp8, int8"),
        ("state=bf16:state=int8", "state is set twice"),
        ("state=bf16", "the model has no recurrent state"),
    ],
)
def test_settings_that_do_not_apply_are_refused(settings: str, message: str) -> None:
    for read in (load_checkpoint, partial(describe_checkpoint, variants=True)):
        with pytest.raises(CheckpointError, match=message):
            read(f"pocket:{settings}")


def test_what_does_not_round_refuses_settings(folder: Path) -> None:
    for call in (describe_checkpoint, load_outline, lambda path: load_checkpoint(path, as_decoder=False)):
        with pytest.raises(CheckpointError, match="only evalsuite's decoder, in engine torch"):
            call(f"{folder}:weights=int8")


def test_a_name_that_fits_two_checkpoints_is_refused(folder: Path) -> None:
    other = folder.rename(folder.with_name("hybrid:weights=int8"))
    try:
        assert load_checkpoint(other).label == "hybrid:weights=int8"
        folder.mkdir()
        with pytest.raises(CheckpointError, match="rename one of them"):
            load_checkpoint(other)
        folder.rmdir()
    finally:
        other.rename(folder)


def test_foreign_models_and_weights_that_are_not_finite_are_refused(folder: Path) -> None:
    foreign = load_checkpoint("pocket", as_decoder=False).model
    with pytest.raises(ConfigError, match="not run by evalsuite's decoder"):
        round_states(foreign, "bf16")
    model = load_checkpoint(folder).model
    with torch.no_grad():
        model.model.layers[1].mlp.up_proj.weight[0, 0] = torch.inf
    with pytest.raises(ConfigError, match=r"layer 1\.mlp\.up_proj has weights that are not finite"):
        round_weights(model, "int8")
