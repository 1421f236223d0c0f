"""EvalScope's work folder: `configs/task_config*.yaml` and `reviews/<model>/<dataset>_<subset>.jsonl`.

Format: EvalScope 1.14. Its `sample_id` is a position in the dataset, not a content hash: documents are paired
by position and target, and only if their prompts are equal.
"""

from collections.abc import Collection, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from math import isfinite, nan
from pathlib import Path
from typing import Any, NamedTuple

from evalsuite.foundation import ConfigError, DataError, canonical_json
from evalsuite.foundation.extraction import basis_of, options_of
from evalsuite.foundation.strict_yaml import read_yaml_value
from evalsuite.reports.imports.fields import (
    Fields,
    read_lines,
    read_object,
    refuse_other_average,
    weights_in_group,
)
from evalsuite.reports.imports.identity import NEUTRAL, identity_of
from evalsuite.reports.imports.importer import IMPORTERS, ImportedBenchmark, ImportedLog, ImportedSample
from evalsuite.reports.imports.listing import files_below, found_below

_REPORT_SCHEMA = 2
_SUFFIXES = {"reviews": ".jsonl", "predictions": ".jsonl", "reports": ".json"}
_ROUNDING = 1e-4
"""Of the averages in reports, which have four digits."""
_WHOLE = ("main", "default", "test")
"""Subsets that are the whole dataset, and that its name need not mention."""


class EvalScope:
    """Importer of EvalScope."""

    title = "EvalScope"

    def recognises(self, path: Path) -> bool:
        """Whether the path is a work folder, or a folder with work folders below it."""
        return bool(_work_folders(path))

    def read(self, path: Path) -> tuple[ImportedLog, ...]:
        """Read the reviews of every model of every work folder; raises DataError, see `Importer`."""
        folders = _work_folders(path)
        if not folders:
            raise DataError(
                f"{path}: no work folder of EvalScope here (configs/, reviews/, reports/){found_below(path)}"
            )
        return tuple(log for folder in folders for log in _read_work_folder(folder))


IMPORTERS.add("evalscope", EvalScope())


def _work_folders(path: Path) -> list[Path]:
    """Folders that hold a configuration or reviews, in order; `path` is one of them, or above them."""
    found: dict[Path, None] = {}
    for file in files_below(path):
        if file.parent.name == "configs" and file.name.startswith("task_config"):
            found[file.parent.parent] = None
        elif ".jsonl" in file.name:
            parts = file.relative_to(path).parts
            if len(parts) > 2 and "reviews" in parts[:-2]:
                found[path.joinpath(*parts[: parts.index("reviews")])] = None
    return sorted(found)


def _read_work_folder(path: Path) -> tuple[ImportedLog, ...]:
    configs = sorted((path / "configs").glob("task_config*"))
    if len(configs) != 1 or configs[0].suffix != ".yaml":
        names = ", ".join(file.name for file in configs) or "none"
        raise DataError(
            f"{path}/configs: expected one file task_config*.yaml, found {names}: EvalScope's work "
            "folder is incomplete; restore the file, or evaluate again"
        )
    config = _read_config(configs[0])
    by_kind = {kind: _by_model(path / kind, suffix) for kind, suffix in _SUFFIXES.items()}
    models = sorted({model for each in by_kind.values() for model in each})
    if not models:
        raise DataError(f"{path}/reviews: no reviews; evaluate again without removing them")
    found = []
    for model in models:
        files = {kind: each.get(model, []) for kind, each in by_kind.items()}
        found.append(_read_model(path, model, files, config, configs[0]))
    return tuple(found)


def _by_model(folder: Path, suffix: str) -> dict[str, list[Path]]:
    """Model → its files in a folder of a work folder. Raises DataError for a file of another kind."""
    found: dict[str, list[Path]] = {}
    for file in files_below(folder):
        if file.parent == folder:
            continue
        if file.suffix != suffix or not file.is_file():
            raise DataError(
                f"{file}: expected a file *{suffix} of EvalScope; restore it, or move it elsewhere"
            )
        found.setdefault(file.parent.relative_to(folder).as_posix(), []).append(file)
    return found


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


def _read_model(
    path: Path, model: str, files: Mapping[str, Sequence[Path]], config: Fields, file: Path
) -> ImportedLog:
    reports = {report.stem: _read_report(report) for report in files["reports"]}
    stems = {each.stem for each in files["reviews"]}
    if unread := [each for each in files["predictions"] if each.stem not in stems]:
        raise DataError(
            f"{unread[0]}: no reviews of it in {path}/reviews/{model}: the evaluation did not finish, or "
            "they were removed; repeat it with use_cache, or restore them"
        )
    reviewed = {
        _name(each, reports): partial(_read_reviews, each, config, reports) for each in files["reviews"]
    }
    unfinished = _unfinished(config, reports, stems)
    return ImportedLog(
        source=path,
        harness="EvalScope",
        harness_version=config.get("evalscope_version", str),
        label=model.rsplit("/", 1)[-1],
        identity=identity_of(
            "EvalScope",
            model=model,
            path=str(config.value.get("model")),
            eval_type=config.value.get("eval_type"),
            api_url=config.value.get("api_url"),
            chat_template=config.value.get("chat_template"),
            model_args=config.fields("model_args", required=False).value,
            generation_config=config.fields("generation_config", required=False).value,
        ),
        settings={"eval_type": config.value.get("eval_type"), "model": str(config.value.get("model"))},
        path=str(config.value.get("model")),
        created=datetime.fromtimestamp(file.stat().st_mtime, UTC).isoformat(timespec="seconds"),
        benchmarks={
            **{name: partial(_refuse_unfinished, path, model, name) for name in unfinished},
            **reviewed,
        },
    )


def _unfinished(config: Fields, reports: Mapping[str, Fields], stems: Collection[str]) -> list[str]:
    """Names of datasets and subsets that were evaluated and have no reviews."""
    listed = config.value.get("datasets")
    datasets = [str(name) for name in listed] if isinstance(listed, list) else []
    found = [
        name for name in datasets if name not in reports and not any(s.startswith(f"{name}_") for s in stems)
    ]
    for dataset, report in reports.items():
        summary = report.fields("execution_summary", required=False)
        subsets = summary.fields("subsets", required=False).value or {
            name: None for each in _subset_scores(report) for name in each.scores
        }
        found += [
            dataset if subset in _WHOLE else f"{dataset}.{subset}"
            for subset in map(str, subsets)
            if f"{dataset}_{subset}" not in stems
        ]
    return found


def _refuse_unfinished(path: Path, model: str, name: str) -> ImportedBenchmark:
    raise DataError(
        f"{path}/reviews/{model}: no reviews of '{name}', which was evaluated: they were removed, or the "
        "evaluation did not finish; restore them, repeat it with use_cache, or import other benchmarks "
        "(--benchmark)"
    )


class _Scores(NamedTuple):
    """What a report says of one metric."""

    metric: str
    aggregation: str
    whole: float
    """Of all subsets together."""
    scores: Mapping[str, float]
    """Of each subset."""


def _subset_scores(report: Fields) -> list[_Scores]:
    found = []
    listed = report.value.get("metrics")
    for number, each in enumerate(listed if isinstance(listed, list) else [], 1):
        metric = Fields(each, f"{report.place}: metric {number}")
        identity = metric.fields("identity", required=False).value
        subsets: dict[str, float] = {}
        for category in metric.get("categories", list, []):
            for value in Fields(category, metric.place).get("subsets", list, []):
                subset = Fields(value, metric.place)
                if not subset.value.get("is_aggregate"):
                    subsets[subset.get("name", str)] = subset.real("score")
        found.append(
            _Scores(
                str(identity.get("name")), str(identity.get("aggregation")), metric.real("score"), subsets
            )
        )
    return found


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
    samples = _samples(path, dataset)
    known = config.fields("resolved_benchmarks", required=False).fields(dataset, required=False)
    identity = config.fields("evaluation_identity", required=False).fields("benchmarks", required=False)
    report = reports[dataset]
    main = report.fields("primary_metric_identity", required=False).value.get("name")
    metrics = list(dict.fromkeys(metric for sample in samples for metric in sample.values))
    planned = _planned(path, report, subset, samples)
    _refuse_other_scores(path, _subset_scores(report), subset, samples, main)
    return ImportedBenchmark(
        name=_name(path, reports),
        source=str(path),
        protocol="generation",
        samples=tuple(samples),
        documents=planned,
        metrics=tuple(sorted(metrics, key=lambda metric: metric != main)),
        version=str(identity.fields(dataset, required=False).value.get("evaluation_version")),
        num_fewshot=known.get("few_shot_num", int, 0),
        sampling=canonical_json({k: v for k, v in generation.items() if k not in NEUTRAL}),
        group=None if subset in _WHOLE else dataset,
        group_weights=(None,) if subset in _WHOLE else _weights(report, subset, main),
    )


def _refuse_other_scores(
    path: Path, reported: Sequence[_Scores], subset: str, samples: Sequence[ImportedSample], main: Any
) -> None:
    """Refuse reviews whose averages are not those of the report, or whose score is no average."""
    for each in reported:
        values = [s.values[each.metric] for s in samples if isfinite(s.values.get(each.metric, nan))]
        if each.metric == main and each.aggregation != "mean":
            raise DataError(
                f"{path}: EvalScope's '{each.metric}' is not the mean of its reviews ('aggregation' = "
                f"{each.aggregation!r}), which evalsuite reports: import other benchmarks only (--benchmark)"
            )
        if each.aggregation == "mean" and values and subset in each.scores:
            # Whether a review that failed counts as wrong is the aggregation's choice.
            stated = each.scores[subset]
            counts = (len(values), len(samples))
            averages = [sum(values) / count for count in counts]
            found = min(averages, key=lambda average: abs(average - stated))
            place = str(path)
            refuse_other_average(place, each.metric, stated, found, rounding=_ROUNDING, count=counts[1])


def _planned(path: Path, report: Fields, subset: str, samples: Sequence[ImportedSample]) -> int:
    """Number of requested documents of a subset; the number of reviewed ones if the report has none.

    EvalScope counts each generation of a document as a request of its own.
    """
    summary = report.fields("execution_summary", required=False)
    counts = summary.fields("subsets", required=False).fields(subset, required=False)
    there = len({canonical_json(sample.document) for sample in samples})
    if "requested" not in counts.value:
        return there
    reviewed = counts.get("succeeded", int, len(samples))
    if reviewed != len(samples):
        raise DataError(
            f"{path}: {len(samples):,} reviews, but {report.place} counts {reviewed:,} of '{subset}' "
            "('succeeded'): reviews were lost or added; restore the file, or evaluate again"
        )
    generations = len({sample.seed for sample in samples})
    return max(there, -(-counts.get("requested", int) // generations))


def _weights(report: Fields, subset: str, main: Any) -> tuple[float | None, ...]:
    """Weights of a subset that give the score of its dataset."""
    sizes = {
        str(name): float(Fields(value, report.place).get("requested", int))
        for name, value in report.fields("execution_summary", required=False)
        .fields("subsets", required=False)
        .value.items()
    }
    for each in _subset_scores(report):
        if each.metric == main and set(each.scores) <= set(sizes) and isfinite(each.whole):
            weights = weights_in_group(
                report.place, each.metric, each.whole, each.scores, sizes, rounding=2 * _ROUNDING
            )
            return weights.get(subset, (None,))
    return (None,)


def _samples(path: Path, dataset: str) -> list[ImportedSample]:
    found: dict[tuple[int, int], ImportedSample] = {}
    for row in read_lines(path):
        sample = _sample(row, dataset)
        key = int(sample.document[0]), sample.seed
        if key in found:
            raise DataError(
                f"{row.place}: document {key[0]} has two reviews of generation {key[1]}, the other in "
                f"{found[key].place}; keep one"
            )
        found[key] = sample
    if not found:
        raise DataError(f"{path}: no reviews")
    return [found[key] for key in sorted(found)]


def _sample(row: Fields, dataset: str) -> ImportedSample:
    whole = row.fields("sample_score")
    score = whole.fields("score")
    messages = row.get("messages", list)
    values = score.fields("value")
    status = score.value.get("status", "success")
    failed = status != "success"
    response = str(score.value.get("prediction") or "")
    extracted = str(score.value.get("extracted_prediction") or "")
    sent = prompt(messages, row.place)
    # With repeats, EvalScope numbers the generations of all documents through.
    position = whole.get("group_id", int, whole.get("sample_id", int))
    found = {str(name): values.real(str(name)) for name in values.value} if not failed else {}
    options = options_of(sent[-1][1])
    basis = basis_of(dataset, response, extracted, options)
    if not extracted or (basis == "nothing" and not any(value >= 1 for value in found.values())):
        outcome, extracted = "extraction_failed", ""
    else:
        outcome = "guessed" if basis == "guess" else "ok"
    return ImportedSample(
        document=[position, row.value.get("target")],
        position=position,
        text="\n".join(text for _, text in sent),
        prompt=sent,
        values=found,
        place=row.place,
        seed=whole.get("generation_index", int, 0),
        chance=1 / len(options) if options else None,
        outcome="error" if failed else outcome,
        error=f"EvalScope: {status}" if failed else None,
        detail={
            "response": response,
            "extracted": extracted,
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
