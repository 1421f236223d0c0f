"""In a real vLLM: the answers of the in-process engine, and refusals before a model loads.

Needs EVALSUITE_VLLM_PYTHON. The whole table (every mixer, 200 prompts) is
`python -m evalsuite.models.vllm_plugin.agreement --out DIR`.
"""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from evalsuite.foundation import ConfigError, EvalsuiteError
from evalsuite.models import load_checkpoint
from evalsuite.models.checkpoints import Checkpoint, describe_checkpoint
from evalsuite.models.engine.vllm_engine import VllmEngine
from evalsuite.models.engine.vllm_process import VllmProcess, find_python
from evalsuite.models.vllm_plugin.agreement import REGIMES, measure
from evalsuite.models.vllm_plugin.examples import Student, every_student, hybrid, pure, save
from evalsuite.models.vllm_plugin.rows import Row
from evalsuite.models.vllm_plugin.shipping import ship

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
    started = VllmProcess(find_python(), students=True)
    yield started
    started.close()


def test_students_answer_as_in_process(teacher: Checkpoint, process: VllmProcess) -> None:
    """A delta-rule hybrid, a normalised and rotated pure student, four kinds of layer in one student, and a
    student that keeps no state at all."""
    students = [
        hybrid("gated_deltanet", 4),
        Student("pure", ("linear_attention",) * 4),
        every_student(4)[-1],
        hybrid("sliding_window", 4),
    ]
    rows: list[Row] = list(
        measure(
            students,
            lambda student, place: save(student, teacher.model, teacher.tokenizer, place),
            process,
            regimes=list(REGIMES),
            count=40,
        )
    )
    assert len(rows) == len(students) * len(REGIMES)
    for row in rows:
        assert row.holds, row
        assert row.distinct > 10
        assert (row.cached > 0) == (row.regime == "prefix cache")


def test_a_prompt_of_one_token_begins_afresh_among_those_that_write(
    teacher: Checkpoint, process: VllmProcess
) -> None:
    """With few at once, prompts of one token come alone, into slots that others have left."""
    (row,) = measure(
        [hybrid("gated_deltanet", 4)],
        lambda student, place: save(student, teacher.model, teacher.tokenizer, place),
        process,
        regimes=["little cache"],
        count=40,
        arguments={"max_num_seqs": 6},
    )
    assert row.holds, row


def test_windows_alone_find_room_in_a_little_cache(teacher: Checkpoint, process: VllmProcess) -> None:
    """vLLM gives them its kernel's smallest blocks, of which the longest prompt wants many more."""
    (row,) = measure(
        [pure("sliding_window", 4)],
        lambda student, place: save(student, teacher.model, teacher.tokenizer, place),
        process,
        regimes=["little cache"],
        count=40,
    )
    assert row.holds, row


@pytest.mark.skipif((os.cpu_count() or 1) < 2, reason="two ranks want two cores")
def test_two_ranks_answer_as_one(teacher: Checkpoint) -> None:
    """Every layer's heads lie on two ranks, those of softmax layers among them."""
    # On one NUMA node vLLM has to be told which cores are whose.
    process = VllmProcess(find_python(), students=True, environment={"VLLM_CPU_OMP_THREADS_BIND": "0|1"})
    try:
        (row,) = measure(
            [hybrid("gated_deltanet", 4)],
            lambda student, place: save(student, teacher.model, teacher.tokenizer, place),
            process,
            regimes=["all at once"],
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
def test_vllm_itself_refuses(
    arguments: dict[str, Any], message: str, teacher: Checkpoint, process: VllmProcess, tmp_path: Path
) -> None:
    """As `vllm serve` would, which our engine's own checks do not stand before."""
    save(Student("gla", ("gla",) * 4), teacher.model, teacher.tokenizer, tmp_path)
    settings = {"model": str(tmp_path), "dtype": "float32", "max_length": 64, "student": True}
    with pytest.raises(EvalsuiteError, match=message):
        process.start({**settings, "arguments": arguments})
    with pytest.raises(ConfigError, match="has no such argument; did you mean 'tensor_parallel_size'"):
        process.start({**settings, "arguments": {"tensor_paralel_size": 2}})


def test_missing_weights_are_named(teacher: Checkpoint, process: VllmProcess, tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    folder = save(Student("gla", ("gla",) * 4), teacher.model, teacher.tokenizer, tmp_path)
    weights = load_file(folder / "model.safetensors")
    del weights["model.layers.2.self_attn.decay.up.bias"]
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    engine = VllmEngine(describe_checkpoint(folder), dtype="float32", max_length=64, process=process)
    with pytest.raises(EvalsuiteError, match=r"layer 2, gla: missing \['decay.up.bias'\]"):
        _ = engine.fingerprint


def test_registering_is_light_and_may_happen_twice(tmp_path: Path) -> None:
    """vLLM registers plugins in every process, before it forks: nothing may start CUDA or load the model."""
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
        env={**os.environ, "PYTHONPATH": str(ship(tmp_path))},
        cwd=tmp_path,
        check=True,
        capture_output=True,
        text=True,
    )
