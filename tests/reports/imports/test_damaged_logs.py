"""Every damage of every file of a log: its models are all read as before, or the file is named.

No traceback, and no model that is missing without a word: about 650 damaged folders.
"""

import json
import os
import shutil
import zipfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

from evalsuite.cli.entry import main
from evalsuite.foundation import ConfigError, DataError, EvalsuiteError
from evalsuite.reports.imports import IMPORTERS, find_importer
from tests.damage import DAMAGES, HARMLESS, JSON_DAMAGES, Damage
from tests.reports.imports.logs import EveryEvalEverLog, LmEvalLog, task
from tests.reports.imports.test_stored_logs import FIXTURES

MODELS = ("big", "small")
CUTS: Mapping[str, Damage] = {
    f"cut after {percent} %": lambda path, percent=percent: path.write_bytes(  # type: ignore[misc]
        path.read_bytes()[: path.stat().st_size * percent // 100]
    )
    for percent in range(5, 100, 19)
}


def lm_eval(folder: Path) -> None:
    for seed, model in enumerate(MODELS):
        LmEvalLog(model, {"arc": task(seed, 6), "swag": task(seed + 2, 6)}).write(folder)


def evalscope(folder: Path) -> None:
    shutil.copytree(FIXTURES / "evalscope", folder)
    for path in folder.glob("*/configs/*.yaml"):
        config = yaml.safe_load(path.read_text())
        path.write_text(yaml.safe_dump({key: config[key] for key in ("evalscope_version", "model")}))


def inspect(folder: Path) -> None:
    """Logs as Inspect names them, under other names, and in archives."""
    folder.mkdir()
    for model in MODELS:
        text = (FIXTURES / "inspect" / f"{model}_letters.json").read_text()
        (folder / f"2026-01-02T03-04-05-00-00_letters_{model}.json").write_text(text)
        text = (FIXTURES / "inspect" / f"{model}_sums.json").read_text()
        (folder / f"{model}_sums.json").write_text(text)
        log = json.loads(text)
        log["eval"]["task"] = "archived"
        with zipfile.ZipFile(folder / f"{model}.eval", "w", zipfile.ZIP_DEFLATED) as file:
            for sample in log.pop("samples"):
                file.writestr(f"samples/{sample['id']}_epoch_{sample['epoch']}.json", json.dumps(sample))
            file.writestr("header.json", json.dumps(log))


def every_eval_ever(folder: Path) -> None:
    for model, scores in zip(MODELS, ([1.0, 0.0, 1.0, 1.0], [1.0, 0.0, 0.0, 1.0]), strict=True):
        EveryEvalEverLog(model, scores).write(folder / model)


class Found(NamedTuple):
    documents: int
    weights: tuple[float | None, ...]
    samples: list[Any]


def read(folder: Path) -> dict[tuple[str, str], Found]:
    """Model and benchmark → what is read of it, as `gate` would."""
    name = find_importer(folder)
    if name is None:
        raise DataError(f"{folder}: no log, which ends the command: see test_imports.py of the command line")
    found = {}
    for log in IMPORTERS[name].read(folder):
        for benchmark, read_benchmark in log.benchmarks.items():
            each = read_benchmark()
            values = [(s.document, s.prompt, s.seed, s.outcome, dict(s.values)) for s in each.samples]
            found[log.label, benchmark] = Found(each.documents, each.group_weights, values)
    return found


def damages(file: Path) -> Iterator[tuple[str, Damage]]:
    # A log of Inspect is one file, and nothing else says that there was one.
    whole = "letters" in file.name or "sums" in file.name or file.suffix == ".eval"
    yield from ((name, damage) for name, damage in DAMAGES.items() if not (whole and name == "missing"))
    yield from CUTS.items()
    if file.suffix in (".json", ".jsonl"):
        yield from JSON_DAMAGES.items()


def restore(sound: Path, path: Path) -> None:
    """Put a sound file back, and remove what a damage made of it. Faster than a folder for each damage."""
    for extra in path.parent.iterdir():
        if extra == path or not (sound.parent / extra.name).exists():
            shutil.rmtree(extra) if extra.is_dir() and not extra.is_symlink() else extra.unlink()
    shutil.copy(sound, path)


@pytest.mark.parametrize("write", [lm_eval, evalscope, inspect, every_eval_ever])
def test_a_damaged_file_is_read_as_it_was_or_named(write: Callable[[Path], None], tmp_path: Path) -> None:
    sound = tmp_path / "sound"
    write(sound)
    expected = read(sound)
    folder = tmp_path / "damaged"
    shutil.copytree(sound, folder)
    assert {model for model, _ in expected} == set(MODELS)
    failures, cases = [], 0
    for file in sorted(each for each in sound.rglob("*") if each.is_file() and "small" in str(each)):
        for what, damage in damages(file):
            cases += 1
            damage(folder / file.relative_to(sound))
            place = f"{file.relative_to(sound)}, {what}"
            try:
                found = read(folder)
            except EvalsuiteError as error:
                if what in HARMLESS:
                    failures.append(f"{place}: refused: {error}")
                elif "small" not in str(error) or len(str(error)) > 2_000:
                    failures.append(f"{place}: not named: {str(error)[:200]}")
            except Exception as error:
                failures.append(f"{place}: {type(error).__name__}: {error}")
            else:
                if found.keys() != expected.keys():
                    failures.append(f"{place}: lost {expected.keys() - found.keys()}")
                elif what in HARMLESS and found != expected:
                    failures.append(f"{place}: read in another way")
                elif any(
                    # Every report says of samples that are fewer than planned how many there are.
                    len(each.samples) != len(expected[key].samples) and len(each.samples) >= each.documents
                    for key, each in found.items()
                ):
                    failures.append(f"{place}: lost samples")
            restore(file, folder / file.relative_to(sound))
    assert cases > 80
    assert not failures, f"{len(failures)} of {cases}:\n" + "\n".join(failures)


@pytest.mark.parametrize("what", ["empty", "BOM", "gzip", "missing", "dangling link", "moved down", "NUL"])
def test_the_gate_does_not_pass_without_a_student(
    what: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for model, skill in (("teacher", 9.0), ("good", 9.0), ("bad", 0.0)):
        LmEvalLog(model, {"arc": task(1, 200, skill=skill)}).write(tmp_path / "logs")
    (results,) = (tmp_path / "logs" / "bad").glob("results_*.json")
    DAMAGES[what](results)
    gate = ["gate", str(tmp_path / "logs"), "--teacher", "teacher", "--min-recovery", "0.9"]
    assert main([*gate, "--out", str(tmp_path / "out")]) == 65
    assert "bad" in capsys.readouterr().err


def test_a_folder_that_cannot_be_listed_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lm_eval(tmp_path)
    scandir = os.scandir

    def refusing(path: Any) -> Any:
        if str(path).endswith("small"):
            raise PermissionError(13, "Permission denied", str(path))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refusing)
    with pytest.raises(DataError, match=r"small: cannot be listed \(Permission denied\)"):
        read(tmp_path)


def test_two_formats_in_one_folder_are_stated(tmp_path: Path) -> None:
    lm_eval(tmp_path)
    inspect(tmp_path / "inspect")
    with pytest.raises(ConfigError, match=rf"--import inspect:{tmp_path} lm-eval:{tmp_path}"):
        find_importer(tmp_path)
    models = {log.label for name in ("inspect", "lm-eval") for log in IMPORTERS[name].read(tmp_path)}
    assert models == set(MODELS)


def test_a_link_to_a_folder_is_followed(tmp_path: Path) -> None:
    lm_eval(tmp_path / "elsewhere")
    (tmp_path / "logs").mkdir()
    for model in MODELS:
        (tmp_path / "logs" / model).symlink_to(tmp_path / "elsewhere" / model)
    (tmp_path / "logs" / "round").symlink_to(tmp_path / "logs")
    assert {model for model, _ in read(tmp_path / "logs")} == set(MODELS)
