"""One's own questions: files of rows with a question and its answer, such as `questions.jsonl`.

    {"question": "Which is a mammal?", "choices": ["frog", "whale"], "answer": "whale"}
    {"question": "Who wrote Faust?", "answer": "Goethe"}

A file is read once, row by row, up to `MAX_BYTES` and `MAX_ROWS`, so that its size bounds the memory. No row
is dropped: one that cannot be used is refused by its line.
"""

import ast
import codecs
import csv
import gzip
import io
import json
import math
import string
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, fields
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import IO, Any, Literal, cast

from evalsuite.foundation import ConfigError, DataError, file_hash, nearest
from evalsuite.tasks.requested import QUESTION_COLUMNS, QUESTION_FILES

MAX_BYTES = 2**30
"""Size of a file, uncompressed."""
MAX_ROWS = 1_000_000
SHOWN = 3
"""Rows of a file that an error names."""

Row = dict[str, Any]
Kind = Literal["choices", "answers"]

CONVENTIONS: Mapping[str, tuple[str, ...]] = {
    "question": ("question", "prompt", "input"),
    "choices": ("choices", "options"),
    "answer": ("answer", "target", "answers", "gold", "label"),
    "context": ("context", "passage"),
}
"""What a column holds → the names by which it is found."""
_LETTERS = string.ascii_uppercase
_BYTE_ORDER_MARKS = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)


@dataclass(frozen=True, slots=True)
class ColumnNames:
    """Columns of a file; None: found by convention."""

    question: str | None = None
    choices: str | None = None
    answer: str | None = None
    context: str | None = None


@dataclass(frozen=True, slots=True)
class Layout:
    """What the questions of a file look like, found in its first row."""

    question: str
    choices: tuple[str, ...]
    """One column that holds all, or one column per choice; empty: questions without choices."""
    answer: str
    context: str | None
    verbatim: bool
    """Whether prompts are complete, as columns `prompt` and `input` hold them."""

    @property
    def kind(self) -> Kind:
        """What is right: one of several choices, or one of the accepted answers."""
        return "choices" if self.choices else "answers"


@dataclass(frozen=True, slots=True)
class QuestionFile:
    """A file that can be read."""

    path: Path
    layout: Layout

    def rows(self, keep: Iterable[str] = ()) -> list[Row]:
        """Return the questions, in the order of the file.

        Args:
            keep: further columns of the rows, such as one that names subjects.

        Returns:
            Rows {prompt, choices, gold} or {prompt, continuation, answers}, with `question` and `context`.

        Raises:
            DataError: rows that are no questions, by line.
        """
        keep = tuple(keep)
        found: list[Row] = []
        wrong: list[str] = []
        for where, row in records(self.path):
            try:
                found.append(_question(row, self.layout) | {name: _kept(row, name) for name in keep})
            except ValueError as error:
                wrong.append(f"{self.path}, {where}: {error}")
        if wrong:
            more = f"\n… and {len(wrong) - SHOWN:,} more rows" if len(wrong) > SHOWN else ""
            raise DataError("\n".join(wrong[:SHOWN]) + more)
        return found


def open_questions(path: Path, columns: ColumnNames = ColumnNames()) -> QuestionFile:
    """Check that a file can be read, and find its columns in its first row.

    Raises:
        ConfigError: no such file, or an unknown kind of file.
        DataError: the file is too large, empty or damaged, or lacks a column.
    """
    check_file(path)
    with closing(records(path)) as rows:
        first = next(rows, None)
    if first is None:
        raise DataError(f"{path}: has no rows")
    try:
        layout = _layout(first[1], columns)
    except ValueError as error:
        raise DataError(f"{path}: {error}") from None
    return QuestionFile(path, layout)


def hash_of(path: Path) -> str:
    """Return the SHA-256 of a file of questions. Raises as `check_file`."""
    check_file(path)
    return _hashed(path)


def check_file(path: Path) -> None:
    """Raise ConfigError or DataError for a file that is missing, of an unknown kind or too large."""
    if _suffix(path) is None:
        raise ConfigError(f"{path}: not a file of questions; known: {', '.join(QUESTION_FILES)}")
    if not path.is_file():
        raise ConfigError(f"{path}: no such file")
    if path.stat().st_size > MAX_BYTES:
        raise DataError(_too_large(path))


def check_unchanged(path: Path, sha256: str) -> None:
    """Raise DataError if a file is no longer the one that was hashed."""
    if _hashed(path) != sha256:
        raise DataError(f"{path}: the file was changed while it was read; repeat the command")


def records(path: Path) -> Generator[tuple[str, Row], None, None]:
    """Yield every row as it stands in the file, after where it stands.

    Raises:
        DataError: the file is too large, damaged, or not in UTF-8 (UTF-16 and UTF-32 need a byte-order mark).
    """
    suffix = _suffix(path)
    if suffix == ".parquet":
        source = _parquet(path)
    elif suffix in (".csv", ".tsv"):
        source = _separated(path, "\t" if suffix == ".tsv" else ",")
    else:
        source = _json_lines(path)
    try:
        for number, found in enumerate(source, 1):
            if number > MAX_ROWS:
                raise DataError(f"{path}: has more than {MAX_ROWS:,} rows; {_split_hint(path, MAX_ROWS)}")
            yield found
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error})") from error


def _suffix(path: Path) -> str | None:
    return next((suffix for suffix in QUESTION_FILES if path.name.endswith(suffix)), None)


def _hashed(path: Path) -> str:
    stat = path.stat()
    return _hash_once(path.absolute(), stat.st_size, stat.st_mtime_ns)


@lru_cache(maxsize=64)
def _hash_once(path: Path, size: int, changed: int) -> str:
    return file_hash(path)


def _too_large(path: Path) -> str:
    size = path.stat().st_size
    rows = ""
    if _suffix(path) in (".jsonl", ".csv", ".tsv"):
        with open(path, "rb") as file:
            sample = file.read(2**20)
        fit = MAX_BYTES * max(1, sample.count(b"\n")) // len(sample)
        rows = f", about {min(fit, MAX_ROWS):,} rows of it; {_split_hint(path, min(fit, MAX_ROWS))}"
    return f"{path}: has {size / 2**30:.1f} GiB, and at most {MAX_BYTES / 2**30:g} GiB are read{rows}"


def _split_hint(path: Path, rows: int) -> str:
    if _suffix(path) == ".parquet":
        return "write fewer rows"
    header = 0 if _suffix(path) == ".jsonl" else 1
    return f"`shuf -n {rows}`" + (" (and its header)" if header else "") + " draws a sample"


# Text


def _lines(path: Path) -> Iterator[str]:
    """Yield the lines of a text file with their ends. Raises DataError for bytes in another encoding."""
    size = 0
    with _opened(path) as file:
        encoding, skip = _encoding(path, file)
        if encoding != "utf-8":
            file.seek(0)
            yield from _decoded(path, io.TextIOWrapper(file, encoding=encoding, newline=""))
            return
        file.seek(skip)
        try:
            for number, line in enumerate(file, 1):
                size += len(line)
                if size > MAX_BYTES:
                    raise DataError(f"{path}: has more than {MAX_BYTES / 2**30:g} GiB uncompressed")
                yield _utf8(path, number, line)
        except EOFError as error:
            raise DataError(f"{path}: is cut off ({error})") from error


def _opened(path: Path) -> IO[bytes]:
    return cast(IO[bytes], gzip.open(path, "rb")) if path.suffix == ".gz" else open(path, "rb")


def _encoding(path: Path, file: IO[bytes]) -> tuple[str, int]:
    """Return the encoding of a file, and the length of its byte-order mark."""
    start = file.read(4)
    for mark, encoding in _BYTE_ORDER_MARKS:
        if start.startswith(mark):
            return encoding, len(mark)
    if b"\0" in start:
        raise DataError(
            f"{path}: looks like UTF-16 without a byte-order mark; `iconv -f UTF-16LE -t UTF-8` converts it"
        )
    return "utf-8", 0


def _utf8(path: Path, number: int, line: bytes) -> str:
    try:
        return line.decode()
    except UnicodeDecodeError as error:
        raise DataError(
            f"{path}, line {number}: not UTF-8 (byte 0x{line[error.start]:02x} at {error.start + 1}); "
            "`iconv -f LATIN1 -t UTF-8` converts a file in Latin-1"
        ) from None


def _decoded(path: Path, file: io.TextIOWrapper) -> Iterator[str]:
    try:
        yield from file
    except UnicodeError as error:
        encoding = file.encoding.upper()
        raise DataError(f"{path}: not {encoding}, as its byte-order mark says ({error})") from None


def _json_lines(path: Path) -> Iterator[tuple[str, Row]]:
    for number, line in enumerate(_lines(path), 1):
        if not line.strip():
            continue
        where = f"line {number}"
        try:
            if number == 1 and line.lstrip()[:1] == "[":
                raise ValueError("an array; write one object per line, as `jq -c '.[]'` does")
            row = json.loads(line, object_pairs_hook=_distinct)
        except (ValueError, RecursionError) as error:
            raise DataError(f"{path}, {where}: not a JSON object ({error})") from None
        if not isinstance(row, dict):
            raise DataError(f"{path}, {where}: not a JSON object (found {type(row).__name__})")
        yield where, row


def _distinct(pairs: Sequence[tuple[str, Any]]) -> Row:
    row = dict(pairs)
    if len(row) < len(pairs):
        names = [name for name, _ in pairs]
        repeated = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"'{repeated}' is given twice")
    return row


def _separated(path: Path, delimiter: str) -> Iterator[tuple[str, Row]]:
    """Yield the rows of a CSV or TSV file; every cell is text, whatever it begins with."""
    lines = _lines(path)
    reader = csv.reader(lines, delimiter=delimiter, strict=True)
    before = csv.field_size_limit(MAX_BYTES)
    try:
        header = next(reader, None)
        if header is None:
            return
        repeated = next((name for name in header if header.count(name) > 1), None)
        if repeated is not None:
            raise DataError(f"{path}: two columns are named '{repeated}'; rename one")
        start = reader.line_num + 1
        for cells in reader:
            where, start = f"line {start}", reader.line_num + 1
            if not cells:
                continue
            if len(cells) != len(header):
                raise DataError(
                    f"{path}, {where}: has {len(cells)} cells, the header has {len(header)}; quote cells "
                    "that hold a delimiter or a line break"
                )
            yield where, dict(zip(header, cells, strict=True))
    except csv.Error as error:
        raise DataError(f"{path}, line {reader.line_num}: not {path.suffix[1:].upper()} ({error})") from None
    finally:
        csv.field_size_limit(before)


def _parquet(path: Path) -> Iterator[tuple[str, Row]]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(path) as file:
            meta = file.metadata
            size = sum(meta.row_group(each).total_byte_size for each in range(meta.num_row_groups))
            if size > MAX_BYTES or meta.num_rows > MAX_ROWS:
                raise DataError(
                    f"{path}: has {meta.num_rows:,} rows ({size / 2**30:.1f} GiB uncompressed), and at most "
                    f"{MAX_ROWS:,} rows and {MAX_BYTES / 2**30:g} GiB are read; {_split_hint(path, 0)}"
                )
            number = 0
            for batch in file.iter_batches(1024):
                for row in batch.to_pylist():
                    number += 1
                    yield f"row {number}", row
    except pa.ArrowException as error:
        raise DataError(f"{path}: cannot be read as parquet ({error})") from error


# Questions


def _layout(row: Row, columns: ColumnNames) -> Layout:
    """Find the columns of a row. Raises ValueError for one that is missing, or that two could be."""
    question = _column(row, "question", columns.question)
    if question is None:
        raise ValueError(_missing(row, "question"))
    choices = _column(row, "choices", columns.choices)
    lettered = tuple(name for name in islice(_LETTERS, len(row)) if name in row)
    several = (choices,) if choices is not None else lettered if lettered[:2] == ("A", "B") else ()
    if choices is None and several and lettered != tuple(_LETTERS[: len(lettered)]):
        raise ValueError(f"has the choices {', '.join(lettered)}, of which one is missing; rename a column")
    answer = _column(row, "answer", columns.answer)
    if answer is None:
        raise ValueError(_missing(row, "answer"))
    context = _column(row, "context", columns.context)
    return Layout(question, several, answer, context, question.lower() in ("prompt", "input"))


def _column(row: Row, what: str, named: str | None) -> str | None:
    if named is not None:
        if named not in row:
            raise ValueError(f"has no column '{named}' ({what}){nearest(named, row)}")
        return named
    found = [name for name in row if name.strip().lower() in CONVENTIONS[what]]
    if len(found) > 1:
        raise ValueError(
            f"{' and '.join(map(repr, found))} could both be the {what}; name one: FILE:{what}={found[0]}"
        )
    return found[0] if found else None


def _missing(row: Row, what: str) -> str:
    names = CONVENTIONS[what]
    close = next((hint for name in names if "did you mean" in (hint := nearest(name, row))), "")
    guess = close.split("'")[1] if close else "COLUMN"
    columns = ", ".join(map(str, row)) or "none"
    return (
        f"has no column of the {what} ({', '.join(names)}); it has {columns}{close}; name it: "
        f"FILE:{what}={guess}"
    )


def _kept(row: Row, name: str) -> Any:
    if name not in row:
        raise ValueError(f"has no column '{name}'{nearest(name, row)}")
    return None if row[name] is None else str(row[name])


def _question(row: Row, layout: Layout) -> Row:
    """Return a row as a question. Raises ValueError for one without a question or a right answer."""
    question = _text(row.get(layout.question))
    if not question.strip():
        near = "" if layout.question in row else nearest(layout.question, row)
        raise ValueError(f"no question in '{layout.question}'{near}")
    context = _text(row.get(layout.context)).strip() if layout.context is not None else ""
    if layout.verbatim:
        prompt = f"{context}\n\n{question}" if context else question
    else:
        question = question.strip()
        prompt = (
            f"{context}\n\nQuestion: {question}\nAnswer:" if context else f"Question: {question}\nAnswer:"
        )
    found: Row = {"question": question, "context": context, "prompt": prompt}
    space = "" if prompt[-1:].isspace() else " "
    if layout.kind == "choices":
        choices = _choices(row, layout)
        gold = _gold(row, layout, choices)
        return found | {"choices": [space + choice for choice in choices], "gold": gold}
    answers = _answers(row.get(layout.answer), layout.answer)
    return found | {"continuation": space + answers[0], "answers": answers}


def _text(value: Any) -> str:
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return ""
    if isinstance(value, bool | list | dict | tuple | bytes):
        raise ValueError(f"{str(value)[:60]} is no text")
    text = str(value)
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError:
            raise ValueError("holds one half of a surrogate pair, which is no text") from None
    return text


def _choices(row: Row, layout: Layout) -> list[str]:
    if len(layout.choices) > 1:
        # Fewer choices leave the last cells empty.
        cells = [_text(row.get(name)).strip() for name in layout.choices]
        while cells and not cells[-1]:
            cells.pop()
        values: Any = cells
    else:
        values = row.get(layout.choices[0])
    if isinstance(values, str):
        values = _parsed_list(values)
    if isinstance(values, dict) and isinstance(values.get("text"), list):
        values = values["text"]
    if not isinstance(values, list):
        near = "" if layout.choices[0] in row else nearest(layout.choices[0], row)
        raise ValueError(f"no list of choices in '{layout.choices[0]}'{near}")
    choices = [_text(value).strip() for value in values]
    if len(choices) < 2:
        raise ValueError(f"{len(choices)} choices; a question with choices has at least 2")
    if "" in choices:
        raise ValueError(f"choice {choices.index('') + 1} is empty")
    if repeated := next((each for each in choices if choices.count(each) > 1), None):
        raise ValueError(f"the choice {repeated!r} is given twice")
    return choices


def _parsed_list(text: str) -> Any:
    """Parse a cell: a list as JSON or as Python prints it, else texts between bars."""
    for parse in (json.loads, ast.literal_eval) if text.lstrip()[:1] in ("[", "{") else ():
        try:
            return parse(text)
        except (ValueError, SyntaxError, RecursionError, MemoryError):
            continue
    return text.split("|") if "|" in text else None


def _answers(value: Any, column: str) -> list[str]:
    """Return the accepted answers of a row."""
    if isinstance(value, dict) and isinstance(value.get("text"), list):
        value = value["text"]
    if isinstance(value, str) and value.lstrip()[:1] == "[" and isinstance(_parsed_list(value), list):
        value = _parsed_list(value)
    values = value if isinstance(value, list) else [value]
    answers = list(dict.fromkeys(text for each in values if (text := _text(each).strip())))
    if not answers:
        raise ValueError(f"no answer in '{column}'")
    return answers


def _gold(row: Row, layout: Layout, choices: Sequence[str]) -> int:
    """Return the index of the right choice, which a row gives as index, letter or text."""
    value = row.get(layout.answer)
    if isinstance(value, list | tuple):
        if len(value) > 1:
            raise ValueError(f"two answers in '{layout.answer}' ({value[0]!r}, {value[1]!r}); one is right")
        value = value[0] if value else None
    labels = row.get(layout.choices[0])
    labels = labels.get("label") if isinstance(labels, dict) else None
    text = _text(value).strip()
    if not text:
        near = "" if layout.answer in row else nearest(layout.answer, row)
        raise ValueError(f"no answer in '{layout.answer}'{near}")
    if isinstance(labels, list) and text in map(str, labels):
        return list(map(str, labels)).index(text)
    if isinstance(value, float) and value.is_integer():
        text = str(int(value))
    ways = {
        "text": choices.index(text) if text in choices else None,
        "letter": _LETTERS.find(text.upper()) if len(text) == 1 and text.isalpha() else None,
        "index": int(text) if text.isascii() and text.isdigit() else None,
    }
    valid = {way: at for way, at in ways.items() if at is not None and 0 <= at < len(choices)}
    if not valid:
        raise ValueError(
            f"the answer {text!r} is no choice: give its index from 0 to {len(choices) - 1}, its letter from "
            f"A to {_LETTERS[min(len(choices), 26) - 1]}, or its text"
        )
    if len(set(valid.values())) > 1:
        either = " or ".join(f"{choices[at]!r} by {way}" for way, at in valid.items())
        raise ValueError(f"the answer {text!r} means {either}; give the {_other(valid, text)}")
    return next(iter(valid.values()))


def _other(ways: Mapping[str, int], text: str) -> str:
    """What would tell the ways apart that an answer can be read."""
    return "index" if "letter" in ways else "letter"


def columns_of(names: Mapping[str, str]) -> ColumnNames:
    """Return columns by what they hold. Raises ConfigError for an unknown key."""
    known = [each.name for each in fields(ColumnNames)]
    assert tuple(known) == QUESTION_COLUMNS
    for name in names:
        if name not in known:
            raise ConfigError(f"unknown column '{name}'{nearest(name, known)}")
    return ColumnNames(**names)
