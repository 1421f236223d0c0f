"""The benchmark against HFLM runs the same requests on both sides, with equal results."""

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests.performance import peers
from tests.performance.bench_engine import PHASES, compare, table
from tests.performance.engine_workloads import Workload, part, workloads
from tests.performance.peers import hflm, run_hflm


@pytest.mark.long
@pytest.mark.parametrize("kind", ["llama", "gla+softmax+linear_attention"])
def test_both_sides_agree(build: Callable[..., Any], kind: str) -> None:
    checkpoint = build(kind)
    hellaswag, mmlu, generation = workloads(checkpoint.tokenizer, scale=0.002)
    assert len(hellaswag.pairs) == len(mmlu.pairs) == 16
    assert len(generation.prompts) == 4
    assert hellaswag == workloads(checkpoint.tokenizer, scale=0.002)[0]
    short = replace(generation, new_tokens=12)
    with hflm(checkpoint, 2048) as peer:
        scored = compare(checkpoint, hellaswag, peer=peer, warm=part(hellaswag, 0.25))
        generated = compare(checkpoint, short, peer=peer, warm=part(short, 0.25))
    assert scored.deviation < 1e-3
    assert generated.deviation == 0
    assert scored.ratio == pytest.approx(scored.ours / scored.peer_rate)
    assert (scored.peer_batch_size, generated.peer_batch_size) == (64, 256)
    assert "hellaswag" in table([scored, generated])


def test_a_part_has_complete_documents(build: Callable[..., Any]) -> None:
    hellaswag, _, generation = workloads(build("llama").tokenizer, scale=0.005)
    assert len(part(hellaswag, 0.3).pairs) == 12
    assert len(part(generation, 0.5).prompts) == 2


@pytest.mark.parametrize(("fitting", "tried"), [(2, [8, 4, 2]), (0, [8, 4, 2, 1])])
def test_a_batch_of_hflm_that_does_not_fit_is_halved(
    fitting: int, tried: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[int] = []

    def run(lm: Any, workload: Workload) -> list[Any]:
        sizes.append(lm.batch_size_per_gpu)
        if lm.batch_size_per_gpu > fitting:
            raise torch.OutOfMemoryError("no memory")
        return [workload.name]

    monkeypatch.setattr(peers, "_run_hflm", run)
    lm = SimpleNamespace(batch_size_per_gpu=8)
    if fitting:
        assert run_hflm(lm, Workload("mmlu")) == ["mmlu"]
    else:
        with pytest.raises(torch.OutOfMemoryError):
            run_hflm(lm, Workload("mmlu"))
    assert sizes == tried


def test_phases_of_the_profile_exist() -> None:
    missing = [
        (owner, name) for targets in PHASES.values() for owner, name in targets if not hasattr(owner, name)
    ]
    assert not missing
