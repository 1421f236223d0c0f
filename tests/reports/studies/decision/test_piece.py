"""Pieces of the deciding study: what is trained where, and what responds."""

import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from evalsuite import distill
from evalsuite.foundation import CheckpointError, ConfigError, write_text
from evalsuite.reports.studies.decision import piece
from evalsuite.reports.studies.decision.protocol import load_protocol

STUDENTS = tuple(load_protocol().teachers["smollm2"].students)


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> SimpleNamespace:
    """A host with three GPUs whose processes write the students that they are told to train."""
    found = SimpleNamespace(out=tmp_path / "out", started=[], responses=[], broken=())

    def run(command: list[str], env: dict[str, str], **_: Any) -> SimpleNamespace:
        assert command[1:3] == ["-m", "evalsuite.reports.studies.decision.piece"]
        seed = int(command[command.index("--seed") + 1])
        students = command[command.index("--students") + 1 : command.index("--data")]
        found.started.append((env["CUDA_VISIBLE_DEVICES"], seed, tuple(students)))
        if (seed, students[0]) in found.broken:
            return SimpleNamespace(returncode=70)
        for student in students:
            (found.out / "students" / f"{student}-seed{seed}").mkdir(parents=True)
        return SimpleNamespace(returncode=0)

    # `--data` is handed to recipes by this variable.
    monkeypatch.setenv("EVALSUITE_DATA", "")
    monkeypatch.setattr(piece, "visible_gpus", lambda: ("0", "1", "2"))
    monkeypatch.setattr(subprocess, "run", run)
    monkeypatch.setattr(piece, "untrained", lambda *_: ["untrained-windows"])
    monkeypatch.setattr(piece, "respond", lambda *given: found.responses.append(given))
    return found


def command(host: SimpleNamespace, *seeds: int, requests: bool = True, more: tuple[str, ...] = ()) -> None:
    given = ["smollm2", "--teacher", "T", "--data", "D", "--out", str(host.out), *more]
    given += ["--requests", "R"] if requests else []
    piece.main([*given, "--seed", *map(str, seeds)])


def test_every_student_is_trained_once_and_responds(host: SimpleNamespace) -> None:
    command(host, 0, 1)
    assert sorted((seed, students) for _, seed, students in host.started) == [(0, STUDENTS), (1, STUDENTS)]
    ((requests, checkpoints, folder, _, gpus),) = host.responses
    assert (requests, folder, gpus) == (Path("R"), host.out / "smollm2-seed0-seed1", 3)
    labels = [f"{student}-seed{seed}" for seed in (0, 1) for student in STUDENTS]
    assert [Path(each).name for each in checkpoints] == [*labels, "T", "untrained-windows"]
    # Again: nothing is trained.
    command(host, 0, 1)
    assert len(host.started) == 2


def test_a_teacher_that_has_responded_is_left_out(host: SimpleNamespace) -> None:
    command(host, 0, more=("--without-teacher",))
    ((_, checkpoints, *_),) = host.responses
    assert [Path(each).name for each in checkpoints] == [f"{student}-seed0" for student in STUDENTS]


def test_gpus_share_the_students_of_one_seed(host: SimpleNamespace) -> None:
    command(host, 2, requests=False)
    assert {gpu for gpu, _, _ in host.started} == {"0", "1", "2"}
    assert sorted(student for _, _, students in host.started for student in students) == sorted(STUDENTS)
    assert host.responses == []


def test_a_process_that_fails_is_named_and_the_others_respond(host: SimpleNamespace) -> None:
    host.broken = ((1, STUDENTS[0]),)
    with pytest.raises(CheckpointError, match=rf"seed 1, {STUDENTS[0]}.*: exit code 70, see "):
        command(host, 1, 2)
    ((_, checkpoints, *_),) = host.responses
    assert [Path(each).name for each in checkpoints] == [f"{student}-seed2" for student in STUDENTS]


def test_a_student_that_diverged_is_named_and_the_others_respond(
    host: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    def train(_: object, folder: Path, **__: object) -> None:
        for name in STUDENTS[1:]:
            write_text(folder / name / "lineage.json", "{}")
        raise distill.TrainingError(f"{STUDENTS[0]} has diverged")

    monkeypatch.setattr(piece, "visible_gpus", tuple)
    monkeypatch.setattr(distill, "distill", train)
    with pytest.raises(CheckpointError, match=f"{STUDENTS[0]} has diverged"):
        command(host, 0)
    ((_, checkpoints, *_),) = host.responses
    names = [f"{student}-seed0" for student in STUDENTS[1:]]
    assert [Path(each).name for each in checkpoints] == [*names, "T", "untrained-windows"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["smolm2", "--seed", "0"], "unknown teacher 'smolm2'; did you mean 'smollm2'"),
        (["smollm2", "--seed", "7"], "--seed 7: the protocol has 0, 1, 2"),
        (["smollm2", "--seed", "0", "--students", "kd"], "--students kd: unknown; did you mean 'kda'"),
    ],
)
def test_bad_input(host: SimpleNamespace, arguments: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        piece.main([*arguments, "--teacher", "T", "--out", str(host.out)])
    assert host.started == []
