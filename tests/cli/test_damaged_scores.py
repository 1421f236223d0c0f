"""Damaged score files: a report and a gate refuse them by name, and --score-only writes them again."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from evalsuite.cli import main
from tests.cli.test_damaged_inputs import RUN
from tests.evaluation.conftest import tokenizer
from tests.evaluation.test_shard_validation import built

__all__ = ["built", "tokenizer"]

Damage = Callable[[Path], object]


def table(change: Callable[[pa.Table], pa.Table]) -> Damage:
    """Change the rows; the metadata stays."""

    def damage(path: Path) -> None:
        sound = pq.read_table(path)
        pq.write_table(change(sound).replace_schema_metadata(sound.schema.metadata), path)

    return damage


def metadata(change: Callable[[dict[str, Any]], Any]) -> Damage:
    """Change the metadata; the rows stay."""

    def damage(path: Path) -> None:
        sound = pq.read_table(path)
        value = json.dumps(change(json.loads(sound.schema.metadata[b"evalsuite"])))
        pq.write_table(sound.replace_schema_metadata({b"evalsuite": value}), path)

    return damage


def column(prefix: str, change: Callable[[pa.ChunkedArray], Any]) -> Damage:
    """Change the first column whose name begins with a prefix."""

    def replaced(sound: pa.Table) -> pa.Table:
        at = next(i for i, name in enumerate(sound.column_names) if name.startswith(prefix))
        return sound.set_column(at, sound.column_names[at], change(sound.column(at)))

    return table(replaced)


def content(change: Callable[[bytes], bytes]) -> Damage:
    """Change the bytes."""
    return lambda path: path.write_bytes(change(path.read_bytes()))


def every(value: object) -> Callable[[pa.ChunkedArray], pa.Array]:
    """A column of one value."""
    return lambda old: pa.array([value] * len(old), old.type if value is None else None)


def garbled(data: bytes) -> bytes:
    """Overwrite the pages of the columns; the footer stays."""
    return data[:4] + b"\xff" * (len(data) // 2) + data[4 + len(data) // 2 :]


def as_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def as_dangling_link(path: Path) -> None:
    path.unlink()
    path.symlink_to("nowhere.parquet")


DAMAGES: dict[str, Damage] = {
    "empty": content(lambda data: b""),
    "text": content(lambda data: b"accuracy,0.7\n"),
    "binary": content(lambda data: bytes(range(256))),
    "half": content(lambda data: data[: len(data) // 2]),
    "without its end": content(lambda data: data[:-50]),
    "garbled pages": content(garbled),
    "garbled footer": content(lambda data: data[:-120] + b"\xff" * 100 + data[-20:]),
    "another table": lambda path: pq.write_table(pa.table({"a": [1, 2]}), path),
    "no metadata": lambda path: pq.write_table(pq.read_table(path).replace_schema_metadata(), path),
    "metadata of another type": metadata(lambda value: [value]),
    "metadata without a scorer": metadata(lambda value: value | {"scorer": None}),
    "metadata with an unknown key": metadata(lambda value: value | {"unheard_of": 1}),
    "metadata with a count that is text": metadata(lambda value: value | {"undecided": "none"}),
    "another schema": metadata(lambda value: value | {"schema": 2}),
    "no rows": table(lambda rows: rows.slice(0, 0)),
    "a lost row": table(lambda rows: rows.slice(1)),
    "a repeated row": table(lambda rows: pa.concat_tables([rows, rows.slice(0, 1)])),
    "a repeated column": table(lambda rows: rows.append_column("seed", rows["seed"])),
    "no doc_id": table(lambda rows: rows.drop_columns(["doc_id"])),
    "no detail": table(lambda rows: rows.drop_columns(["detail"])),
    "a seed that is text": column("seed", lambda old: old.cast(pa.string())),
    "a score that is text": column("value.", lambda old: old.cast(pa.string())),
    "a choice that is text": table(
        lambda rows: rows.select([name for name in rows.column_names if name != "choice.acc"]).append_column(
            "choice.acc", pa.array(["A"] * len(rows))
        )
    ),
    "a null doc_id": column("doc_id", every(None)),
    "a null detail": column("detail", every(None)),
    "a detail that is no JSON": column("detail", every("{")),
    "a detail that is a list": column("detail", every("[1]")),
    "a detail with parts of other types": column(
        "detail", every('{"logprobs": 7, "gold": "a", "greedy": {}, "response": [1], "extracted": {"a": 1}}')
    ),
    "a folder": as_folder,
    "a link to nothing": as_dangling_link,
}
ONLY_DETAIL = {name for name in DAMAGES if "detail" in name and name != "no detail"}
"""What a command that reads no detail cannot see."""
OF_GENERATION = sorted(ONLY_DETAIL | {"no detail", "a choice that is text"})
CASES = [*((what, "loglikelihood") for what in DAMAGES), *((what, "generation") for what in OF_GENERATION)]
"""Files of both protocols are read alike, but for details, which hold responses, and choices."""


def told(argv: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    """Run a command; its exit code and what it wrote to stderr."""
    try:
        code = main(argv)
    except SystemExit as stop:
        code = int(stop.code or 0)
    return code, capsys.readouterr().err


@pytest.mark.parametrize(("what", "protocol"), CASES)
def test_report_and_gate_refuse_damaged_scores(
    what: str, protocol: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = Path(shutil.copytree(RUN, tmp_path / "run"))
    path = sorted((run / "scores").glob(f"facts.{protocol}.*"))[0]
    DAMAGES[what](path)
    out = ["--out", str(tmp_path / "out")]
    for argv in (
        ["compare", str(run), *out],
        ["compare", str(run), "--export-samples", *out],
        ["gate", str(run), "--min-recovery", "0.9", *out],
    ):
        code, message = told(argv, capsys)
        assert "Traceback" not in message, message[-600:]
        if code < 64:
            assert what in ONLY_DETAIL, (argv, code)
            continue
        assert path.name in message, message[:400]


def test_score_only_writes_damaged_scores_again(
    built: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = Path(shutil.copytree(built / "host", tmp_path / "run"))
    argv = ["run", str(built / "small.yaml"), "--out", str(run), "--quiet", "--score-only"]
    assert told(argv, capsys)[0] == 0
    files = {path: path.read_bytes() for path in sorted((run / "scores").iterdir())}
    # The parts of a detail are not compared with the responses.
    for what, damage in (each for each in DAMAGES.items() if "parts of other types" not in each[0]):
        path = next(iter(files))
        damage(path)
        code, message = told(argv, capsys)
        assert "Traceback" not in message, (what, message[-600:])
        if what == "a folder":
            assert code >= 64, what
            assert path.name in message, message
            path.rmdir()
            assert told(argv, capsys)[0] == 0
        assert code == 0 or what == "a folder", (what, message)
        assert {each: each.read_bytes() for each in files} == files, what
