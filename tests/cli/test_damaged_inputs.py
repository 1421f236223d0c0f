"""Damaged files end in one message that names them and an exit code of 64 or more, never in a traceback."""

import copy
import json
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from evalsuite.cli import main
from tests.evaluation.conftest import tokenizer
from tests.evaluation.test_shard_validation import built

__all__ = ["built", "tokenizer"]

ROOT = Path(__file__).resolve().parents[2]
RUN = ROOT / "tests/reports/fixtures/passing"

RAW: dict[str, bytes] = {
    "empty": b"",
    "binary": bytes(range(256)),
    "zeros": b"\0" * 1000,
    "not UTF-8": b"name: \xff\xfe\n",
    "a number": b"7",
    "a list": b"[1, 2]",
    "deep": b"[" * 20_000,
    "deep mappings": b"{a: " * 5_000,
    "a long number": b'{"schema": ' + b"9" * 6_000 + b"}",
    "an invalid date": b"name: 2024-13-45\n",
    "aliases": b"a: &a [x, x]\nb: &b [*a, *a]\nc: [*b, *b]\n",
}
"""Contents that are no sound file of any kind."""


def swapped(value: Any) -> Any:
    """A value of another type."""
    return 7 if isinstance(value, dict) else {"unexpected": [1]}


def changed(value: Any, rng: random.Random) -> Iterator[tuple[str, Any]]:
    """Copies of a mapping with an unknown key, or a value of another type, here or one level below."""
    yield "unknown key", value | {"unheard_of": 1}
    for key in value:
        yield f"{key} of another type", value | {key: swapped(value[key])}
        inner = value[key]
        if isinstance(inner, dict) and inner:
            below = rng.choice(sorted(inner))
            other = copy.deepcopy(value)
            other[key][below] = swapped(inner[below])
            yield f"{key}.{below} of another type", other


def damaged(
    path: Path, load: Callable[[str], Any], dump: Callable[[Any], str]
) -> Iterator[tuple[str, bytes]]:
    """Damaged contents of a sound file, and what was done to each."""
    rng = random.Random(path.name)
    text = path.read_text()
    yield from RAW.items()
    for name, value in changed(load(text), rng):
        yield name, dump(value).encode()


def check(argv: list[str], named: str, what: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Run a command on a damaged file."""
    try:
        code = main(argv)
    except SystemExit as stop:
        code = int(stop.code or 0)
    told = capsys.readouterr().err
    assert "Traceback" not in told, f"{named}, {what}: {told[-600:]}"
    assert code >= 64, f"{named}, {what}: exit code {code}"
    assert named in told, f"{named}, {what}: {told[:400]}"
    assert len(told) < 20_000, f"{named}, {what}: {len(told)} characters"


def test_damaged_policies(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "policy.yaml"
    sound = ROOT / "reports/examples/gate.yaml"
    for what, data in damaged(sound, yaml.safe_load, yaml.safe_dump):
        path.write_bytes(data)
        check(
            ["gate", str(RUN), "--policy", str(path), "--out", str(tmp_path / "o")], path.name, what, capsys
        )


def test_damaged_plans(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = Path(shutil.copytree(RUN, tmp_path / "run"))
    for what, data in damaged(RUN / "run.json", json.loads, json.dumps):
        (run / "run.json").write_bytes(data)
        argv = ["gate", str(run), "--min-recovery", "0.9", "--out", str(tmp_path / "o")]
        check(argv, "run.json", what, capsys)


def test_damaged_suites(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "mine.yaml"
    sound = tmp_path / "sound.yaml"
    entry = "{benchmark: pocket_facts, limit: 2}"
    sound.write_text(f"name: s\ntitle: S\nlimit: 4\nlimits: {{generation: 2}}\nbenchmarks: [{entry}]\n")
    for what, data in damaged(sound, yaml.safe_load, yaml.safe_dump):
        path.write_bytes(data)
        argv = ["run", str(path), "--teacher", "pocket", "--out", str(tmp_path / "o"), "--dry-run"]
        check(argv, path.name, what, capsys)


def test_damaged_benchmarks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "mine.yaml"
    for name in ("arc_easy", "gsm8k", "pocket_facts"):
        for what, data in damaged(ROOT / f"tasks/benchmarks/{name}.yaml", yaml.safe_load, yaml.safe_dump):
            path.write_bytes(data)
            check(["show", "benchmark", str(path)], path.name, f"{name}, {what}", capsys)


def test_damaged_shards(built: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    home = Path(shutil.copytree(built / "home", tmp_path / "home"))
    shard = Path(shutil.copytree(built / "shard", tmp_path / "shard"))
    argv = [
        "run",
        str(built / "small.yaml"),
        "--out",
        str(home),
        "--quiet",
        "--score-only",
        "--merge-shards",
        str(shard),
    ]
    for path in sorted(path for path in shard.rglob("*") if path.is_file() and path.suffix == ".json"):
        sound = path.read_bytes()
        for what, data in RAW.items():
            path.write_bytes(data)
            check(argv, path.name, what, capsys)
        path.write_bytes(sound)
    for path in sorted((shard / "responses").iterdir()):
        sound = path.read_bytes()
        for what, data in RAW.items():
            if what != "empty":
                path.write_bytes(data + b"\n")
                check(argv, path.name, what, capsys)
        path.write_bytes(sound)
    for what, data in RAW.items():
        archive = tmp_path / "shard.tar.xz"
        archive.write_bytes(data)
        check([*argv[:-1], str(archive)], archive.name, what, capsys)


@pytest.mark.parametrize("name", ["run.json", "environment.json", "requests", "documents"])
def test_damaged_run_folders(
    name: str, built: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = Path(shutil.copytree(built / "host", tmp_path / "run"))
    argv = ["run", str(built / "small.yaml"), "--out", str(run), "--quiet", "--score-only"]
    path = run / name
    if path.is_dir():
        path = sorted(path.rglob("*.jsonl"))[0]
    sound = path.read_bytes()
    for what, data in RAW.items():
        if path.suffix == ".jsonl":
            data += b"\n"
        path.write_bytes(data)
        check(argv, path.name, what, capsys)
    if path.suffix == ".json":
        for what, value in changed(json.loads(sound), random.Random(0)):
            if "unknown key" not in what and name == "run.json":
                path.write_text(json.dumps(value))
                check(argv, path.name, what, capsys)
