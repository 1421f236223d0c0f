"""Defects of padding, packing and caches are found in models that have them, and in no other."""

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from transformers import CONFIG_MAPPING, PreTrainedModel

from evalsuite.models import build_student
from evalsuite.models.checkpoints.load import with_decoder
from evalsuite.models.decoder.cache import CACHE
from evalsuite.models.diagnostics.consistency_checks import format_checks, run_consistency_checks
from evalsuite.models.diagnostics.own_paths import OwnPathResult, check_own_paths, format_own_paths
from evalsuite.models.inference.requests import ScoreRequest
from tests.parity.tiny_families import FAMILIES, make_checkpoint, make_model

DRAW = random.Random(0)
ROWS = [tuple(DRAW.randrange(3, 96) for _ in range(DRAW.randint(6, 40))) for _ in range(8)]


def tiny(name: str) -> PreTrainedModel:
    """A random model of a family, in float32."""
    if FAMILIES[name].model_type not in CONFIG_MAPPING:
        pytest.skip(f"this transformers has no {FAMILIES[name].title}")
    return make_model(FAMILIES[name]).eval().float()


def findings(model: PreTrainedModel, plant: Callable[[], None] = lambda: None) -> dict[str, OwnPathResult]:
    """Results by path; the reference is that of the model before a defect is planted."""
    with torch.inference_mode():
        reference = [
            model(input_ids=torch.tensor([row]), use_cache=False).logits[0].log_softmax(-1) for row in ROWS
        ]
    plant()
    return {path.name: path for path in check_own_paths(model, ROWS, reference)}


def test_a_sound_model_has_no_finding() -> None:
    found = findings(tiny("llama"))
    assert [path.name for path in found.values() if path.finding or path.skipped] == []
    assert found["padded right"].num_tokens == sum(map(len, ROWS))
    assert found["right, decoded"].num_tokens == len(ROWS)


@pytest.mark.parametrize("mixers", [["gated_deltanet", "kda"], ["gla", "softmax"]])
def test_students_have_no_finding(mixers: list[str]) -> None:
    found = findings(build_student(tiny("llama"), mixers).eval())
    assert [path.name for path in found.values() if path.finding or path.skipped] == []


@pytest.mark.parametrize("name", ["mamba2", "nemotron_h", "qwen3_5", "olmo_hybrid"])
def test_public_defects_of_hybrids_are_found(name: str) -> None:
    """transformers 5.24: pads stay in states (#48256), and positions do not isolate packed texts."""
    found = findings(tiny(name))
    assert "#48256" in found["right, decoded"].finding
    assert found["right, decoded"].max_difference > 0.1
    assert "leak" in found["packed"].finding
    accused = {path.name for path in found.values() if path.finding}
    # Nemotron-H limits its time steps from below when it reads several tokens, and not in a step.
    steps = {"stepped", "batched steps", "left, decoded"} if name == "nemotron_h" else set()
    known = {"right, decoded", "packed", "packed, bounds"} | steps
    assert accused <= known


@pytest.mark.parametrize(
    ("name", "path", "has_defect"),
    [
        # After the first pass, `generate` gives Mamba no mask.
        ("mamba", "left, decoded", False),
        ("minimax", "left, decoded", True),
        # Pads of token 0, whose embedding is zero, leave no trace in its states.
        ("recurrent_gemma", "padded left", True),
    ],
)
def test_findings_on_padding_are_those_of_generate(name: str, path: str, has_defect: bool) -> None:
    model: Any = tiny(name)
    assert bool(findings(model)[path].finding) == has_defect
    text = torch.tensor([ROWS[0][:6]])
    batch = torch.cat([torch.full((1, 5), 7), text], 1)
    mask = (torch.arange(11) >= 5).long()[None]
    settings = {"max_new_tokens": 2, "output_logits": True, "return_dict_in_generate": True}
    alone = model.generate(text, attention_mask=torch.ones_like(text), do_sample=False, **settings)
    padded = model.generate(batch, attention_mask=mask, do_sample=False, **settings)
    pairs = zip(alone.logits, padded.logits, strict=True)
    assert any(not torch.allclose(one, other, atol=1e-3) for one, other in pairs) == has_defect


@pytest.mark.parametrize(
    ("ignored", "paths"),
    [
        # Positions that start again tell the text from the pads on its left.
        ("attention_mask", {"right, decoded", "left, decoded"}),
        ("position_ids", {"padded left", "right, decoded", "left, decoded", "packed", "packed, bounds"}),
        (
            CACHE,
            {"right, decoded", "left, decoded", "batched steps", "chunked", "stepped", "forked", "warm"},
        ),
    ],
)
def test_an_ignored_argument_is_found(ignored: str, paths: set[str], monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny("gpt2")
    original = model.forward

    def forward(**arguments: Any) -> Any:
        return original(**{name: value for name, value in arguments.items() if name != ignored})

    found = findings(model, lambda: monkeypatch.setattr(model, "forward", forward))
    assert {path.name for path in found.values() if path.finding} == paths


def test_runs_that_differ_and_refusals_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny("gpt2")
    original = model.forward

    def forward(use_cache: bool = False, position_ids: Any = None, **arguments: Any) -> Any:
        if position_ids is not None:
            raise NotImplementedError("positions are not\nsupported")
        output = original(use_cache=use_cache, **arguments)
        output.logits = output.logits + torch.randn(()) * torch.eye(96)[:1]
        return output

    found = findings(model, lambda: monkeypatch.setattr(model, "forward", forward))
    assert found["repeated"].finding == "two equal runs differ"
    assert found["packed"].skipped == "GPT2LMHeadModel: positions are not"
    assert not found["packed"].finding


def test_teachers_are_examined_in_their_own_code(
    tiny_documents: list[ScoreRequest], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A defect of transformers' model does not reach evalsuite's decoder, which shares its weights."""
    loaded = make_checkpoint(FAMILIES["llama"])
    checkpoint, original = with_decoder(loaded), loaded.model.forward
    assert type(checkpoint.model) is not type(loaded.model)

    def forward(position_ids: Any = None, **arguments: Any) -> Any:
        return original(**arguments)

    monkeypatch.setattr(loaded.model, "forward", forward)
    accused = []
    for own_model in (None, loaded.model):
        result = run_consistency_checks(checkpoint, tiny_documents, own_model=own_model)
        accused.append({path["name"] for path in result["own_paths"] if path["finding"]})
    assert accused[0] == set()
    assert accused[1] == {"packed", "packed, bounds", "right, decoded"}


@pytest.mark.parametrize("name", ["mamba2", "llama"])
def test_the_table_names_the_padding_defect_of_hybrids(name: str, tiny_documents: list[ScoreRequest]) -> None:
    tiny(name)
    text = format_checks(run_consistency_checks(make_checkpoint(FAMILIES[name]), tiny_documents))
    named = [line for line in text.splitlines() if "transformers #48256" in line]
    assert [line.split("  ")[0] for line in named] == ([] if name == "llama" else ["right, decoded"])


def test_lines_name_what_is_found() -> None:
    found = findings(tiny("mamba2"))
    fields = [{name: getattr(path, name) for name in path.__slots__} for path in found.values()]
    lines = format_own_paths(fields, len(ROWS))
    assert any(line.startswith("right, decoded") and line.endswith("in a window") for line in lines)
    assert lines[-1].endswith("evalsuite scores it without them.")
