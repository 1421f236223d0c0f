"""lm-eval's logs: `results_*.json` and one `samples_<task>_*.jsonl` per task, from `--log_samples`.

Format: lm-eval 0.4.13, `lm_eval/loggers/evaluation_tracker.py` and `lm_eval/evaluator.py`.
"""

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from math import exp, inf, isfinite, isnan
from pathlib import Path
from sys import float_info
from typing import Any, NamedTuple

import numpy as np

from evalsuite.foundation import DataError, canonical_json
from evalsuite.foundation.taxonomy import PERPLEXITIES, Protocol
from evalsuite.reports.imports.fields import (
    Fields,
    read_lines,
    read_object,
    refuse_other_average,
    texts_in,
    weights_in_group,
)
from evalsuite.reports.imports.identity import identity_of, without_secrets
from evalsuite.reports.imports.importer import IMPORTERS, ImportedBenchmark, ImportedLog, ImportedSample
from evalsuite.reports.imports.listing import Format, files_below

_FORMAT = Format(
    title="lm-eval",
    name=re.compile(r"(^|[^a-z])results_.*\.json", re.IGNORECASE),
    keys=("lm_eval_version", "results"),
)
_DATE = re.compile(r"(?:results_|_(?=\d{4}-\d\d-\d\dT))(?P<date>(?:(?!results_).)+)\.json")
"""The date of `results_<date>.json`, or of `<name>_<date>.json` for an output path that names a file."""
_SAMPLES = re.compile(r"samples_.*\.jsonl", re.IGNORECASE)
_REDUNDANT = ("bits_per_byte",)
"""Functions of another metric: this one is byte_perplexity's logarithm."""
_MEANS = ("acc", "acc_norm", "acc_bytes", "exact_match")
"""Metrics whose score is the mean over documents in every task; other tasks may aggregate in other ways."""
_INVALID = "[invalid]"
"""What lm-eval's filters return if they find no answer."""
_PROTOCOLS: dict[str, Protocol] = {
    "multiple_choice": "loglikelihood",
    "loglikelihood": "loglikelihood",
    "loglikelihood_rolling": "loglikelihood",
    "generate_until": "generation",
}


class LmEval:
    """Importer of lm-eval."""

    title = "lm-eval"

    def recognises(self, path: Path) -> bool:
        """Whether the path is a file of results, or a folder with files of results or samples below it."""
        return bool(_FORMAT.logs(path)) or any(_samples_below(path))

    def read(self, path: Path) -> tuple[ImportedLog, ...]:
        """Read every results file below `path` with its samples; raises DataError, see `Importer`."""
        if path.is_dir() and not _FORMAT.logs(path) and (samples := next(_samples_below(path), None)):
            raise DataError(f"{samples}: {_ORPHAN}")
        files = _FORMAT.listed(path)
        logs = tuple(_read_log(file) for file in files)
        known = {_samples_file(log.source, task) for log in logs for task in log.benchmarks}
        for samples in _samples_below(path):
            if samples not in known:
                raise DataError(f"{samples}: {_ORPHAN}")
        return logs


IMPORTERS.add("lm-eval", LmEval())
_ORPHAN = (
    "samples that no results_<date>.json next to them names: it was renamed or removed, or lm-eval ended "
    "before it was written; restore it, evaluate again, or move the samples elsewhere"
)


def _samples_below(path: Path) -> Iterator[Path]:
    return (file for file in files_below(path) if _SAMPLES.search(file.name))


def _samples_file(file: Path, task: str) -> Path:
    """The samples of a task of a results file."""
    match = _DATE.search(file.name)
    if match is None:
        raise DataError(
            f"{file}: results of lm-eval under another name; restore it (results_<date>.json), so that the "
            "samples of the same date are found"
        )
    return file.with_name(f"samples_{task}_{match['date']}.jsonl")


def _read_log(file: Path) -> ImportedLog:
    log = read_object(file)
    version = log.value.get("lm_eval_version")
    if not isinstance(version, str) or "task_hashes" not in log.value:
        raise DataError(
            f"{file}: 'lm_eval_version' = {version!r} and "
            f"{'no ' if 'task_hashes' not in log.value else ''}'task_hashes'; evalsuite reads the logs of "
            "lm-eval 0.4.3 and later, which state the hash of every document: evaluate again with it"
        )
    config = log.fields("config")
    tasks = log.fields("n-samples")
    groups = _groups(log)
    benchmarks = {str(task): partial(_read_task, file, log, str(task), groups) for task in tasks.value}
    if not benchmarks:
        raise DataError(f"{file}: no tasks ('n-samples' is empty)")
    name = str(log.value.get("model_name") or config.value.get("model"))
    arguments = _model_arguments(config.value.get("model_args"))
    return ImportedLog(
        source=file,
        harness="lm-eval",
        harness_version=version,
        label=name.rstrip("/").rsplit("/", 1)[-1] or name,
        identity=_identity(name, config, arguments),
        settings={
            "model": config.value.get("model"),
            "model_args": without_secrets(arguments),
            "dtype": config.value.get("model_dtype"),
            "transformers": log.value.get("transformers_version"),
        },
        path=name,
        parameters=_count(config.value.get("model_num_parameters")),
        created=_created(log),
        benchmarks=benchmarks,
    )


def _identity(name: str, config: Fields, arguments: Mapping[str, str]) -> dict[str, str]:
    """What the log states about the model; its dtype and revision as they were resolved, if it says so."""
    found = config.value
    dtype = found.get("model_dtype") or arguments.get("dtype")
    revision = found.get("model_revision") or arguments.get("revision")
    return identity_of(
        "lm-eval",
        model=name,
        engine=found.get("model"),
        dtype=dtype,
        revision=revision,
        sha=found.get("model_sha"),
        gen_kwargs=found.get("gen_kwargs"),
        model_args={k: v for k, v in arguments.items() if k not in ("dtype", "revision") and v != name},
    )


def _count(value: Any) -> int | None:
    """lm-eval writes -1 for a model whose parameters it cannot count."""
    return value if type(value) is int and value >= 0 else None


def _created(log: Fields) -> str:
    seconds = log.number("date")
    try:
        return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")
    except (OverflowError, OSError, ValueError) as error:
        raise DataError(f"{log.place}: 'date' = {seconds:g} is no time in seconds") from error


def _model_arguments(value: Any) -> dict[str, str]:
    """`model_args`: an object, or one text such as `pretrained=…,dtype=float32`."""
    if isinstance(value, Mapping):
        return {str(key): str(each) for key, each in value.items()}
    pairs = (part.partition("=") for part in str(value or "").split(",") if part)
    return {key: each for key, _, each in pairs}


class _Member(NamedTuple):
    """The place of a task in a group."""

    group: str
    weights: tuple[float | None, ...]
    """In the group's average; see `ImportedBenchmark`."""


def _groups(log: Fields) -> dict[str, _Member]:
    """Task → the outermost group with a score of its own that holds it; without scores, the outermost."""
    subtasks = log.fields("group_subtasks", required=False).value
    members = {str(k): [str(m) for m in v] for k, v in subtasks.items() if isinstance(v, list)}
    scores = {group: _group_scores(log, group) for group in members}
    inner = {member for each in members.values() for member in each}
    found: dict[str, _Member] = {}

    def leaves(name: str, depth: int = 0) -> list[str]:
        if not members.get(name) or depth > 8:
            return [name]
        return [leaf for member in members[name] for leaf in leaves(member, depth + 1)]

    def collect(group: str, outermost: str, depth: int = 0) -> None:
        tasks = list(dict.fromkeys(leaves(group)))
        scored = any(scores.get(each) for each in members if set(leaves(each)) <= set(tasks))
        if scores.get(group) or not scored:
            weights = _weights(log, group, tasks, scores.get(group, {}))
            name = group if scores.get(group) else outermost
            found.update({task: _Member(name, weights.get(task, (None,))) for task in tasks})
            return
        for member in members[group] if depth < 8 else ():
            if members.get(member):
                collect(member, outermost, depth + 1)

    for group in members:
        if group not in inner and members[group]:
            collect(group, group)
    return found


def _group_scores(log: Fields, group: str) -> dict[str, float]:
    """Metric and filter → the score of a group, as the log reports it; empty if it has none."""
    found = log.fields("groups", required=False).fields(group, required=False).value
    return {
        str(name): float(value)
        for name, value in found.items()
        if "," in str(name) and "_stderr" not in str(name) and type(value) is float and isfinite(value)
    }


def _weights(
    log: Fields, group: str, tasks: Sequence[str], scores: Mapping[str, float]
) -> dict[str, tuple[float | None, ...]]:
    """Task → weights that give its group's score; the log does not state `weight_by_size`."""
    results = log.fields("results", required=False)
    sizes = {task: float(_effective(log, task)) for task in tasks}
    for metric, reported in scores.items():
        stated = {task: results.fields(task, required=False).value.get(metric) for task in tasks}
        found = {task: float(value) for task, value in stated.items() if isinstance(value, int | float)}
        if len(found) != len(tasks):
            continue
        place = f"{log.place}: group '{group}'"
        return weights_in_group(place, metric, reported, found, sizes, rounding=1e-6)
    return {}


def _effective(log: Fields, task: str) -> int:
    """Number of documents that were evaluated, after `--limit` or `--samples`."""
    return log.fields("n-samples").fields(task).get("effective", int)


def _read_task(file: Path, log: Fields, task: str, groups: Mapping[str, _Member]) -> ImportedBenchmark:
    config = log.fields("configs").fields(task)
    kind = config.get("output_type", str)
    if kind not in _PROTOCOLS:
        raise DataError(
            f"{config.place}: 'output_type' = {kind!r}; expected one of {', '.join(_PROTOCOLS)}. Import "
            "other benchmarks only (--benchmark)"
        )
    path = _samples_file(file, task)
    if not path.is_file():
        near = sorted(each.name for each in file.parent.glob("*") if path.name in each.name)
        raise DataError(
            f"{path}: no samples of '{task}'{f' (found {near[0]})' if near else ''}; scores are paired by "
            "document, which averages do not allow: restore the file, or evaluate again with --log_samples. "
            "Averages get bounds instead of tests by python -m evalsuite.reports.studies.ledger --averages "
            "TEACHER.json STUDENT.json --out DIR, from a checkout of evalsuite"
        )
    delimiter = str(config.value.get("target_delimiter", " "))
    rows = _rows(path)
    planned = _effective(log, task)
    if len(rows) != planned:
        raise DataError(
            f"{path}: {len(rows):,} documents, but {planned:,} were evaluated ('n-samples' in {file.name}): "
            "the file lost samples or belongs to another evaluation; restore it, or evaluate again"
        )
    samples = [_sample(list(each.values()), kind, delimiter) for each in rows]
    _refuse_other_scores(path, log.fields("results").fields(task, required=False), _means(config), rows)
    member = groups.get(task)
    generation = config.fields("generation_kwargs", required=False).value if kind == "generate_until" else {}
    return ImportedBenchmark(
        name=task,
        source=str(path),
        protocol=_PROTOCOLS[kind],
        samples=tuple(samples),
        documents=planned,
        metrics=_metrics(config, samples),
        version=str(log.fields("versions", required=False).value.get(task)),
        num_fewshot=log.fields("n-shot").get(task, int),
        sampling=canonical_json(dict(generation)) if kind == "generate_until" else "",
        units=PERPLEXITIES,
        group=member and member.group,
        group_weights=member.weights if member else (None,),
    )


def _means(config: Fields) -> set[str]:
    """Metrics whose score is the mean over documents, unless the task states another aggregation."""
    listed = config.value.get("metric_list")
    stated = {
        str(each.get("metric")): each.get("aggregation") for each in listed or () if isinstance(each, Mapping)
    }
    return {metric for metric in _MEANS if stated.get(metric, "mean") in (None, "mean")}


def _refuse_other_scores(
    path: Path, reported: Fields, means: Collection[str], rows: Sequence[Mapping[str, Fields]]
) -> None:
    """Refuse samples whose averages are not those of the log. Its other aggregations are its own."""
    for name, score in reported.value.items():
        metric, _, kind = str(name).partition(",")
        found = [row.value[metric] for each in rows if (row := each.get(kind)) and metric in row.value]
        if len(found) != len(rows):
            continue
        if metric in means:
            refuse_other_average(str(path), name, score, float(np.mean(found)), count=len(found))
        elif units := PERPLEXITIES.get(metric):
            nats, counts = np.sum(np.asarray(found, dtype=float), axis=0) if units else (0.0, 0.0)
            perplexity = exp(min(-nats / counts, 700.0)) if counts else inf
            refuse_other_average(str(path), name, score, perplexity, count=len(found))


def _metrics(config: Fields, samples: Sequence[ImportedSample]) -> tuple[str, ...]:
    """Metrics of the samples in the order of the task's list; those of one filter carry its name."""
    listed = config.value.get("metric_list")
    order = [str(each.get("metric")) for each in listed or () if isinstance(each, Mapping)]
    there = list(dict.fromkeys(name for sample in samples for name in sample.values))
    units = {unit for unit in PERPLEXITIES.values() if unit}
    ranks = {name: order.index(base) for name in there if (base := name.split(",")[0]) in order}
    return tuple(sorted((n for n in there if n not in units), key=lambda name: ranks.get(name, len(order))))


def _rows(path: Path) -> list[dict[str, Fields]]:
    """Filter → row, for each document in order of its position."""
    rows: dict[int, dict[str, Fields]] = {}
    for row in read_lines(path):
        by_filter = rows.setdefault(row.get("doc_id", int), {})
        name = row.get("filter", str)
        if name in by_filter:
            raise DataError(
                f"{row.place}: document {row.value['doc_id']} has two samples of filter {name!r}, the other "
                f"in {by_filter[name].place}; the file holds two evaluations: keep one"
            )
        by_filter[name] = row
    if not rows:
        raise DataError(f"{path}: no samples; evaluate again with --log_samples")
    return [rows[number] for number in sorted(rows)]


def _sample(rows: Sequence[Fields], kind: str, delimiter: str) -> ImportedSample:
    first = rows[0]
    arguments = first.fields("arguments")
    pairs = [list(arguments.fields(key).value.values()) for key in arguments.value]
    values: dict[str, float] = {}
    for row in rows:
        suffix = "" if row.value["filter"] == "none" else f",{row.value['filter']}"
        for metric in row.get("metrics", list):
            values |= _values(row, str(metric), suffix)
    prompts = [pair[:1] for pair in pairs] if kind == "generate_until" else pairs
    logprobs = [] if kind == "generate_until" else _logprobs(first)
    unusable = [f"log-probability {i} is {x}" for i, x in enumerate(logprobs) if isnan(x) or x == inf]
    scored: dict[str, Any] = {}
    if unusable:
        scored = {"outcome": "error", "error": f"lm-eval: {unusable[0]}"}
    elif kind == "generate_until":
        scored = _generated(rows)
    else:
        scored = _choices(first, pairs, values, logprobs, kind, delimiter)
    return ImportedSample(
        document=first.get("doc_hash", str),
        position=first.get("doc_id", int),
        text="\n".join(texts_in(first.value.get("doc") or prompts)),
        prompt=prompts,
        values={} if unusable else values,
        place=first.place,
        **scored,
    )


def _values(row: Fields, metric: str, suffix: str) -> dict[str, float]:
    """One metric of a sample; log-likelihoods of perplexities are negated, to nats per document."""
    if metric in _REDUNDANT:
        return {}
    if metric not in PERPLEXITIES:
        found = row.value.get(metric)
        # A metric of several numbers, such as a confusion, is no score of the document.
        return {metric + suffix: row.real(metric)} if not isinstance(found, list | dict) else {}
    units = PERPLEXITIES[metric]
    if units is None:
        return {metric + suffix: -row.real(metric)}
    pair = row.get(metric, list)
    if len(pair) != 2:
        raise DataError(f"{row.place}: '{metric}' = {pair!r}; expected a log-likelihood and a count")
    both = Fields({metric: pair[0], units: pair[1]}, row.place)
    return {metric: -both.real(metric), units: both.number(units)}


def _generated(rows: Sequence[Fields]) -> dict[str, Any]:
    extracted = [_first(row.get("filtered_resps", list)) for row in rows]
    failed = all(each == _INVALID for each in extracted)
    detail = {
        "response": _first(rows[0].get("resps", list)),
        "extracted": next((each for each in extracted if each != _INVALID), ""),
        "target": str(rows[0].value.get("target", "")),
    }
    return {"outcome": "extraction_failed" if failed else "ok", "detail": detail}


def _first(responses: Any) -> str:
    while isinstance(responses, list) and responses:
        responses = responses[0]
    return responses if isinstance(responses, str) else ""


def _logprobs(row: Fields) -> list[float]:
    """Log-probabilities of the requests of a document; they may be infinite or NaN."""
    found = []
    for each in row.get("filtered_resps", list):
        # Two numbers of one request are a list; a rolling log-likelihood is one number.
        value = each[0] if isinstance(each, list) and each else each
        try:
            found.append(float(value))
        except (TypeError, ValueError, OverflowError):
            raise DataError(
                f"{row.place}: 'filtered_resps' has the log-probability {value!r}; expected a number"
            ) from None
    return found


def _choices(
    row: Fields,
    pairs: Sequence[Sequence[Any]],
    values: Mapping[str, float],
    logprobs: list[float],
    kind: str,
    delimiter: str,
) -> dict[str, Any]:
    """Log-probabilities of the choices, the choice of each metric, and the chance level.

    As lm-eval's `ConfigurableTask.process_results`: `acc` takes the highest log-probability, `acc_norm` that
    per character of the choice, `acc_bytes` that per byte. A task with metrics of its own may score in
    another way: a choice that contradicts the score is left out.
    """
    greedy = [
        str(each[1]) == "True" if isinstance(each, list) and len(each) > 1 else False
        for each in row.get("filtered_resps", list)
    ]
    # JSON has no infinity: a choice that the model rules out has the lowest number instead.
    detail: dict[str, Any] = {"logprobs": [max(each, -float_info.max) for each in logprobs]}
    # Mutual information scores every choice twice, with and without its context.
    by_choice = kind == "multiple_choice" and len(logprobs) == len(pairs) > 1
    if not by_choice or "acc_mutual_info" in values:
        return {"detail": detail}
    detail["greedy"] = greedy
    found: dict[str, Any] = {"detail": detail, "choices": {}}
    if any(values.get(metric) in (0.0, 1.0) for metric in ("acc", "acc_norm", "acc_bytes")):
        found["chance"] = 1 / len(pairs)
    gold = row.value.get("target")
    if isinstance(gold, int | str) and str(gold).isdigit() and int(gold) < len(pairs):
        detail["gold"] = int(gold)
        texts = [str(pair[-1]).removeprefix(delimiter) for pair in pairs]
        lengths = {
            "acc": [1] * len(texts),
            "acc_norm": [len(text) for text in texts],
            "acc_bytes": [len(text.encode()) for text in texts],
        }
        for metric, divisors in lengths.items():
            if values.get(metric) in (0.0, 1.0) and all(divisors):
                choice = int(np.argmax(np.divide(logprobs, divisors)))
                if (choice == int(gold)) == (values[metric] == 1.0):
                    found["choices"][metric] = choice
    elif values.get("acc") in (0.0, 1.0):
        found["choices"]["acc"] = int(np.argmax(logprobs))
    return found
