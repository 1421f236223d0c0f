"""Small random students with every gate moved off its start."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from transformers import PreTrainedModel

from evalsuite.models import StudentForCausalLM, build_student


@pytest.fixture(scope="session")
def make_student(make_teacher: Callable[..., PreTrainedModel]) -> Callable[..., StudentForCausalLM]:
    """Make a student of a random teacher of four query heads on two key heads."""

    def make(mixers: str | list[str], *, family: str = "qwen3", **options: Any) -> StudentForCausalLM:
        teacher = make_teacher(family, layers=len(mixers) if isinstance(mixers, list) else 1)
        names = mixers if isinstance(mixers, list) else [mixers]
        student = build_student(teacher, names, options={names[0]: options} if options else {}).eval()
        draw = torch.Generator().manual_seed(0)
        with torch.no_grad():
            for parameter in student.parameters():
                parameter += 0.1 * torch.randn(parameter.shape, generator=draw)
        return student.requires_grad_(False)

    return make
