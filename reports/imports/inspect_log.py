"""Inspect's logs: `.eval` (a ZIP archive of JSON) and `.json`.

Format: inspect_ai 0.3, log version 2 (`inspect_ai/log/_log.py`). Documents are paired by their input, target
and choices, and only if the messages before the first response are equal.
"""

import re
import sys
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from math import isfinite
from pathlib import Path
from typing import Any

from evalsuite.foundation import DataError, MissingDependencyError, canonical_json
from evalsuite.reports.imports.evalscope import prompt
from evalsuite.reports.imports.fields import Fields, parse_object, read_object, refuse_other_average
from evalsuite.reports.imports.identity import NEUTRAL, identity_of, without_secrets
from evalsuite.reports.imports.importer import IMPORTERS, ImportedBenchmark, ImportedLog, ImportedSample
from evalsuite.reports.imports.listing import Format

_VERSION = 2
_FORMAT = Format(
    title="Inspect",
    name=re.compile(r"\.eval\b|^(copy of )?\d{4}-\d\d-\d\dT\d\d-\d\d-\d\d.*\.json", re.IGNORECASE),
    keys=("version", "status", "eval", "task_id"),
    companions=re.compile(r"^(logs|listing|eval-set|eval_set|eval-set-.*)\.json$"),
)
_ZSTANDARD = 93
"""Compression method of ZIP archives that Python's standard library reads from 3.14 on."""
_LETTERS = {"C": 1.0, "I": 0.0, "P": 0.5, "N": 0.0}
"""Correct, incorrect, partial, no answer: as `inspect_ai.scorer.value_to_float`."""

ReadSamples = Callable[[], list[Fields]]


class Inspect:
    """Importer of Inspect."""

    title = "Inspect"

    def recognises(self, path: Path) -> bool:
        """Whether the path is a log, or a folder of logs."""
        return bool(_FORMAT.logs(path))

    def read(self, path: Path) -> tuple[ImportedLog, ...]:
        """Read every log; those of one model are one checkpoint. Raises DataError, see `Importer`."""
        return tuple(_read_log(file) for file in _FORMAT.listed(path))


IMPORTERS.add("inspect", Inspect())


def _read_log(file: Path) -> ImportedLog:
    header, read_samples = _open_archive(file) if file.suffix == ".eval" else _open_json(file)
    if header.value.get("version") != _VERSION:
        raise DataError(
            f"{file}: 'version' = {header.value.get('version')!r}; evalsuite reads log version {_VERSION}: "
            "convert it with `inspect log convert`"
        )
    status = header.value.get("status")
    if status != "success":
        raise DataError(
            f"{file}: 'status' = {status!r}: the evaluation did not finish; repeat it with "
            "`inspect eval-retry`, or move the log elsewhere"
        )
    task = header.fields("eval")
    model = task.get("model", str)
    packages = task.fields("packages", required=False).value
    return ImportedLog(
        source=file,
        harness="Inspect",
        harness_version=str(packages.get("inspect_ai", "")),
        label=model.rsplit("/", 1)[-1] or model,
        identity=identity_of(
            "Inspect",
            model=model,
            base_url=task.value.get("model_base_url"),
            model_args=task.value.get("model_args"),
            generate_config=task.value.get("model_generate_config"),
            roles=task.value.get("model_roles"),
        ),
        settings={
            "model": model,
            "model_args": without_secrets(task.fields("model_args", required=False).value),
        },
        path=model,
        created=task.get("created", str),
        benchmarks={task.get("task", str): partial(_benchmark, file, header, task, read_samples)},
    )


def _open_json(file: Path) -> tuple[Fields, ReadSamples]:
    log = read_object(file)
    samples = log.value.get("samples")
    rows = samples if isinstance(samples, list) else []
    return log, lambda: [Fields(row, f"{file}, sample {number}") for number, row in enumerate(rows, 1)]


def _open_archive(file: Path) -> tuple[Fields, ReadSamples]:
    names = _members(file)
    if "header.json" not in names:
        raise DataError(
            f"{file}: no header.json: the evaluation did not finish; repeat it with `inspect eval-retry`"
        )
    (header,) = _read_members(file, ["header.json"])
    samples = sorted(name for name in names if name.startswith("samples/") and name.endswith(".json"))
    return header, lambda: _read_members(file, samples)


def _members(file: Path) -> list[str]:
    with _archive(file) as archive:
        if any(each.compress_type == _ZSTANDARD for each in archive.infolist()):
            _need_zstandard(file)
        return archive.namelist()


def _read_members(file: Path, names: Sequence[str]) -> list[Fields]:
    with _archive(file) as archive:
        return [parse_object(archive.read(name), f"{file}, {name}") for name in names]


@contextmanager
def _archive(file: Path) -> Iterator[zipfile.ZipFile]:
    """Open an archive. Raises DataError if it, or a member that is read, is damaged."""
    try:
        with zipfile.ZipFile(file) as archive:
            yield archive
    except (zipfile.BadZipFile, zlib.error, OSError, NotImplementedError, RuntimeError) as error:
        raise DataError(f"{file}: not a readable archive of Inspect ({error})") from error


def _need_zstandard(file: Path) -> None:
    """Make `zipfile` read Zstandard. Raises MissingDependencyError if no installed package can."""
    if sys.version_info >= (3, 14):
        return
    try:
        import zipfile_zstd  # noqa: F401 -- extends zipfile
    except ImportError:
        raise MissingDependencyError(
            f"{file}: compressed with Zstandard; pip install 'evalsuite[import]', or convert the log with "
            "`inspect log convert --to json`"
        ) from None


def _benchmark(file: Path, header: Fields, task: Fields, read_samples: ReadSamples) -> ImportedBenchmark:
    rows = read_samples()
    if not rows:
        raise DataError(f"{file}: no samples; evaluate again with log_samples (the default)")
    samples: dict[tuple[str, int], ImportedSample] = {}
    for row in rows:
        sample = _sample(row)
        key = str(row.value.get("id")), sample.seed
        if key in samples:
            raise DataError(
                f"{row.place}: sample {key[0]} of epoch {key[1] + 1} is there twice, also in "
                f"{samples[key].place}; keep one"
            )
        samples[key] = sample
    ordered = [samples[key] for key in sorted(samples, key=_position)]
    results = header.fields("results", required=False)
    _refuse_other_scores(file, results, samples)
    # 'samples' counts the dataset, 'sample_ids' what `--limit` and `--sample-id` left of it.
    selected = task.fields("dataset", required=False).value.get("sample_ids")
    headline = results.fields("headline", required=False).value.get("scorer")
    metrics = dict.fromkeys(metric for sample in ordered for metric in sample.values)
    config = header.fields("plan", required=False).fields("config", required=False).value
    return ImportedBenchmark(
        name=task.get("task", str),
        source=str(file),
        protocol="generation",
        samples=tuple(ordered),
        documents=max(len(selected) if isinstance(selected, list) else 0, len({key[0] for key in samples})),
        metrics=tuple(sorted(metrics, key=lambda metric: metric != headline)),
        version=str(task.value.get("task_version")),
        sampling=canonical_json({k: v for k, v in config.items() if k not in NEUTRAL and v is not None}),
    )


def _refuse_other_scores(
    file: Path, results: Fields, samples: Mapping[tuple[str, int], ImportedSample]
) -> None:
    """Refuse samples that are not those that the log counts, or whose score is no average over epochs."""
    counts = results.value
    stopped = counts.get("early_stopping") is not None
    logged = counts.get("logged_samples") or counts.get("total_samples")
    if type(logged) is int and not stopped and logged != len(samples):
        raise DataError(
            f"{file}: {len(samples):,} samples, but the log counts {logged:,} ('results'): the file lost "
            "samples; restore it, or evaluate again"
        )
    has_epochs = any(epoch for _, epoch in samples)
    averaged, reducers = set(), {}
    for number, value in enumerate(results.get("scores", list, []), 1):
        score = Fields(value, f"{file}: score {number}")
        scorer, reducer = str(score.value.get("scorer")), score.value.get("reducer")
        reducers[scorer] = reducer
        if has_epochs and reducer not in (None, "mean"):
            continue
        averaged.add(scorer)
        name = str(score.value.get("name"))
        values: dict[str, list[float]] = {}
        for (sample, _), each in samples.items():
            if name in each.values:
                values.setdefault(sample, []).append(each.values[name])
        # Whether a sample that failed has a score is the log's choice.
        numbers = [number for each in values.values() for number in each]
        failed = any(each.error for each in samples.values()) or not all(map(isfinite, numbers))
        if not values or failed or score.value.get("params"):
            continue
        found = sum(sum(each) / len(each) for each in values.values()) / len(values)
        for metric in ("accuracy", "mean"):
            stated = score.fields("metrics", required=False).fields(metric, required=False).value
            if not stated.get("params"):
                place = f"{file}: scorer '{name}'"
                refuse_other_average(place, metric, stated.get("value"), found, count=len(samples))
    for scorer, reducer in reducers.items():
        if scorer not in averaged:
            raise DataError(
                f"{file}: '{scorer}' reduces epochs by {reducer!r}, where evalsuite averages them; score the "
                "log again with the reducer 'mean' (`inspect score`, Epochs(n, 'mean'))"
            )


def _position(key: tuple[str, int]) -> tuple[int, int, str]:
    """Order of a sample: by epoch, then by number or name."""
    name, epoch = key
    return epoch, int(name) if name.isdigit() else -1, name


def _sample(row: Fields) -> ImportedSample:
    error = row.fields("error", required=False).value.get("message")
    scores = row.fields("scores", required=False)
    values: dict[str, float] = {}
    answer = ""
    for name in scores.value:
        score = scores.fields(str(name))
        values |= _values(score, str(name))
        answer = answer or str(score.value.get("answer") or "")
    if not values and error is None:
        raise DataError(f"{row.place}: 'scores' is empty; score the log with `inspect score`")
    choices = row.value.get("choices")
    choices = choices if isinstance(choices, list) else []
    output = row.fields("output", required=False)
    detail: dict[str, Any] = {
        "response": str(output.value.get("completion") or ""),
        "extracted": answer,
        "target": row.value.get("target"),
    }
    return ImportedSample(
        document=[row.value.get("input"), row.value.get("target"), choices],
        prompt=prompt(row.get("messages", list), row.place),
        values=values if error is None else {},
        place=row.place,
        seed=row.get("epoch", int) - 1,
        chance=1 / len(choices) if len(choices) > 1 else None,
        outcome="error" if error is not None else "ok" if answer else "extraction_failed",
        error=None if error is None else str(error),
        detail=detail,
    )


def _values(score: Fields, name: str) -> Mapping[str, float]:
    """Values of one scorer: a letter, a number, true or false, or an object of these."""
    value = score.value.get("value")
    if isinstance(value, Mapping):
        inner = Fields(value, score.place)
        return {f"{name}.{key}": _number(inner, str(key)) for key in value}
    return {name: _number(score, "value")}


def _number(fields: Fields, name: str) -> float:
    value = fields.value.get(name)
    if isinstance(value, str):
        if value.lower() in ("yes", "true", "no", "false"):
            return float(value.lower() in ("yes", "true"))
        if value in _LETTERS:
            return _LETTERS[value]
        try:
            return float(value)
        except ValueError:
            raise DataError(
                f"{fields.place}: '{name}' = {value!r}; expected C, I, P, N or a number: import other "
                "benchmarks only (--benchmark)"
            ) from None
    return fields.real(name)
