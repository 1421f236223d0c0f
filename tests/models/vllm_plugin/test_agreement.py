"""Students in a real vLLM agree with the in-process engine, and unsupported options are rejected.

Needs EVALSUITE_VLLM_PYTHON. The full table (all mixers, 200 prompts) is
`python -m tests.parity.vllm.agreement --out DIR`.
"""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from evalsuite.foundation import ConfigError, EvalsuiteError
from evalsuite.models import load_checkpoint
from evalsuite.models.checkpoints.load import Checkpoint, describe_checkpoint
from evalsuite.models.inference.vllm.engine import VllmEngine
from evalsuite.models.inference.vllm.process import VllmProcess, find_python, vendor_plugin
from tests.parity.vllm.agreement import SERVING_MODES, measure
from tests.parity.vllm.agreement_cases import StudentCase, all_students, hybrid, pure, save_student
from tests.parity.vllm.agreement_report import AgreementRow

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.slow,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(
        not os.environ.get("EVALSUITE_VLLM_PYTHON"),
        reason="EVALSUITE_VLLM_PYTHON is not set: students in vLLM",
    ),
]


@pytest.fixture(scope="module")
def teacher() -> Checkpoint:
    return load_checkpoint("pocket", dtype="float32")


@pytest.fixture(scope="module")
def process() -> Iterator[VllmProcess]:
    process = VllmProcess(find_python(), students=True)
    yield process
    process.close()


def test_students_agree_with_the_in_process_engine(teacher: Checkpoint, process: VllmProcess) -> None:
    """A delta-rule hybrid, a pure student with normaliser and rotary, a student of four kinds of layer, and
    one without recurrent state."""
    students = [
        hybrid("gated_deltanet", 4),
        StudentCase("pure", ("linear_attention",) * 4),
        all_students(4)[-1],
        hybrid("sliding_window", 4),
    ]
    rows: list[AgreementRow] = list(
        measure(
            students,
            lambda student, folder: save_student(student, teacher.model, teacher.tokenizer, folder),
            process,
            modes=list(SERVING_MODES),
            count=40,
        )
    )
    assert len(rows) == len(students) * len(SERVING_MODES)
    for row in rows:
        assert row.holds, row
        assert row.num_distinct > 10
        assert (row.cached_tokens > 0) == (row.mode == "prefix caching")


def test_a_single_token_prompt_among_decodes_starts_from_a_cleared_slot(
    teacher: Checkpoint, process: VllmProcess
) -> None:
    """With few concurrent sequences, prompts of one token arrive alone, in reused slots."""
    (row,) = measure(
        [hybrid("gated_deltanet", 4)],
        lambda student, folder: save_student(student, teacher.model, teacher.tokenizer, folder),
        process,
        modes=["small cache"],
        count=40,
        arguments={"max_num_seqs": 6},
    )
    assert row.holds, row


def test_sliding_windows_fit_into_the_small_cache(teacher: Checkpoint, process: VllmProcess) -> None:
    """vLLM uses its kernel's smallest blocks for them, so the longest prompt needs many more."""
    (row,) = measure(
        [pure("sliding_window", 4)],
        lambda student, folder: save_student(student, teacher.model, teacher.tokenizer, folder),
        process,
        modes=["small cache"],
        count=40,
    )
    assert row.holds, row


@pytest.mark.skipif((os.cpu_count() or 1) < 2, reason="two ranks need two cores")
def test_two_ranks_agree_with_one(teacher: Checkpoint) -> None:
    """The heads of all layers, softmax included, are split over two ranks."""
    # On one NUMA node vLLM cannot assign cores to ranks by itself.
    process = VllmProcess(find_python(), students=True, environment={"VLLM_CPU_OMP_THREADS_BIND": "0|1"})
    try:
        (row,) = measure(
            [hybrid("gated_deltanet", 4)],
            lambda student, folder: save_student(student, teacher.model, teacher.tokenizer, folder),
            process,
            modes=["batched"],
            count=20,
            arguments={"tensor_parallel_size": 2},
        )
    finally:
        process.close()
    assert row.holds, row


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            {"speculative_config": {"method": "ngram", "num_speculative_tokens": 2, "prompt_lookup_max": 2}},
            "students cannot be served with speculative decoding",
        ),
        ({"tensor_parallel_size": 3}, "tensor_parallel_size = 3: gla has 4 heads"),
    ],
)
def test_vllm_itself_rejects_unsupported_arguments(
    arguments: dict[str, Any], message: str, teacher: Checkpoint, process: VllmProcess, tmp_path: Path
) -> None:
    """As under `vllm serve`, which does not run our engine's own validation."""
    save_student(StudentCase("gla", ("gla",) * 4), teacher.model, teacher.tokenizer, tmp_path)
    settings = {"model": str(tmp_path), "dtype": "float32", "max_length": 64, "student": True}
    with pytest.raises(EvalsuiteError, match=message):
        process.start({**settings, "arguments": arguments})
    with pytest.raises(ConfigError, match="has no such argument; did you mean 'tensor_parallel_size'"):
        process.start({**settings, "arguments": {"tensor_paralel_size": 2}})


def test_missing_weights_are_named(teacher: Checkpoint, process: VllmProcess, tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    folder = save_student(StudentCase("gla", ("gla",) * 4), teacher.model, teacher.tokenizer, tmp_path)
    weights = load_file(folder / "model.safetensors")
    del weights["model.layers.2.self_attn.gk_proj.1.bias"]
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    engine = VllmEngine(describe_checkpoint(folder), dtype="float32", max_length=64, process=process)
    with pytest.raises(EvalsuiteError, match=r"layer 2, gla: missing \['gk_proj.1.bias'\]"):
        _ = engine.fingerprint


def test_registration_is_light_and_idempotent(tmp_path: Path) -> None:
    """vLLM registers plugins in all processes before it forks, so CUDA and the model must not be loaded."""
    code = """
import sys
from evalsuite.models.vllm_plugin import ARCHITECTURE, MIXER_OP, register
register()
register()
import torch
from vllm import ModelRegistry
from vllm.config import CompilationConfig
assert ARCHITECTURE in ModelRegistry.get_supported_archs()
assert CompilationConfig._attention_ops.count(f"vllm::{MIXER_OP}") == 1
assert "evalsuite.models.vllm_plugin.model" not in sys.modules
assert not torch.cuda.is_initialized()
"""
    subprocess.run(
        [find_python(), "-c", code],
        env={**os.environ, "PYTHONPATH": str(vendor_plugin(tmp_path))},
        cwd=tmp_path,
        check=True,
        capture_output=True,
        text=True,
    )
