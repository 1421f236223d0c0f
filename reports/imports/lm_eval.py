"""lm-eval's logs: `results_*.json` and one `samples_<task>_*.jsonl` per task, from `--log_samples`.

Format: lm-eval 0.4.13, `lm_eval/loggers/evaluation_tracker.py` and `lm_eval/evaluator.py`.
"""

import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from evalsuite.foundation import DataError, canonical_json
from evalsuite.foundation.metrics import PERPLEXITIES
from evalsuite.foundation.taxonomy import Protocol
from evalsuite.reports.imports.fields import Fields, read_lines, read_object, starts_with
from evalsuite.reports.imports.importer import IMPORTERS, ImportedBenchmark, ImportedLog, ImportedSample

_RESULTS = re.compile(r"(?:.+_)?results_(?P<date>.+)\.json")
_DEPTH = ("", "*/", "*/*/")
_REDUNDANT = ("bits_per_byte",)
"""Functions of another metric: this one is byte_perplexity's logarithm."""
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
        """Whether the path is a results file, or a folder with results files up to two levels down."""
        return bool(_results_files(path))

    def read(self, path: Path) -> tuple[ImportedLog, ...]:
        """Read every results file below `path` with its samples; raises DataError, see `Importer`."""
        files = _results_files(path)
        if not files:
            raise DataError(f"{path}: no results_*.json of lm-eval here")
        return tuple(_read_log(file) for file in files)


IMPORTERS.add("lm-eval", LmEval())


def _results_files(path: Path) -> list[Path]:
    candidates = [path] if path.is_file() else [f for depth in _DEPTH for f in path.glob(f"{depth}*.json")]
    named = sorted(file for file in candidates if _RESULTS.fullmatch(file.name))
    return [file for file in named if starts_with(file, "results")]


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
    groups = _groups(log.fields("group_subtasks", required=False))
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
        identity={
            "harness": "lm-eval",
            "model": name,
            "revision": config.value.get("model_revision"),
            "sha": config.value.get("model_sha"),
            **{
                key: arguments[key]
                for key in ("pretrained", "peft", "delta", "subfolder")
                if key in arguments
            },
        },
        settings={
            "model": config.value.get("model"),
            "model_args": arguments,
            "dtype": config.value.get("model_dtype"),
            "transformers": log.value.get("transformers_version"),
        },
        path=name,
        parameters=_count(config.value.get("model_num_parameters")),
        created=_created(log),
        benchmarks=benchmarks,
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


def _groups(subtasks: Fields) -> dict[str, str]:
    """Task → the outermost group that holds it."""
    members = {str(k): [str(m) for m in v] for k, v in subtasks.value.items() if isinstance(v, list)}
    inner = {member for each in members.values() for member in each}
    found: dict[str, str] = {}

    def collect(group: str, name: str, depth: int = 0) -> None:
        for member in members.get(name, ()) if depth < 8 else ():
            if members.get(member):
                collect(group, member, depth + 1)
            else:
                found[member] = group

    for group in members:
        if group not in inner:
            collect(group, group)
    return found


def _read_task(file: Path, log: Fields, task: str, groups: Mapping[str, str]) -> ImportedBenchmark:
    config = log.fields("configs").fields(task)
    kind = config.get("output_type", str)
    if kind not in _PROTOCOLS:
        raise DataError(
            f"{config.place}: 'output_type' = {kind!r}; expected one of {', '.join(_PROTOCOLS)}. Import "
            "other benchmarks only (--benchmark)"
        )
    match = _RESULTS.fullmatch(file.name)
    assert match is not None
    path = file.with_name(f"samples_{task}_{match['date']}.jsonl")
    if not path.is_file():
        raise DataError(
            f"{path}: no samples of '{task}'; scores are paired by document, which averages do not allow: "
            "evaluate again with --log_samples"
        )
    delimiter = str(config.value.get("target_delimiter", " "))
    samples = _samples(path, kind, delimiter)
    generation = config.fields("generation_kwargs", required=False).value if kind == "generate_until" else {}
    return ImportedBenchmark(
        name=task,
        source=str(path),
        protocol=_PROTOCOLS[kind],
        samples=tuple(samples),
        documents=log.fields("n-samples").fields(task).get("effective", int),
        metrics=_metrics(config, samples),
        version=str(log.fields("versions", required=False).value.get(task)),
        num_fewshot=log.fields("n-shot").get(task, int),
        sampling=canonical_json(dict(generation)) if kind == "generate_until" else "",
        units=PERPLEXITIES,
        group=groups.get(task),
    )


def _metrics(config: Fields, samples: Sequence[ImportedSample]) -> tuple[str, ...]:
    """Metrics of the samples in the order of the task's list; those of one filter carry its name."""
    listed = config.value.get("metric_list")
    order = [str(each.get("metric")) for each in listed or () if isinstance(each, Mapping)]
    there = list(dict.fromkeys(name for sample in samples for name in sample.values))
    units = {unit for unit in PERPLEXITIES.values() if unit}
    ranks = {name: order.index(base) for name in there if (base := name.split(",")[0]) in order}
    return tuple(sorted((n for n in there if n not in units), key=lambda name: ranks.get(name, len(order))))


def _samples(path: Path, kind: str, delimiter: str) -> list[ImportedSample]:
    """The samples of one task by position of the document; its filters are one sample each in the file."""
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
    return [_sample(list(rows[number].values()), kind, delimiter) for number in sorted(rows)]


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
    scored = _generated(rows) if kind == "generate_until" else _choices(first, pairs, values, kind, delimiter)
    return ImportedSample(
        document=first.get("doc_hash", str),
        prompt=prompts,
        values=values,
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
        return {metric + suffix: row.number(metric)} if not isinstance(found, list | dict) else {}
    units = PERPLEXITIES[metric]
    if units is None:
        return {metric + suffix: -row.number(metric)}
    pair = row.get(metric, list)
    if len(pair) != 2:
        raise DataError(f"{row.place}: '{metric}' = {pair!r}; expected a log-likelihood and a count")
    both = Fields({metric: pair[0], units: pair[1]}, row.place)
    return {metric: -both.number(metric), units: both.number(units)}


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


def _choices(
    row: Fields, pairs: Sequence[Sequence[Any]], values: Mapping[str, float], kind: str, delimiter: str
) -> dict[str, Any]:
    """Log-probabilities of the choices, the choice of each metric, and the chance level.

    As lm-eval's `ConfigurableTask.process_results`: `acc` takes the highest log-probability, `acc_norm` that
    per character of the choice, `acc_bytes` that per byte. A task with metrics of its own may score in
    another way: a choice that contradicts the score is left out.
    """
    logprobs, greedy = [], []
    for each in row.get("filtered_resps", list):
        # Two numbers of one request are a list; a rolling log-likelihood is one number.
        pair = each if isinstance(each, list) else [each]
        logprobs.append(_logprob(row, pair[0] if pair else None))
        greedy.append(str(pair[1]) == "True" if len(pair) > 1 else False)
    detail: dict[str, Any] = {"logprobs": logprobs}
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


def _logprob(row: Fields, value: Any) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = float("nan")
    if not np.isfinite(number):
        raise DataError(f"{row.place}: 'filtered_resps' has the log-probability {value!r}; expected a number")
    return number
