"""EvalScope's work folder: `configs/task_config*.yaml` and `reviews/<model>/<dataset>_<subset>.jsonl`.

Format: EvalScope 1.14. Its `sample_id` is a position in the dataset, not a content hash: documents are paired
by position and target, and only if their prompts are equal.
"""

from collections.abc import Mapping
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from evalsuite.foundation import ConfigError, DataError, canonical_json
from evalsuite.foundation.strict_yaml import read_yaml_value
from evalsuite.reports.imports.fields import Fields, read_lines, read_object
from evalsuite.reports.imports.importer import IMPORTERS, ImportedBenchmark, ImportedLog, ImportedSample

_REPORT_SCHEMA = 2
_WHOLE = ("main", "default", "test")
"""Subsets that are the whole dataset, and that its name need not mention."""


class EvalScope:
    """Importer of EvalScope."""

    title = "EvalScope"

    def recognises(self, path: Path) -> bool:
        """Whether the path is a work folder with reviews."""
        return path.is_dir() and bool(_configs(path)) and (path / "reviews").is_dir()

    def read(self, path: Path) -> tuple[ImportedLog, ...]:
        """Read the reviews of every model; raises DataError, see `Importer`."""
        configs = _configs(path) if path.is_dir() else []
        if len(configs) != 1:
            raise DataError(
                f"{path}: {len(configs)} files configs/task_config*.yaml; expected the work folder of one "
                "evaluation by EvalScope"
            )
        config = _read_config(configs[0])
        models = sorted(each for each in (path / "reviews").glob("*") if each.is_dir())
        if not models:
            raise DataError(f"{path}/reviews: no reviews; evaluate again without removing them")
        return tuple(_read_model(path, folder, config, configs[0]) for folder in models)


IMPORTERS.add("evalscope", EvalScope())


def _configs(path: Path) -> list[Path]:
    return sorted((path / "configs").glob("task_config*.yaml"))


def _read_config(path: Path) -> Fields:
    try:
        config = Fields(read_yaml_value(path), str(path))
    except ConfigError as error:
        raise DataError(str(error)) from None
    if "evalscope_version" not in config.value:
        raise DataError(
            f"{path}: 'evalscope_version' is missing; evalsuite reads the logs of EvalScope 1.14: evaluate "
            "again with it"
        )
    return config


def _read_model(path: Path, folder: Path, config: Fields, file: Path) -> ImportedLog:
    files = sorted(folder.glob("*.jsonl"))
    if not files:
        raise DataError(f"{folder}: no reviews (*.jsonl)")
    reports = {
        report.stem: _read_report(report)
        for report in sorted((path / "reports" / folder.name).glob("*.json"))
    }
    return ImportedLog(
        source=path,
        harness="EvalScope",
        harness_version=config.get("evalscope_version", str),
        label=folder.name,
        identity={"harness": "EvalScope", "model": folder.name, "model_args": _plain(config, "model_args")},
        settings={"eval_type": config.value.get("eval_type"), "model": str(config.value.get("model"))},
        path=str(config.value.get("model")),
        created=datetime.fromtimestamp(file.stat().st_mtime, UTC).isoformat(timespec="seconds"),
        benchmarks={_name(each, reports): partial(_read_reviews, each, config, reports) for each in files},
    )


def _plain(config: Fields, name: str) -> str:
    return canonical_json(dict(config.fields(name, required=False).value))


def _read_report(path: Path) -> Fields:
    report = read_object(path)
    if report.value.get("schema_version") != _REPORT_SCHEMA:
        raise DataError(
            f"{path}: 'schema_version' = {report.value.get('schema_version')!r}; evalsuite reads "
            f"{_REPORT_SCHEMA}, of EvalScope 1.14: evaluate again with it"
        )
    return report


def _dataset(path: Path, reports: Mapping[str, Fields]) -> str | None:
    """The dataset of a file of reviews: the longest name of a report that its name starts with."""
    names = sorted(reports, key=len, reverse=True)
    return next((name for name in names if path.stem.startswith(f"{name}_")), None)


def _name(path: Path, reports: Mapping[str, Fields]) -> str:
    """Name of the benchmark; that of the file if the dataset has no report, which reading it refuses."""
    dataset = _dataset(path, reports)
    if dataset is None:
        return path.stem
    subset = path.stem.removeprefix(f"{dataset}_")
    return dataset if subset in _WHOLE else f"{dataset}.{subset}"


def _read_reviews(path: Path, config: Fields, reports: Mapping[str, Fields]) -> ImportedBenchmark:
    dataset = _dataset(path, reports)
    if dataset is None:
        raise DataError(
            f"{path}: reports/ has no report of this dataset ({', '.join(reports) or 'it is empty'}): the "
            "evaluation did not finish; repeat it with use_cache"
        )
    subset = path.stem.removeprefix(f"{dataset}_")
    generation = config.fields("generation_config", required=False).value
    samples = _samples(path)
    known = config.fields("resolved_benchmarks", required=False).fields(dataset, required=False)
    identity = config.fields("evaluation_identity", required=False).fields("benchmarks", required=False)
    main = reports[dataset].fields("primary_metric_identity", required=False).value.get("name")
    metrics = list(dict.fromkeys(metric for sample in samples for metric in sample.values))
    return ImportedBenchmark(
        name=_name(path, reports),
        source=str(path),
        protocol="generation",
        samples=tuple(samples),
        documents=_planned(reports[dataset], subset, len({sample.document[0] for sample in samples})),
        metrics=tuple(sorted(metrics, key=lambda metric: metric != main)),
        version=str(identity.fields(dataset, required=False).value.get("evaluation_version")),
        num_fewshot=known.get("few_shot_num", int, 0),
        sampling=canonical_json({k: v for k, v in generation.items() if k != "batch_size"}),
        group=None if subset in _WHOLE else dataset,
    )


def _planned(report: Fields, subset: str, there: int) -> int:
    """Number of requested documents of a subset; the number of reviewed ones if the report has none."""
    subsets = report.fields("execution_summary", required=False).fields("subsets", required=False)
    requested = subsets.fields(subset, required=False).value.get("requested")
    return requested if type(requested) is int and requested > 0 else there


def _samples(path: Path) -> list[ImportedSample]:
    found: dict[tuple[int, int], ImportedSample] = {}
    for row in read_lines(path):
        sample = _sample(row)
        key = sample.document[0], sample.seed
        if key in found:
            raise DataError(
                f"{row.place}: document {key[0]} has two reviews of generation {key[1]}, the other in "
                f"{found[key].place}; keep one"
            )
        found[key] = sample
    if not found:
        raise DataError(f"{path}: no reviews")
    return [found[key] for key in sorted(found)]


def _sample(row: Fields) -> ImportedSample:
    whole = row.fields("sample_score")
    score = whole.fields("score")
    messages = row.get("messages", list)
    values = score.fields("value")
    status = score.value.get("status", "success")
    failed = status != "success"
    extracted = score.value.get("extracted_prediction")
    return ImportedSample(
        document=[whole.get("sample_id", int), row.value.get("target")],
        prompt=prompt(messages, row.place),
        values={str(name): values.number(str(name)) for name in values.value} if not failed else {},
        place=row.place,
        seed=whole.get("generation_index", int, 0),
        outcome="error" if failed else "ok" if extracted not in (None, "") else "extraction_failed",
        error=f"EvalScope: {status}" if failed else None,
        detail={
            "response": str(score.value.get("prediction") or ""),
            "extracted": str(extracted or ""),
            "target": row.value.get("target"),
        },
    )


def prompt(messages: list[Any], place: str) -> list[list[str]]:
    """Role and text of the messages before the first response. Raises DataError if there are none."""
    found = []
    for message in messages:
        each = Fields(message, f"{place}: 'messages'")
        role = each.get("role", str)
        if role == "assistant" and each.value.get("source") != "input":
            break
        content = each.value.get("content")
        found.append([role, content if isinstance(content, str) else canonical_json(content)])
    if not found:
        raise DataError(f"{place}: 'messages' holds no prompt; documents are paired by their prompts")
    return found
