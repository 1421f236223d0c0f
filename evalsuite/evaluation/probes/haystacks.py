"""Haystacks with one needle: documents of the needle benchmarks, by length and depth, as token ids."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from evalsuite.evaluation.documents import token_counter
from evalsuite.foundation import ConfigError, DataError
from evalsuite.models.diagnostics.state_probe import Haystack
from evalsuite.protocols.tokenization import Encoder
from evalsuite.tasks.benchmark import Benchmark, load_benchmark
from evalsuite.tasks.generator import NeedleMarks, generator_of
from evalsuite.tasks.sources.documents import Document, documents

MAX_DRAWN = 40
"""Documents drawn for each one that is wanted, before a range of depths counts as out of reach."""


@dataclass(frozen=True, slots=True)
class Placed:
    """A haystack and where its needle lies."""

    haystack: Haystack
    context: int
    """Stated length in tokens."""
    depth: float
    """Tokens of the haystack before the needle, in percent of those that are not the needle."""


def needle_benchmark(name: str) -> tuple[Benchmark, NeedleMarks]:
    """Load a benchmark whose documents can be probed, and what marks needle and question in its prompts.

    Raises:
        ConfigError: an unknown benchmark, or one whose prompts do not hold one queried needle.
    """
    benchmark = load_benchmark(name)
    generator, generated = generator_of(benchmark), benchmark.generated
    if generated is None or generator is None or generated.task not in generator.needles:
        raise ConfigError(
            f"--benchmark {name}: its prompts do not hold one needle, as those of niah_single_1 or "
            "pocket_niah_single_1 do (see the `needles` of its generator)"
        )
    return benchmark, generator.needles[generated.task]


def draw_haystacks(
    benchmark: Benchmark,
    marks: NeedleMarks,
    tokenizer: Any,
    context: int,
    depths: Sequence[float],
    count: int,
    *,
    data_dir: Path | str | None = None,
    seed: int = 0,
) -> list[Placed]:
    """The first documents of a benchmark in every range of depths.

    Args:
        benchmark, marks: as `needle_benchmark` returns them.
        tokenizer: a fast tokenizer; it measures the length and places the needle.
        context: length in tokens, the answer's included.
        depths: ascending bounds of the ranges, in percent; the last one belongs to its range.
        count: documents of each range.
        data_dir: frozen data, for haystacks of essays.
        seed: of the documents.

    Returns:
        `count` haystacks of each range, in the order of their documents.

    Raises:
        ConfigError: a length that is too short, or a tokenizer without offsets.
        DataError: a document without needle, or a range of depths that is not reached.
    """
    ranges = list(pairwise(depths))
    wanted = count * len(ranges)
    drawn, limit = 0, wanted
    found: dict[tuple[float, float], list[tuple[int, Placed]]] = {each: [] for each in ranges}
    while any(len(each) < count for each in found.values()):
        if limit > wanted * MAX_DRAWN:
            low, high = next(each for each, members in found.items() if len(members) < count)
            raise DataError(
                f"{benchmark.name} at {context} tokens: {drawn} documents hold {len(found[low, high])} of "
                f"{count} needles at a depth of {low:g} to {high:g} %; use wider --depths or a longer context"
            )
        rows = _documents(benchmark, tokenizer, context, limit, data_dir, seed)
        for number, placed in enumerate(_place(rows[drawn:], benchmark, marks, tokenizer, context), drawn):
            for low, high in ranges:
                inside = low <= placed.depth < high or placed.depth == high == depths[-1]
                if inside and len(found[low, high]) < count:
                    found[low, high].append((number, placed))
        drawn, limit = len(rows), limit * 2
    members = [member for each in found.values() for member in each]
    return [placed for _, placed in sorted(members, key=lambda member: member[0])]


def _documents(
    benchmark: Benchmark, tokenizer: Any, context: int, limit: int, data_dir: Path | str | None, seed: int
) -> list[Document]:
    assert benchmark.generated is not None
    # A benchmark's own count bounds what a run evaluates, not what can be drawn.
    generated = benchmark.generated.model_copy(update={"count": limit})
    return documents(
        benchmark.model_copy(update={"generated": generated}),
        data_dir=data_dir,
        limit=limit,
        seed=seed,
        context=context,
        count_tokens=token_counter(tokenizer, benchmark),
    )


def _place(
    rows: Sequence[Document], benchmark: Benchmark, marks: NeedleMarks, tokenizer: Any, context: int
) -> Iterator[Placed]:
    if not tokenizer.is_fast:
        raise ConfigError("the tokenizer does not tell where its tokens lie in a text, so no needle is found")
    texts = [(document.row["prompt"], f" {_answer(document)}") for document in rows]
    for document, (prompt, answer), (tokens, continuation) in zip(
        rows, texts, Encoder(tokenizer).pairs(texts), strict=True
    ):
        where = f"{benchmark.name}: document {document.doc_id}"
        parts = locate(prompt, answer.strip(), marks, where)
        offsets = tokenizer(prompt, return_offsets_mapping=True)
        if tuple(offsets["input_ids"]) != tokens:
            raise DataError(f"{where}: the tokenizer encodes the prompt alone in another way")
        spans = {name: _tokens(offsets["offset_mapping"], *part) for name, part in parts.items()}
        blank = next((n for n, token in enumerate(continuation) if tokenizer.decode([token]).strip()), None)
        if blank is None or tokenizer.decode(list(continuation)).strip() != answer.strip():
            raise DataError(f"{where}: the tokenizer has no tokens for the answer '{answer.strip()}'")
        (start, end), needle = spans["haystack"], spans["needle"]
        filler = end - start - (needle[1] - needle[0])
        if filler <= 0:
            raise DataError(f"{where}: there is nothing but the needle; use a longer context than {context}")
        yield Placed(
            Haystack(
                doc_id=document.doc_id,
                tokens=(*tokens, *continuation),
                needle=needle,
                value=spans["value"],
                question=spans["question"][0],
                answer=len(tokens),
                answer_value=len(tokens) + blank,
            ),
            context,
            100 * (needle[0] - start) / filler,
        )


def _answer(document: Document) -> str:
    row = document.row
    return str(row["answer"] if "answer" in row else row["answers"][0])


def locate(prompt: str, value: str, marks: NeedleMarks, where: str) -> dict[str, tuple[int, int]]:
    """Bounds in characters of haystack, needle, value and question.

    Args:
        prompt: header line, haystack, question.
        value: what the needle states.
        marks: beginnings of needle and question.
        where: start of messages.

    Raises:
        DataError: no question, or no needle or several with the value before it.
    """
    question = prompt.rfind(marks.question)
    start = prompt.find("\n") + 1
    if question < start or not start:
        raise DataError(f"{where}: the prompt does not end with a question after a haystack")
    place = prompt.find(value, start, question)
    needle = prompt.rfind(marks.needle, start, max(place, start))
    if place < 0 or needle < 0 or prompt.find(value, place + 1, question) >= 0:
        raise DataError(f"{where}: no needle in the context that states '{value}' once")
    end = place + len(value)
    return {
        "haystack": (start, question),
        "needle": (needle, min(end + 1, question)),
        "value": (place, end),
        "question": (question, len(prompt)),
    }


def _tokens(offsets: Sequence[tuple[int, int]], start: int, end: int) -> tuple[int, int]:
    """Bounds of the tokens that overlap characters."""
    inside = [number for number, (a, b) in enumerate(offsets) if a < end and b > start]
    return inside[0], inside[-1] + 1


def check_depths(depths: Sequence[float]) -> None:
    """Raise ConfigError unless these are ascending bounds between 0 and 100."""
    given = " ".join(f"{each:g}" for each in depths)
    if len(depths) < 2 or not (depths[0] >= 0 and depths[-1] <= 100):
        raise ConfigError(f"--depths {given}: give two or more bounds from 0 to 100, such as 0 25 50 75 100")
    if any(a >= b for a, b in pairwise(depths)):
        raise ConfigError(f"--depths {given}: must ascend")
