"""Pieces: what one machine answered, packed to travel, and added to the run at home.

A piece is the run folder that was answered there (or a ``.tar.xz`` of it), without its requests: the
answers, what `environment.json` says of the machine, the checkpoints that were admitted there, and the loss
curves of those that were asked. Answers are known by their requests, so that pieces may be added in any
order, again, or after the run asked more.
"""

import io
import lzma
import tarfile
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np

from evalsuite.evaluator.admission import admitted_path, read_admitted
from evalsuite.evaluator.curves import keep_curves, read_curve
from evalsuite.evaluator.environment import environment_path, fingerprints, note, read
from evalsuite.evaluator.layout import Asked, Index, index_path, read_index, read_questions, write_index
from evalsuite.foundation import (
    DataError,
    RunFolderError,
    append_jsonl,
    canonical_json,
    read_json,
    read_jsonl,
    write_bytes,
    write_json,
)
from evalsuite.models.engine.store import AnswerStore
from evalsuite.reports.training import curve_path

CHECKPOINTS = "checkpoints.json"
"""In a piece: those asked there, as `requests/index.json` names them."""


def pack(run: Path, out: Path) -> Path:
    """Pack what was answered in `run` into one ``.tar.xz``.

    Log-probabilities are packed as float32, which they were when their tokens were added up.

    Raises:
        RunFolderError: nothing was answered there, or `out` cannot be written.
    """
    run = Path(run)
    journals = sorted((run / "answers").glob("*.jsonl"))
    if not journals:
        raise RunFolderError(f"{run}: nothing is answered here yet")
    index = read_index(run)
    answered = fingerprints(run)
    asked = [each for each in index.checkpoints if each.weights_id in answered]
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:xz") as archive:
        _put(archive, CHECKPOINTS, canonical_json([asdict(each) for each in asked]).encode())
        _put(archive, environment_path(Path()).name, environment_path(run).read_bytes())
        if admitted_path(run).is_file():
            _put(archive, str(admitted_path(Path())), admitted_path(run).read_bytes())
        for journal in journals:
            rows = sorted((_single(row) for row in read_jsonl(journal)), key=lambda row: str(row["key"]))
            _put(archive, f"answers/{journal.name}", _lines(rows))
        for curve in (curve_path(run, each.label) for each in asked):
            if curve.is_file():
                _put(archive, str(curve.relative_to(run)), curve.read_bytes())
    write_bytes(out, buffer.getvalue())
    return out


def answered(run: Path, weights_id: str) -> bool:
    """Whether `run` holds all that it asks of the checkpoint with these weights."""
    fingerprint = fingerprints(run).get(weights_id)
    if fingerprint is None:
        return False
    index, store = read_index(run), AnswerStore(run / "answers")
    tokenizer = next(each.tokenizer for each in index.checkpoints if each.weights_id == weights_id)
    return all(
        store.find(fingerprint, request.key()) is not None
        for cell in index.cells
        for question in read_questions(run, tokenizer, cell)
        for request in cell.requests(question)
    )


def add(run: Path, pieces: Sequence[Path]) -> dict[str, int]:
    """Add what other machines answered.

    Returns:
        Per label, how many answers were new here.

    Raises:
        DataError: a piece that is not one, or with a loss curve that is not whole.
        RunFolderError: answers of an engine other than the one whose answers for these weights are here.
    """
    counts: dict[str, int] = {}
    for piece in pieces:
        with _opened(Path(piece)) as folder:
            for label, count in _add_one(Path(run), folder, str(piece)).items():
                counts[label] = counts.get(label, 0) + count
    return counts


def _add_one(run: Path, piece: Path, name: str) -> dict[str, int]:
    facts = read(piece)
    engines = facts.get("engines", {})
    if not engines:
        raise DataError(f"{name}: not answers of a run (no environment.json that names an engine)")
    asked = _asked(piece)
    index = _with_checkpoints(read_index(run), asked, name)
    labels = index.labels
    here = read(run)
    merged = dict(here.get("engines", {}))
    for weights_id, engine in engines.items():
        if weights_id not in labels:
            raise DataError(f"{name}: holds answers of {weights_id}, which is no checkpoint of {run}")
        before = merged.setdefault(weights_id, engine)
        if before["fingerprint"] != engine["fingerprint"]:
            raise RunFolderError(
                f"{name}: answers of {labels[weights_id]} with fingerprint {engine['fingerprint']}; those in "
                f"{run} have {before['fingerprint']} (another device, dtype or version)"
            )
    curves = {}
    for each in asked:
        path = curve_path(piece, each.label)
        if each.weights_id in engines and path.is_file():
            curves[labels[each.weights_id]] = read_curve(
                path, f"{name}: {path.relative_to(piece)}", "unpack it (a folder is a piece as well)"
            )
    counts = {}
    for weights_id, engine in engines.items():
        journals = sorted((piece / "answers").glob(f"{engine['fingerprint']}.*.jsonl"))
        counts[labels[weights_id]] = sum(_append(run / "answers" / path.name, path) for path in journals)
    admitted = read_admitted(piece)
    if admitted:
        write_json(admitted_path(run), read_admitted(run) | admitted)
    write_index(run, index)
    keep_curves(run, curves)
    machine = {key: facts[key] for key in ("accelerators", "packages", "python", "platform") if key in facts}
    machines = [each for each in here.get("answered_on", []) if each != machine]
    spent = here.get("answering", [])
    spent += [each for each in facts.get("answering", []) if each not in spent]
    note(run, engines=merged, answered_on=[*machines, machine], answering=spent, **_kernels(here, facts))
    return counts


def _kernels(here: dict[str, Any], there: dict[str, Any]) -> dict[str, Any]:
    """Which kernels computed recurrences, here and there together."""
    kernels = here.get("kernels", {}) | there.get("kernels", {})
    return {"kernels": kernels, "backend": there.get("backend", here.get("backend"))} if kernels else {}


def _asked(piece: Path) -> list[Asked]:
    """Whom the machine asked; empty for a folder that holds only answers and their environment."""
    if (piece / CHECKPOINTS).is_file():
        return [Asked(**each) for each in read_json(piece / CHECKPOINTS)]
    return list(read_index(piece).checkpoints) if index_path(piece).is_file() else []


def _with_checkpoints(index: Index, asked: Iterable[Asked], name: str) -> Index:
    checkpoints = list(index.checkpoints)
    for new in asked:
        if any(each.weights_id == new.weights_id for each in checkpoints):
            continue
        if any(each.label == new.label for each in checkpoints):
            raise DataError(f"{name}: the run has another checkpoint called {new.label}")
        checkpoints.append(new)
    return replace(index, checkpoints=tuple(checkpoints))


def _append(path: Path, new: Path) -> int:
    """Append the answers whose keys are not there yet; returns how many."""
    known = {canonical_json(row["key"]) for row in read_jsonl(path)} if path.is_file() else set()
    rows = [row for row in read_jsonl(new) if canonical_json(row["key"]) not in known]
    if rows:
        append_jsonl(path, rows)
    return len(rows)


def _single(row: dict[str, Any]) -> dict[str, Any]:
    answer = row["answer"]
    if "logprobs" not in answer:
        return row
    # The shortest decimal that is the same float32.
    short = [float(str(np.float32(value))) for value in answer["logprobs"]]
    return {**row, "answer": {**answer, "logprobs": short}}


def _lines(rows: Iterable[dict[str, Any]]) -> bytes:
    return "".join(canonical_json(row) + "\n" for row in rows).encode()


def _put(archive: tarfile.TarFile, name: str, data: bytes) -> None:
    entry = tarfile.TarInfo(name)
    entry.size = len(data)
    archive.addfile(entry, io.BytesIO(data))


@contextmanager
def _opened(piece: Path) -> Iterator[Path]:
    """The folder that a piece is, or that it is unpacked to."""
    if piece.is_dir():
        yield piece
        return
    with tempfile.TemporaryDirectory() as folder:
        try:
            with tarfile.open(piece, "r:xz") as archive:
                archive.extractall(folder, filter="data")
        except (OSError, EOFError, lzma.LZMAError, tarfile.TarError) as error:
            raise DataError(f"{piece}: not a piece of a run ({error})") from error
        yield Path(folder)
