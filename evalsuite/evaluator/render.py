"""Render: documents become questions in token ids, once per tokenizer."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from evalsuite.evaluator.asking import Asking, benchmarks_of, gather, index_of, plan_of
from evalsuite.evaluator.checkpoints import Subject
from evalsuite.evaluator.environment import note, read
from evalsuite.evaluator.layout import (
    Cell,
    Index,
    cell_documents,
    documents_path,
    index_path,
    questions_path,
    read_documents,
    read_index,
    write_documents,
    write_index,
    write_questions,
)
from evalsuite.foundation import RunFolderError, content_hash, progress
from evalsuite.protocols.encode import Encoder
from evalsuite.protocols.generation import GenerationBenchmark
from evalsuite.protocols.loglikelihood import LogLikelihoodBenchmark
from evalsuite.protocols.question import Question
from evalsuite.reports.run_folder import Plan, read_plan, write_plan
from evalsuite.tasks.benchmark import Benchmark
from evalsuite.tasks.data import where_from
from evalsuite.tasks.documents import Document, shot_rows

Harness = LogLikelihoodBenchmark | GenerationBenchmark
Data = Path | str | None


def render(
    run: Path,
    asking: Asking,
    subjects: Sequence[Subject],
    data_dir: Data,
    *,
    skip_missing: bool = False,
    quiet: bool = False,
) -> Index:
    """Write plan, documents and questions of a run; what is there already is kept.

    Raises:
        RunFolderError: the folder holds a run that asks something else.
        ConfigError, DataError: as benchmarks and documents do.
    """
    # What an earlier start left out stays out: a run asks one thing.
    started = index_path(run).is_file()
    if started:
        asking = asking.without(read(run).get("left_out", {}))
    before = _before(run, asking) if started else None
    facts: dict[str, Any] = {}
    if before is None:
        # Whatever questions lie here were left by a start that never wrote its index.
        gathered = gather(asking, subjects, data_dir, skip_missing=skip_missing)
        asking, found = asking.without(gathered.left_out), gathered.documents
        facts = {"left_out": gathered.left_out, "partial": gathered.partial}
        for name, documents in found.items():
            write_documents(documents_path(run, name), documents)
        cells = asking.cells({name: len(documents) for name, documents in found.items()})
    else:
        cells = before.cells
        found = {cell.benchmark: read_documents(run, cell.benchmark) for cell in cells}
    plan = _merged(run, plan_of(asking, subjects, cells))
    for tokenizer, asked in _by_tokenizer(subjects).items():
        missing = [
            cell for cell in cells if before is None or not questions_path(run, tokenizer, cell).is_file()
        ]
        if missing:
            _render_for(run, asking, asked, missing, found, data_dir, quiet=quiet)
    identities = {name: _identity(each) for name, each in found.items()}
    note(run, data=where_from(data_dir), documents=identities, seeds=_seeds(asking, cells), **facts)
    write_plan(run, plan)
    index = index_of(asking, subjects, cells)
    if before is not None:
        known = {checkpoint.weights_id for checkpoint in index.checkpoints}
        kept = tuple(each for each in before.checkpoints if each.weights_id not in known)
        index = Index(
            suite=index.suite, asked=index.asked, cells=index.cells, checkpoints=kept + index.checkpoints
        )
    write_index(run, index)
    return index


def _seeds(asking: Asking, cells: Sequence[Cell]) -> dict[str, Any]:
    """What samples documents, and what draws the answers that are not greedy."""
    drawn = {
        cell.benchmark: list(cell.seeds) for cell in cells if cell.how is not None and not cell.how.greedy
    }
    return {"documents": asking.suite.seed, "answers": drawn}


def _before(run: Path, asking: Asking) -> Index:
    """The index of an earlier start of this run, which must ask the same."""
    index = read_index(run)
    where = _difference(index.asked, asking.record)
    if where is not None or index.suite != asking.suite.name:
        raise RunFolderError(
            f"{run}: holds a run of suite {index.suite} that asks something else"
            f"{f' ({where})' if where else ''}; give another --out, or the same suite and options"
        )
    return index


def _difference(old: Any, new: Any, where: str = "") -> str | None:
    """Where two JSON values first differ, in words."""
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        for key in dict.fromkeys((*old, *new)):
            if found := _difference(old.get(key), new.get(key), f"{where}.{key}" if where else str(key)):
                return found
        return None
    if isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        for number, (left, right) in enumerate(zip(old, new, strict=True)):
            name = left.get("benchmark", {}).get("name") if isinstance(left, Mapping) else None
            if found := _difference(left, right, f"{where}[{name or number}]"):
                return found
        return None
    return None if old == new else f"{where}: {_short(old)} there, {_short(new)} here"


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "…"


def _merged(run: Path, plan: Plan) -> Plan:
    """The plan with the checkpoints that were asked here before."""
    if not (Path(run) / "plan.yaml").is_file():
        return plan
    before = read_plan(run)
    if (before.suite, before.benchmarks) != (plan.suite, plan.benchmarks):
        raise RunFolderError(
            f"{run}: holds a run of suite {before.suite} that asks something else; give another --out"
        )
    known = {checkpoint.weights_id for checkpoint in plan.checkpoints}
    kept = [checkpoint for checkpoint in before.checkpoints if checkpoint.weights_id not in known]
    teachers = [each for each in (*kept, *plan.checkpoints) if each.role == "teacher"]
    if len(teachers) > 1:
        raise RunFolderError(f"{run}: its teacher is {teachers[0].label}, not {teachers[1].label}")
    ordered = sorted((*kept, *plan.checkpoints), key=lambda each: each.role != "teacher")
    return plan.model_copy(update={"checkpoints": tuple(ordered), "created": before.created})


def _identity(documents: Sequence[Document]) -> str:
    """One hash over the documents of a benchmark: equal where two runs asked the same."""
    return content_hash([document.doc_id for document in documents])


def _by_tokenizer(subjects: Sequence[Subject]) -> dict[str, list[Subject]]:
    found: dict[str, list[Subject]] = {}
    for subject in subjects:
        found.setdefault(subject.tokenizer_id, []).append(subject)
    return found


def _render_for(
    run: Path,
    asking: Asking,
    subjects: list[Subject],
    cells: Sequence[Cell],
    found: Mapping[str, list[Document]],
    data_dir: Data,
    *,
    quiet: bool,
) -> None:
    encoder = Encoder(subjects[0].tokenizer)
    with progress(total=len(cells), what="render", unit="cell", quiet=quiet) as bar:
        for cell in cells:
            questions = render_cell(
                asking, cell, found[cell.benchmark], encoder, shortest(subjects), data_dir
            )
            write_questions(questions_path(run, subjects[0].tokenizer_id, cell), questions)
            bar.update(1)


def shortest(subjects: Sequence[Subject]) -> int:
    """Positions that all of these read."""
    return min(subject.max_length for subject in subjects)


def render_cell(
    asking: Asking,
    cell: Cell,
    documents: list[Document],
    encoder: Encoder,
    max_length: int,
    data_dir: Data,
) -> list[Question]:
    """Render the documents of one benchmark under one protocol for one tokenizer.

    Of `documents`, all that the benchmark has here, those that the protocol is asked are rendered.
    """
    documents = cell_documents(documents, cell, asking.suite.seed)
    entry, benchmark = next(pair for pair in asking.entries if pair[1].name == cell.benchmark)
    shots = {str(protocol): count for protocol, count in entry.shots.items()}[cell.protocol]
    # Some of EvalScope's benchmarks bring examples of their own.
    examples = shot_rows(benchmark, data_dir=data_dir) if shots and benchmark.draws_shots else []
    harness = build(benchmark, cell.protocol, documents, shots, examples, asking.suite.seed)
    if isinstance(harness, LogLikelihoodBenchmark):
        return harness.questions(encoder, max_length)
    return harness.questions(encoder, template=asking.template, max_length=max_length)


def build(
    benchmark: Benchmark,
    protocol: str,
    documents: Sequence[Document],
    shots: int = 0,
    examples: Sequence[Document] = (),
    seed: int = 0,
) -> Harness:
    """Build the harness side of one benchmark under one protocol."""
    if protocol == "loglikelihood":
        return LogLikelihoodBenchmark(benchmark, documents, shots=shots, examples=examples, seed=seed)
    return GenerationBenchmark(benchmark, documents, shots=shots, examples=examples)


def harness_of(run: Path, index: Index, cell: Cell) -> Harness:
    """Build the harness side of one cell from the run folder alone, for judging.

    Examples play no part in judging, so that neither their data nor the network is needed.
    """
    documents = cell_documents(read_documents(run, cell.benchmark), cell, index.asked["seed"])
    return build(benchmarks_of(index)[cell.benchmark], cell.protocol, documents)
