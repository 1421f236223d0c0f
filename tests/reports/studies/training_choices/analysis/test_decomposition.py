"""The decomposition of the gap adds up exactly, and causes are decided in their order."""

import numpy as np
import pytest

from evalsuite.reports.studies.training_choices.analysis.decomposition import (
    CAUSES,
    OFFSETS,
    Responses,
    causes,
    collapsed,
    decompose,
    exposure,
)


@pytest.mark.parametrize("seed", range(5))
def test_parts_add_up_to_the_gap(seed: int) -> None:
    generator = np.random.default_rng(seed)
    weights = generator.random(500)
    weights /= weights.sum()
    scores = [
        {
            protocol: generator.random(500) * (generator.random(500) < 0.8)
            for protocol in ("loglikelihood", "generation")
        }
        for _ in range(2)
    ]
    student, teacher = scores
    parts = decompose(student, teacher, generator.integers(len(CAUSES), size=500), weights)
    assert [part.name for part in parts] == [*CAUSES, *OFFSETS]
    gap = weights @ (teacher["generation"] - student["generation"])
    gap -= weights @ (teacher["loglikelihood"] - student["loglikelihood"])
    assert sum(part.share for part in parts) == pytest.approx(gap, abs=1e-12)
    assert all(part.share >= 0 for part in parts[: len(CAUSES)])


def test_causes_are_decided_in_their_order() -> None:
    own = Responses(
        outcome=np.array(["looped", "truncated", "extraction_failed", "ok", "ok", "ok", "ok", "ok"]),
        extracted=np.array(["3", "3", "", "3", "3", "lamp", "rug", ""]),
    )
    teacher = Responses(
        outcome=np.array(["ok"] * 8), extracted=np.array(["1", "2", "1", "2", "1", "sword", "bell", "kite"])
    )
    benchmarks = np.array([0, 0, 0, 0, 0, 1, 1, 1])
    # Seven different answers, so that the second benchmark does not ask for options.
    more = Responses(np.array(["ok"] * 6), np.array([f"word{n}" for n in range(6)]))
    own = Responses(
        np.concatenate([own.outcome, more.outcome]), np.concatenate([own.extracted, more.extracted])
    )
    teacher = Responses(
        np.concatenate([teacher.outcome, more.outcome]), np.concatenate([teacher.extracted, more.extracted])
    )
    prompts = ["1. a"] * 5 + ["a LAMP and a sword", "a bell", "a kite"] + [f"word{n}" for n in range(6)]
    benchmarks = np.concatenate([benchmarks, np.ones(6, dtype=int)])
    found = causes(own, teacher, prompts, benchmarks)
    assert [CAUSES[each] for each in found[:8]] == [
        "looped",
        "truncated",
        "no answer extracted",
        "modal option",
        "modal option",
        "another value of the passage",
        "another value",
        "no answer extracted",
    ]


def test_a_student_collapses_if_it_loops_in_more_than_half() -> None:
    assert collapsed(np.array(["looped", "looped", "ok"]))
    assert not collapsed(np.array(["looped", "ok"]))


def test_exposure_is_measured_by_position() -> None:
    rows = [
        {"forced": [True, False, True], "free": [True, False, False], "logprob": [-0.1, -2.0, -0.3]},
        {"forced": [True], "free": [True], "logprob": [-0.3]},
    ]
    first, second, third = exposure(rows)
    assert (first.documents, first.forced, first.free) == (2, 1.0, 1.0)
    assert first.logprob == pytest.approx(-0.2)
    assert (second.forced, second.free) == (0.0, 0.0)
    assert (third.documents, third.forced, third.free) == (1, 1.0, 0.0)
    assert exposure([]) == []
