"""Every check of `doctor` finds a defect that is planted for it, and names it."""

import copy
import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch import Tensor

from evalsuite.evaluation.checks import summarize_checks
from evalsuite.models import build_student
from evalsuite.models.checkpoints.load import Checkpoint
from evalsuite.models.decoder.cache import CACHE, RecurrentLayerCache, returned_cache
from evalsuite.models.diagnostics import consistency_checks
from evalsuite.models.diagnostics.consistency_checks import format_checks, run_consistency_checks
from evalsuite.models.inference.requests import ScoreRequest
from evalsuite.models.inference.torch.engine import TorchEngine
from evalsuite.models.mixers import RecurrentMixer
from evalsuite.models.ops.recurrence import RecurrenceInputs
from tests.parity.tiny_families import FAMILIES, make_checkpoint

Forward = Callable[..., Any]
DECODED = {"batched steps", "right, decoded", "left, decoded"}
FROM_CACHE = {"chunked", "stepped", "forked", "warm"} | DECODED
BATCHES = {"batched", "padded right", "padded left"} | DECODED
EVERYWHERE = {"repeated", "reordered", "filled", "packed", "packed, bounds"} | BATCHES | FROM_CACHE


@dataclass(frozen=True, slots=True)
class Planted:
    """A defect of a forward pass.

    Args:
        plant: from the sound forward pass to the defective one.
        paths: own paths that differ; the first is made for this defect.
        words: of its finding.
        checks: consistency checks that fail, among those that the model runs.
        model: that is sound without it.
    """

    plant: Callable[[Forward], Forward]
    paths: tuple[str, ...]
    words: str
    checks: frozenset[str] = frozenset()
    model: str = "hybrid"


def states(cache: Any) -> Iterator[RecurrentLayerCache]:
    """The layers of a cache that hold a state."""
    for layer in getattr(cache, "layers", ()):
        if isinstance(layer, RecurrentLayerCache) and layer.read() is not None:
            yield layer


def write_right_pads(original: Forward) -> Forward:
    def forward(**given: Any) -> Any:
        mask = given.get("attention_mask")
        if given.get("use_cache") and mask is not None and not mask[:, -1].all():
            given["token_mask"] = torch.ones_like(mask).bool()
        return original(**given)

    return forward


def write_left_pads(original: Forward) -> Forward:
    def forward(**given: Any) -> Any:
        mask = given.get("attention_mask")
        if mask is not None and mask.shape == given["input_ids"].shape and not mask[:, 0].all():
            given["token_mask"] = torch.ones_like(mask).bool()
        return original(**given)

    return forward


def shift_left_padded(original: Forward) -> Forward:
    def forward(**given: Any) -> Any:
        if given.get("attention_mask") is not None and given.get(CACHE) is None:
            given.pop("position_ids", None)
        return original(**given)

    return forward


def ignore_restarts(original: Forward) -> Forward:
    def forward(**given: Any) -> Any:
        if given.get("attention_mask") is None and given.get(CACHE) is None and "seq_idx" not in given:
            given.pop("position_ids", None)
        return original(**given)

    return forward


def ignore_bounds(original: Forward) -> Forward:
    def forward(**given: Any) -> Any:
        bounds = {"cu_seqlens", "cu_seq_lens_q", "cu_seq_lens_k", "seq_idx"} & given.keys()
        for name in {*bounds, "position_ids"} if bounds else ():
            del given[name]
        return original(**given)

    return forward


def drop_convolution(original: Forward) -> Forward:
    def forward(**given: Any) -> Any:
        if given["input_ids"].shape[1] > 1:
            for layer in states(given.get(CACHE)):
                state = layer.read() or {}
                layer.write({**state, "convolution": torch.zeros_like(state["convolution"])})
        return original(**given)

    return forward


def reuse_prefixes(original: Forward) -> Forward:
    known: dict[tuple[int, ...], Any] = {}

    def forward(**given: Any) -> Any:
        output = original(**given)
        if given.get("use_cache") and given.get(CACHE) is None and len(given["input_ids"]) == 1:
            output[CACHE] = known.setdefault(tuple(given["input_ids"][0].tolist()), output[CACHE])
        return output

    return forward


def hold_states_outside(original: Forward) -> Forward:
    latest: list[dict[str, Tensor]] = []

    def forward(**given: Any) -> Any:
        for layer, state in zip(states(given.get(CACHE)), latest, strict=False):
            layer.write(state)
        output = original(**given)
        if given.get("use_cache"):
            latest[:] = [layer.read() or {} for layer in states(output[CACHE])]
        return output

    return forward


def mix_rows(original: Forward) -> Forward:
    def forward(**given: Any) -> Any:
        output = original(**given)
        if len(output.logits) > 1:
            output.logits = output.logits + 0.1 * output.logits.roll(1, 0)
        return output

    return forward


def remember_requests(original: Forward) -> Forward:
    before = [torch.zeros(())]

    def forward(**given: Any) -> Any:
        output = original(**given)
        last = output.logits[-1, -1]
        output.logits = output.logits + 0.1 * before[0]
        before[0] = last
        return output

    return forward


def add_noise(original: Forward) -> Forward:
    draw = torch.Generator().manual_seed(0)

    def forward(**given: Any) -> Any:
        output = original(**given)
        output.logits = output.logits + 0.1 * torch.randn(output.logits.shape, generator=draw)
        return output

    return forward


def round_states(original: Forward) -> Forward:
    def forward(**given: Any) -> Any:
        output = original(**given)
        for layer in states(returned_cache(output).get(CACHE)):
            layer.write({name: value.bfloat16() for name, value in (layer.read() or {}).items()})
        return output

    return forward


def quantize_states(original: Forward) -> Forward:
    def forward(**given: Any) -> Any:
        output = original(**given)
        for layer in states(returned_cache(output).get(CACHE)):
            state = layer.read() or {}
            scale = state["recurrent"].abs().amax() / 127
            layer.write({**state, "recurrent": (state["recurrent"] / scale).round() * scale})
        return output

    return forward


def shift_steps(original: Forward) -> Forward:
    def forward(**given: Any) -> Any:
        if given.get("position_ids") is not None and given["input_ids"].shape[1] == 1:
            given["position_ids"] = given["position_ids"] + 1
        return original(**given)

    return forward


def exchange_states(original: Forward) -> Forward:
    def forward(**given: Any) -> Any:
        for layer in states(given.get(CACHE)):
            layer.write({name: value.roll(1, 0) for name, value in (layer.read() or {}).items()})
        return original(**given)

    return forward


def start_from_last_request(original: Forward) -> Forward:
    slots: list[dict[str, Tensor]] = []
    method: Any = original

    def forward(**given: Any) -> Any:
        output = original(**given)
        if not given.get("use_cache"):
            return output
        held = [layer.read() or {} for layer in states(output[CACHE])]
        if slots and given.get(CACHE) is None and len(slots[0]["recurrent"]) == len(output.logits):
            # A new cache whose states are those that the slot held before.
            cache = method.__self__.model.new_cache()
            for layer, state in zip(cache.layers, slots, strict=False):
                layer.write(state)
            output = original(**given, **{CACHE: cache})
            held = [layer.read() or {} for layer in states(output[CACHE])]
        slots[:] = held
        return output

    return forward


def ordered(first: str, others: set[str]) -> tuple[str, ...]:
    return (first, *sorted(others - {first}))


DEFECTS = {
    "right pads are written to the state": Planted(
        write_right_pads, ("right, decoded",), "transformers #48256"
    ),
    "left pads are written to the state": Planted(
        write_left_pads,
        ("padded left", "left, decoded"),
        "pads change real tokens",
        frozenset({"padded left"}),
    ),
    "left pads shift positions": Planted(
        shift_left_padded,
        ("padded left", "left, decoded"),
        "positions are ignored",
        frozenset({"padded left"}),
        "gpt2",
    ),
    "texts packed by positions leak": Planted(ignore_restarts, ("packed",), "leak from one to the next"),
    "texts packed by cu_seqlens leak": Planted(
        ignore_bounds, ("packed, bounds",), "leak from one to the next", frozenset({"packed"})
    ),
    "chunks lose the state of the convolution": Planted(
        drop_convolution, ("chunked", "forked", "warm"), "the cache loses a part of the text"
    ),
    # The texts of a document share their prefix, which paths before this one have read.
    "a warm prefix cache is stale": Planted(
        reuse_prefixes,
        ("warm", "chunked", "forked", "stepped"),
        "a reused prefix is stale",
        frozenset({"decode"}),
    ),
    "a state is held outside the cache": Planted(hold_states_outside, ("forked",), "outside the cache"),
    "rows of a batch mix": Planted(
        mix_rows,
        ordered("batched", BATCHES),
        "rows of a batch change each other",
        frozenset({"padded right", "padded left"}),
    ),
    "the order of requests matters": Planted(
        remember_requests,
        ordered("reordered", EVERYWHERE),
        "a text depends on the texts before it",
    ),
    "equal runs differ": Planted(
        add_noise,
        ordered("repeated", EVERYWHERE),
        "two equal runs differ",
    ),
    "states are kept in bfloat16": Planted(
        round_states, ordered("stepped", FROM_CACHE), "its cache is in bfloat16", frozenset({"decode"})
    ),
    "states are rounded to 8 bits": Planted(
        quantize_states,
        ordered("stepped", FROM_CACHE),
        "precision (as in vLLM #55196)",
        frozenset({"decode"}),
    ),
    "rows of a cache exchange their states": Planted(
        exchange_states, ordered("batched steps", DECODED), "exchange their states"
    ),
    # The batch before the one that is padded on the right has another size.
    "a slot holds the state of the last request": Planted(
        start_from_last_request,
        ordered("filled", {"filled"} | FROM_CACHE - {"right, decoded"}),
        "the state of an earlier request",
        frozenset({"decode"}),
    ),
    "steps have wrong positions": Planted(
        shift_steps,
        ordered("stepped", {"stepped"} | DECODED),
        "steps from the cache differ in position",
        frozenset({"decode"}),
    ),
}


@pytest.fixture(scope="module")
def models() -> dict[str, Checkpoint]:
    """Sound models in which the defects are planted."""
    llama = make_checkpoint(FAMILIES["llama"])
    hybrid = build_student(llama.model, ["gated_deltanet", "softmax"]).eval()
    for name, parameter in hybrid.named_parameters():
        # New students have convolutions that pass on their last token only.
        if "conv1d" in name:
            torch.nn.init.normal_(parameter, std=0.3)
    return {"hybrid": replace(llama, model=hybrid), "gpt2": make_checkpoint(FAMILIES["gpt2"])}


def suspects(result: dict[str, Any]) -> set[str]:
    """Checks in the model's own precision that do not pass."""
    return {
        check["name"]
        for check in summarize_checks(result)["checks"]
        if check["status"] != "ok" and not check["name"].startswith("precision")
    }


@pytest.mark.parametrize("name", DEFECTS)
def test_a_planted_defect_is_found_and_named(
    name: str,
    models: dict[str, Checkpoint],
    tiny_documents: Sequence[ScoreRequest],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    planted = DEFECTS[name]
    examined = models[planted.model]
    original = examined.model.forward
    # Engines read which arguments the forward pass takes.
    forward = functools.wraps(original)(planted.plant(original))
    monkeypatch.setattr(examined.model, "forward", forward)
    result = run_consistency_checks(examined, tiny_documents)
    found = {path["name"]: path["finding"] for path in result["own_paths"] if path["finding"]}
    assert set(found) == set(planted.paths)
    assert planted.words in found[planted.paths[0]]
    run = {check["name"] for check in result["checks"] if not check["skipped"]}
    assert suspects(result) - {"batched", "generation"} == planted.checks & run
    assert f"{planted.paths[0]:<20}" in format_checks(result)


@pytest.mark.parametrize("plant", [remember_requests, add_noise])
def test_checks_of_a_model_that_no_engine_runs_say_why(
    plant: Callable[[Forward], Forward],
    models: dict[str, Checkpoint],
    tiny_documents: Sequence[ScoreRequest],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = models["hybrid"].model
    monkeypatch.setattr(model, "forward", functools.wraps(model.forward)(plant(model.forward)))
    result = run_consistency_checks(models["hybrid"], tiny_documents)
    reasons = {check["name"]: check["skipped"] for check in result["checks"]}
    for name in ("batched", "padded right", "packed", "decode", "generation"):
        assert "the logits of two equal passes differ by up to" in reasons[name]
    assert "None of" not in format_checks(result)


@contextmanager
def wrong_kernels(backend: str) -> Iterator[None]:
    """Another backend of the recurrence that loses a tenth of what it reads."""
    original = RecurrentMixer.recurrence

    def recurrence(inputs: RecurrenceInputs) -> tuple[Tensor, Tensor]:
        read, state = original(inputs)
        return 0.9 * read, state

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RecurrentMixer, "recurrence", staticmethod(recurrence))
        yield


def test_wrong_kernels_are_found(
    models: dict[str, Checkpoint], tiny_documents: Sequence[ScoreRequest], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(consistency_checks, "kernel_policy", wrong_kernels)
    assert suspects(run_consistency_checks(models["hybrid"], tiny_documents)) == {"backend"}


def test_logits_that_need_float32_are_found(
    models: dict[str, Checkpoint], tiny_documents: Sequence[ScoreRequest]
) -> None:
    """An offset of all logits changes no probability, and leaves bfloat16 no digits for them."""
    model = copy.deepcopy(models["hybrid"].model)
    with torch.no_grad():
        model.get_output_embeddings().weight += 30
    result = run_consistency_checks(replace(models["hybrid"], model=model), tiny_documents)
    assert not suspects(result)
    (precision,) = (check for check in result["checks"] if check["name"] == "precision bfloat16")
    assert precision["max_difference"] > 1


@pytest.mark.parametrize(("verb", "check"), [("score", "batched"), ("generate", "generation")])
def test_requests_that_change_each_other_in_the_engine_are_found(
    verb: str,
    check: str,
    models: dict[str, Checkpoint],
    tiny_documents: Sequence[ScoreRequest],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    original = getattr(TorchEngine, verb)

    def swapped(self: TorchEngine, requests: Sequence[Any]) -> Iterator[tuple[int, Any]]:
        responses = list(original(self, requests))
        for (index, _), (_, response) in zip(responses, responses[1:] + responses[:1], strict=True):
            yield index, response

    monkeypatch.setattr(TorchEngine, verb, swapped)
    assert suspects(run_consistency_checks(models["hybrid"], tiny_documents)) == {check}
