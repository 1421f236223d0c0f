"""No check of `doctor` accuses a sound model: families of transformers, and students."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from evalsuite.evaluation.checks import summarize_checks
from evalsuite.models import build_student
from evalsuite.models.checkpoints.load import Checkpoint
from evalsuite.models.diagnostics.consistency_checks import run_consistency_checks
from evalsuite.models.inference.requests import ScoreRequest
from tests.parity.tiny_families import FAMILIES, make_checkpoint

# Full attention, which padding, packing and caches leave exact; windows and states of transformers do not.
SOUND = [
    "llama", "gemma", "gpt2", "gpt_bigcode", "gpt_neox", "gptj", "codegen", "phi", "olmo", "olmo2", "smollm3",
    "stablelm", "deepseek_v3", "cohere", "granite", "glm4", "nemotron", "seed_oss", "falcon", "falcon_alibi",
]  # fmt: skip
STUDENTS = ["gated_deltanet", "kda", "gla", "mamba2", "deltanet", "retnet", "linear_attention", "hgrn2"]


def accusations(examined: Checkpoint, documents: Sequence[ScoreRequest]) -> list[str]:
    """Checks and own paths that do not pass, but for a cast to another dtype, which is no defect."""
    result = run_consistency_checks(examined, documents)
    return [
        *(path["name"] for path in result["own_paths"] if path["finding"] or path["skipped"]),
        *(
            check["name"]
            for check in summarize_checks(result)["checks"]
            if check["status"] != "ok" and not check["name"].startswith("precision")
        ),
    ]


@pytest.mark.parametrize("name", SOUND)
def test_families_of_transformers_pass(name: str, tiny_documents: list[ScoreRequest]) -> None:
    assert accusations(make_checkpoint(FAMILIES[name]), tiny_documents) == []


@pytest.mark.parametrize("mixer", STUDENTS)
def test_hybrid_students_pass(mixer: str, tiny_documents: list[ScoreRequest]) -> None:
    teacher = make_checkpoint(FAMILIES["llama"])
    student = build_student(teacher.model, [mixer, "softmax"]).eval()
    assert accusations(replace(teacher, model=student), tiny_documents) == []
