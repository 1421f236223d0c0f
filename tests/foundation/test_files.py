"""Files are whole or absent, and logs survive torn lines, full disks and concurrent writers."""

import fcntl
import multiprocessing
import os
import resource
import signal
import threading
from pathlib import Path

import pytest

from evalsuite.foundation import (
    DataError,
    RunFolderError,
    append_jsonl,
    locked,
    read_json,
    read_jsonl,
    write_json,
    write_text,
)
from evalsuite.foundation import files as files_module


def test_a_torn_last_line_is_neither_read_nor_swallows_the_next_row(tmp_path: Path) -> None:
    log = tmp_path / "answers.jsonl"
    append_jsonl(log, [{"n": 1}, {"n": 2}])
    with open(log, "ab") as file:
        file.write(b'{"n": 3, "half')
    assert [row["n"] for row in read_jsonl(log)] == [1, 2]
    append_jsonl(log, [{"n": 4}])
    assert [row["n"] for row in read_jsonl(log)] == [1, 2, 4]


def test_a_torn_line_longer_than_one_read_is_cut_whole(tmp_path: Path) -> None:
    log = tmp_path / "answers.jsonl"
    append_jsonl(log, [{"n": 1}])
    with open(log, "ab") as file:
        file.write(b"x" * 200_000)
    append_jsonl(log, [{"n": 2}])
    assert [row["n"] for row in read_jsonl(log)] == [1, 2]


def test_a_broken_line_in_the_middle_is_an_error_that_names_it(tmp_path: Path) -> None:
    log = tmp_path / "answers.jsonl"
    log.write_bytes(b'{"n": 1}\nnot json\n{"n": 2}\n')
    with pytest.raises(DataError, match="line 2"):
        list(read_jsonl(log))


def _append_many(path: Path, writer: int) -> None:
    for number in range(50):
        append_jsonl(path, [{"writer": writer, "number": number, "pad": "x" * 500}])


def test_two_processes_append_without_mixing_lines(tmp_path: Path) -> None:
    log = tmp_path / "answers.jsonl"
    context = multiprocessing.get_context("spawn")
    writers = [context.Process(target=_append_many, args=(log, n)) for n in range(2)]
    for process in writers:
        process.start()
    for process in writers:
        process.join()
    rows = list(read_jsonl(log))
    assert sorted((row["writer"], row["number"]) for row in rows) == [
        (w, n) for w in range(2) for n in range(50)
    ]


def test_a_write_that_fails_leaves_the_old_file_and_no_temporary_one(tmp_path: Path) -> None:
    target = tmp_path / "plan.yaml"
    write_text(target, "old")
    if os.geteuid() == 0:
        # Root ignores permission bits, so the failure is made by a parent that is a file.
        with pytest.raises(RunFolderError, match=r"plan\.yaml"):
            write_text(target / "child", "new")
    else:
        tmp_path.chmod(0o500)
        with pytest.raises(RunFolderError, match=r"plan\.yaml"):
            write_text(target, "new")
        tmp_path.chmod(0o700)
    assert target.read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["plan.yaml"]


def _append_until_the_disk_is_full(path: Path, outcome: "multiprocessing.Queue[str]") -> None:
    # A limit on file size stands in for a full disk: the kernel writes what fits and then refuses.
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))
    try:
        append_jsonl(path, [{"pad": "x" * 500}])
    except RunFolderError as error:
        outcome.put(str(error))


def test_a_full_disk_is_named_and_leaves_no_partial_row(tmp_path: Path) -> None:
    log = tmp_path / "answers.jsonl"
    append_jsonl(log, [{"n": 1}])
    context = multiprocessing.get_context("spawn")
    outcome = context.Queue()
    process = context.Process(target=_append_until_the_disk_is_full, args=(log, outcome))
    process.start()
    assert "cannot be appended to" in outcome.get(timeout=60)
    process.join()
    assert log.read_bytes() == b'{"n": 1}\n'


def test_nan_is_never_written(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        write_json(tmp_path / "scores.json", {"score": float("nan")})
    assert not (tmp_path / "scores.json").exists()


def test_a_second_holder_is_refused_when_it_does_not_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files_module, "GRACE", 0.1)
    with (
        locked(tmp_path / ".lock"),
        pytest.raises(RunFolderError, match="another evalsuite process"),
        locked(tmp_path / ".lock", wait=False),
    ):
        pass


def test_what_a_killed_process_leaves_behind_may_let_go_a_moment_later(tmp_path: Path) -> None:
    held = os.open(tmp_path / ".lock", os.O_CREAT | os.O_RDWR)
    fcntl.flock(held, fcntl.LOCK_EX)
    threading.Timer(0.2, os.close, (held,)).start()
    with locked(tmp_path / ".lock", wait=False):
        other = os.open(tmp_path / ".lock", os.O_RDWR)
        with pytest.raises(BlockingIOError):
            fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.close(other)


def _write_and_die(path: Path) -> None:
    # As if killed between writing the temporary file and putting it in place.
    os.replace = lambda *_: os.kill(os.getpid(), signal.SIGKILL)  # type: ignore[assignment]
    write_text(path, "new")


def test_temporary_files_of_killed_processes_are_removed(tmp_path: Path) -> None:
    process = multiprocessing.get_context("spawn").Process(
        target=_write_and_die, args=(tmp_path / "scores" / "a.jsonl",)
    )
    process.start()
    process.join()
    (left,) = (tmp_path / "scores").iterdir()
    assert left.name.startswith(".a.jsonl.")
    others = {".lock", ".gitignore", ".hidden.abc", "b.jsonl", ".cache"}
    for name in others:
        (tmp_path / "scores" / name).write_text("mine")
    remove = getattr(files_module, "remove_leftovers", lambda folder: None)
    remove(tmp_path)
    assert {path.name for path in (tmp_path / "scores").iterdir()} == others


def test_a_temporary_file_in_use_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    replace, seen = os.replace, []

    def look(source: str, target: Path) -> None:
        files_module.remove_leftovers(tmp_path)
        seen.append(Path(source).is_file())
        replace(source, target)

    monkeypatch.setattr(os, "replace", look)
    write_text(tmp_path / "plan.yaml", "new")
    assert seen == [True]
    assert (tmp_path / "plan.yaml").read_text() == "new"


def test_an_interrupted_write_leaves_no_temporary_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", interrupt)
    with pytest.raises(KeyboardInterrupt):
        write_text(tmp_path / "plan.yaml", "new")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("text", ["NaN", '{"a": Infinity}', "[" * 100_000, "1" * 5000, "\udcff", "{"])
def test_what_is_not_json_is_named(text: str, tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(DataError, match=r"x\.json: not JSON"):
        read_json(path)
    path.write_bytes(path.read_bytes() + b"\n")
    with pytest.raises(DataError, match=r"x\.json, line 1: not JSON"):
        list(read_jsonl(path))
