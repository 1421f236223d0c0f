"""What the sources of a recipe hold, before a token is trained: files, turns, thoughts, lengths, the loss.

A source is read from its start until `DOCUMENTS` documents pass its filters, in the order in which training
reads it, of which the shuffle buffer is a part.
"""

import unicodedata
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import pairwise
from typing import Any

import numpy as np

from evalsuite.distill.data.chat import read_messages, thoughts_of
from evalsuite.distill.data.chunks import Chunk
from evalsuite.distill.data.examples import Example, Parsed
from evalsuite.distill.data.preparation import Preparation, row_of
from evalsuite.distill.data.readers import open_reader
from evalsuite.distill.recipe import Recipe
from evalsuite.distill.recipe.data_sources import (
    DataSourceConfig,
    LocalSourceConfig,
    ResponsesSourceConfig,
    TableSourceConfig,
)
from evalsuite.distill.recipe.stage import Stage
from evalsuite.foundation import ConfigError, DataError
from evalsuite.foundation.thoughts import split_thought

DOCUMENTS = 512
"""Documents of a source that are read."""
MAX_ROWS = 200_000
"""Rows that are read for them; a filter that drops nearly all of them ends there."""
FILE_ROWS = 16_384
"""Rows of local files of which the file is counted."""
SHOWN_CHARACTERS = 600
"""Of a rendered document; the middle of a longer one is left out."""


@dataclass
class Turns:
    """Assistant turns of conversations.

    `thoughts`: turns with one. `empty`: turns without an answer. `out_of_order`: conversations in which a
    speaker follows itself, or an assistant begins. The first row of each is kept for messages.
    """

    total: int = 0
    thoughts: int = 0
    empty: int = 0
    out_of_order: int = 0
    rows: dict[str, str] = field(default_factory=dict)

    def count(self, messages: Sequence[dict[str, Any]], place: str) -> None:
        """Count those of one conversation."""
        spoken = [turn for turn in messages if turn["role"] != "system"]
        own = [turn for turn in spoken if turn["role"] == "assistant"]
        found = {
            "thoughts": sum(bool(thoughts_of(turn)) for turn in own),
            "empty": sum(not split_thought(turn["content"])[1].strip() for turn in own),
            "out_of_order": int(
                any(left["role"] == right["role"] for left, right in pairwise(spoken))
                or (bool(spoken) and spoken[0]["role"] == "assistant")
            ),
        }
        self.total += len(own)
        for name, count in found.items():
            setattr(self, name, getattr(self, name) + count)
            if count:
                self.rows.setdefault(name, place)


@dataclass
class Rows:
    """What was read of a source.

    `count`: rows. `files`: rows by file. `examples`: of the rows that pass the filters. `turns`: of
    conversations; None for other sources. `scripts`: letters by script.
    """

    count: int = 0
    files: Counter[str] = field(default_factory=Counter)
    examples: list[Example] = field(default_factory=list)
    turns: Turns | None = None
    scripts: Counter[str] = field(default_factory=Counter)


@dataclass
class Inspection:
    """One source as one stage reads it.

    `lengths`: tokens of each document. `in_loss`: tokens of it in the loss. `shown`: rendered documents, as
    pieces with whether they are in the loss. `problems`: what would be wrong, each a sentence.
    """

    name: str
    stage: Stage
    source: DataSourceConfig
    rows: Rows = field(default_factory=Rows)
    lengths: list[int] = field(default_factory=list)
    in_loss: list[int] = field(default_factory=list)
    shown: list[list[tuple[str, bool]]] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    @property
    def turns_in_loss(self) -> int:
        """Assistant turns that the template renders as they are."""
        return sum(marked for example in self.rows.examples for _, marked in example.segments)

    def __str__(self) -> str:
        lines = [f"{self.name} in {self.stage.name}: {self.source.origin}"]
        if self.lengths:
            lengths, total, limit = np.array(self.lengths), sum(self.lengths), self.stage.seq_len
            middle, most = np.percentile(lengths, [50, 90])
            lines += [
                f"  documents        {len(lengths):,} of {self.rows.count:,} rows pass the filters",
                f"  files            {_shares(self.rows.files)}",
                f"  scripts          {_shares(self.rows.scripts)}",
                f"  tokens           median {middle:,.0f}, 90 % up to {most:,.0f}, longest {lengths.max():,}",
                f"  over {limit:<12,}{_percent((lengths > limit).mean())} of documents, "
                f"{_percent(lengths[lengths > limit].sum() / total)} of tokens",
                f"  in the loss      {_percent(sum(self.in_loss) / total)} of tokens; "
                f"{self.in_loss.count(0):,} documents without any ({self.stage.loss_mask})",
            ]
            if self.rows.turns is not None and (count := self.rows.turns.total):
                lines.append(
                    f"  assistant turns  {count:,}, {_percent(self.turns_in_loss / count)} in the loss, "
                    f"{_percent(self.rows.turns.thoughts / count)} with thoughts"
                )
        for pieces in self.shown:
            text = "".join(f"⟦{piece}⟧" if marked else piece for piece, marked in pieces)
            lines += ["  | " + line for line in text.rstrip("\n").split("\n")]
            lines.append("")
        lines += [f"  PROBLEM: {problem}" for problem in self.problems]
        return "\n".join(lines).rstrip()


def inspect(recipe: Recipe, tokenizer: Any, *, documents: int = DOCUMENTS) -> Iterator[Inspection]:
    """Yield what each source holds as each stage reads it; problems are collected, not raised.

    Args:
        tokenizer: of the teacher.
        documents: that are read of each source.
    """
    preparation, known = Preparation(recipe.data, tokenizer), dict[str, Rows | str]()
    measured, seen = dict[tuple[str, str], tuple[list[int], list[int]]](), set()
    for stage in recipe.stages:
        for name in stage.mixture:
            source = recipe.data[name]
            if isinstance(source, ResponsesSourceConfig):
                # Its documents do not exist yet; what can be wrong are its prompts.
                name, source = source.prompt_source, recipe.data[source.prompt_source]
            if (key := (name, stage.seq_len, stage.loss_mask)) in seen:
                continue
            seen.add(key)
            if name not in known:
                try:
                    known[name] = _read(name, source, preparation, documents)
                except (ConfigError, DataError) as error:
                    known[name] = str(error)
            rows, found = known[name], Inspection(name, stage, source)
            if isinstance(rows, str):
                found.problems.append(rows)
            else:
                found.rows = rows
                if (masked := (name, stage.loss_mask)) not in measured:
                    measured[masked] = _tokens(name, rows, preparation, stage)
                found.lengths, found.in_loss = measured[masked]
                found.shown = _shown(rows.examples, stage)
                found.problems += _problems(found)
            yield found


def _read(name: str, source: DataSourceConfig, preparation: Preparation, documents: int) -> Rows:
    rows, reader = Rows(), open_reader(source, name)
    column = source.messages if isinstance(source, TableSourceConfig) else None
    rows.turns = None if column is None else Turns()
    for chunk in reader.chunks(reader.start()):
        rows.files[chunk.file.rpartition("/")[2]] += len(chunk.rows)
        if len(rows.examples) < documents and rows.count < MAX_ROWS:
            parsed = preparation.parse(name, chunk)
            rows.count += len(parsed)
            rows.examples += [preparation.segmented(name, each) for each in parsed if each is not None]
            if column is not None and rows.turns is not None:
                _count_turns(rows.turns, column, chunk, parsed)
        elif not isinstance(source, LocalSourceConfig) or sum(rows.files.values()) >= FILE_ROWS:
            break
    if not rows.examples:
        raise DataError(f"data source '{name}': none of {rows.count:,} rows passes the filters")
    for example in rows.examples:
        rows.scripts.update(_scripts(example.text))
    return rows


def _count_turns(turns: Turns, column: str, chunk: Chunk, parsed: Sequence[Parsed | None]) -> None:
    for number, (row, example) in enumerate(zip(chunk.items, parsed, strict=True)):
        if example is not None:
            turns.count(read_messages(row_of(row)[column], column), chunk.place(number))


def _tokens(name: str, rows: Rows, preparation: Preparation, stage: Stage) -> tuple[list[int], list[int]]:
    """Tokens of each document, and those of them in the loss."""
    documents = preparation.tokenize(name, rows.examples, stage.loss_mask == "completion")
    return (
        [len(document.tokens) for document in documents],
        [int(document.loss_mask[1:].sum()) for document in documents],
    )


def _problems(found: Inspection) -> list[str]:
    problems = []
    if not any(found.in_loss):
        problems.append(
            f"no document has a token in the loss with loss_mask '{found.stage.loss_mask}': completions are "
            "empty, or the chat template rewrites them"
        )
    turns = found.rows.turns
    if turns is None:
        return problems
    first = {name: f"the first in {place}" for name, place in turns.rows.items()}
    if turns.empty:
        problems.append(f"{turns.empty:,} assistant turns have no answer, {first['empty']}")
    if turns.out_of_order:
        problems.append(
            f"roles are out of order in {turns.out_of_order:,} conversations, {first['out_of_order']}"
        )
    keeps = isinstance(found.source, TableSourceConfig) and found.source.reasoning == "keep"
    if keeps and 0 < turns.thoughts < turns.total:
        problems.append(
            f"{turns.thoughts:,} of {turns.total:,} assistant turns have thoughts and the others none, "
            f"{first['thoughts']}"
        )
    lost = turns.total - turns.empty - found.turns_in_loss
    if any(found.in_loss) and lost > 0:
        problems.append(
            f"the chat template drops or rewrites {lost:,} assistant turns: nothing is learned there"
        )
    return problems


def _shown(examples: Sequence[Example], stage: Stage) -> list[list[tuple[str, bool]]]:
    """The pieces of the first document and of one in the middle, shortened."""
    chosen = [examples[0], examples[len(examples) // 2]][: len(examples)]
    if stage.loss_mask == "completion":
        return [_shortened(list(example.segments)) for example in chosen]
    return [_shortened([(example.text, True)]) for example in chosen]


def _shortened(pieces: list[tuple[str, bool]]) -> list[tuple[str, bool]]:
    """Each piece keeps its ends: where the loss begins and ends is what one looks for."""
    share = SHOWN_CHARACTERS / max(1, sum(len(text) for text, _ in pieces))
    shown = []
    for text, marked in pieces:
        half = max(40, int(len(text) * share / 2))
        shown.append((text if len(text) <= 2 * half + 3 else f"{text[:half]} … {text[-half:]}", marked))
    return shown


@cache
def _script(letter: str) -> str:
    """The script of a letter, by the first word of its Unicode name; CJK for Han."""
    return unicodedata.name(letter, "unknown").partition(" ")[0]


def _scripts(text: str) -> Counter[str]:
    if text.isascii():
        return Counter(LATIN=sum(map(str.isalpha, text)))
    return Counter(_script(letter) for letter in text if letter.isalpha())


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def _shares(counts: Counter[str]) -> str:
    total = max(1, sum(counts.values()))
    most = [f"{name or 'generated'} {_percent(count / total)}" for name, count in counts.most_common(6)]
    return ", ".join(most + ([f"{len(counts) - 6} more"] if len(counts) > 6 else []))
