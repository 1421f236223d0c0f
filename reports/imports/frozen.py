"""Read logs onto frozen documents, so that logs of different harnesses pair with each other and with runs.

A harness numbers the documents of a task by their rows in its dataset. Where evalsuite has that dataset
frozen, the row gives a sample the id that the document has in every run folder. That it is the same row is
checked by its text.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from evalsuite.foundation import DataError
from evalsuite.reports.imports.importer import ImportedBenchmark, ImportedLog, ImportedSample

_PIECE = 8
"""Characters of the pieces that texts are compared by."""
_SHARE = 0.5
"""Of a row's pieces, those that its sample must have; harnesses clean texts up, which costs some."""


@dataclass(frozen=True, slots=True)
class FrozenDocument:
    """One row of frozen data."""

    doc_id: str
    marks: tuple[frozenset[str], ...]
    """What tells it from other rows in each of its texts, see `marks_of`; the harness shows one at least."""
    cluster: str | None = None


@dataclass(frozen=True, slots=True)
class FrozenTask:
    """What a harness's task is to evalsuite."""

    benchmark: str
    documents: Sequence[FrozenDocument]
    """In the order of the harness's dataset."""


FrozenLookup = Callable[[str, str], FrozenTask | None]
"""Finds the frozen rows of a harness's task; None where evalsuite knows none. Raises DataError."""


def onto_frozen(
    log: ImportedLog, benchmarks: Sequence[ImportedBenchmark], lookup: FrozenLookup
) -> tuple[ImportedBenchmark, ...]:
    """Rename the benchmarks that evalsuite knows, and give their samples the ids of frozen documents.

    Tasks that are subjects of one benchmark become that benchmark.

    Raises:
        DataError: a position beyond the frozen rows, another text than the row's, a document of two tasks, or
            subjects that were evaluated in different ways.
    """
    parts: dict[tuple[str, str], list[ImportedBenchmark]] = {}
    for each in benchmarks:
        task = lookup(log.harness, each.name)
        moved = each if task is None else _moved(each, task)
        parts.setdefault((moved.name, moved.protocol), []).append(moved)
    return tuple(_joined(each) for each in parts.values())


def _moved(benchmark: ImportedBenchmark, task: FrozenTask) -> ImportedBenchmark:
    return replace(
        benchmark,
        name=task.benchmark,
        samples=tuple(_sample(each, benchmark.name, task) for each in benchmark.samples),
        group=None,
        group_weights=(None,),
    )


def _sample(sample: ImportedSample, name: str, task: FrozenTask) -> ImportedSample:
    count, number = len(task.documents), sample.position
    if number is None or not 0 <= number < count:
        raise DataError(
            f"{sample.place}: document {number} of '{name}', but the frozen data of '{task.benchmark}' have "
            f"{count:,} rows, from 0: freeze the data that was evaluated, or leave --data out"
        )
    document = task.documents[number]
    if not _fits(document.marks, sample.text):
        raise DataError(
            f"{sample.place}: document {number} of '{name}' has another text than row {number} of the frozen "
            f"data of '{task.benchmark}' (doc_id {document.doc_id}): freeze the data that was evaluated, or "
            "leave --data out"
        )
    return replace(sample, doc_id=document.doc_id, cluster=document.cluster)


def _fits(marks: Sequence[frozenset[str]], shown: str) -> bool:
    there = _plain(shown)
    return any(sum(piece in there for piece in each) >= max(1, _SHARE * len(each)) for each in marks)


def _joined(parts: Sequence[ImportedBenchmark]) -> ImportedBenchmark:
    """One benchmark of its subjects."""
    first, *rest = parts
    for each in rest:
        for name in ("version", "num_fewshot", "sampling", "metrics"):
            one, other = getattr(first, name), getattr(each, name)
            if one != other:
                raise DataError(
                    f"{each.source}: {name} {other!r}, but {one!r} in {first.source}: these are no subjects "
                    f"of one evaluation of '{first.name}'; import one of them with --benchmark"
                )
    samples = [sample for each in parts for sample in each.samples]
    _refuse_shared(first.name, samples if rest else ())
    return replace(first, samples=tuple(samples), documents=sum(each.documents for each in parts))


def _refuse_shared(name: str, samples: Sequence[ImportedSample]) -> None:
    places: dict[tuple[str | None, int], str] = {}
    for sample in samples:
        other = places.setdefault((sample.doc_id, sample.seed), sample.place)
        if other != sample.place:
            raise DataError(
                f"{sample.place}: a document of '{name}' that {other} has, too; import one of the tasks with "
                "--benchmark"
            )


def marks_of(rows: Sequence[Mapping[str, object]]) -> list[tuple[frozenset[str], ...]]:
    """What tells each row from the others: of its texts, the pieces that no other row has.

    Texts are those of the columns of which most rows have a value of their own, such as a question, or else
    the whole row. A text without a piece of its own is marked by all of its pieces.
    """
    columns = {name: [row[name] for row in rows] for name in (rows[0] if rows else ())}
    chosen = [
        [str(value) for value in values]
        for values in columns.values()
        if all(isinstance(value, str) for value in values) and len(set(values)) > len(values) / 2
    ]
    return list(zip(*map(_marks, chosen or [[str(dict(row)) for row in rows]]), strict=True))


def _marks(texts: Sequence[str]) -> list[frozenset[str]]:
    pieces = [_pieces(_plain(text)) for text in texts]
    counts = Counter(piece for each in pieces for piece in each)
    return [frozenset(piece for piece in each if counts[piece] == 1) or each for each in pieces]


def _plain(text: str) -> str:
    """Letters and digits alone: harnesses change punctuation, case and white space."""
    return "".join(filter(str.isalnum, text)).casefold()


def _pieces(text: str) -> frozenset[str]:
    """Consecutive pieces of a text, and its last one."""
    starts = [*range(0, len(text) - _PIECE, _PIECE), max(len(text) - _PIECE, 0)]
    return frozenset(text[start : start + _PIECE] for start in starts) - {""}
