"""The benchmark against HFLM runs the same requests on both sides, with equal results."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from tests.performance.bench_engine import PHASES, compare, part, table, workloads


@pytest.mark.long
@pytest.mark.parametrize("kind", ["llama", "gla+softmax+linear_attention"])
def test_both_sides_agree(build: Callable[..., Any], kind: str) -> None:
    checkpoint = build(kind)
    hellaswag, mmlu, generation = workloads(checkpoint.tokenizer, scale=0.002)
    assert len(hellaswag.pairs) == len(mmlu.pairs) == 16
    assert len(generation.prompts) == 4
    assert hellaswag == workloads(checkpoint.tokenizer, scale=0.002)[0]
    scored = compare(checkpoint, hellaswag, warm=part(hellaswag, 0.25))
    short = replace(generation, new_tokens=12)
    generated = compare(checkpoint, short, warm=part(short, 0.25))
    assert scored.deviation < 1e-3
    assert generated.deviation == 0
    assert scored.ratio == pytest.approx(scored.ours / scored.hflm)
    assert "hellaswag" in table([scored, generated])


def test_a_part_has_complete_documents(build: Callable[..., Any]) -> None:
    hellaswag, _, generation = workloads(build("llama").tokenizer, scale=0.005)
    assert len(part(hellaswag, 0.3).pairs) == 12
    assert len(part(generation, 0.5).prompts) == 2


def test_phases_of_the_profile_exist() -> None:
    missing = [
        (owner, name) for targets in PHASES.values() for owner, name in targets if not hasattr(owner, name)
    ]
    assert not missing
