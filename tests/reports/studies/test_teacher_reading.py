"""Look-ups of a teacher: candidates, and counting."""

import random
import re
from types import SimpleNamespace

import pytest
import torch

from evalsuite.reports.studies.teacher_reading import PROBES, looked_up


@pytest.mark.parametrize("name", PROBES)
def test_candidates_are_distinct_and_told_before_the_deciding_token(name: str) -> None:
    for seed in range(20):
        prompt, answer, candidates = PROBES[name](random.Random(seed))
        assert answer in candidates
        assert len(set(candidates)) == len(candidates)
        assert all(re.search(rf"\b{re.escape(each.strip())}\b", prompt) for each in candidates)


@pytest.mark.parametrize(("preferred", "share"), [(1, 1.0), (2, 0.0)])
def test_the_most_probable_candidate_counts(preferred: int, share: float) -> None:
    teacher = SimpleNamespace(
        tokenizer=lambda text, add_special_tokens: {"input_ids": [{"right": 1, "wrong": 2}.get(text, 3)]},
        model=lambda input_ids: SimpleNamespace(logits=torch.eye(5)[preferred].expand(1, 1, 5)),
    )
    found = looked_up(teacher, lambda rng: ("prompt", "right", ["wrong", "right"]), 4)  # type: ignore[arg-type]
    assert found == (share, 0.5)
