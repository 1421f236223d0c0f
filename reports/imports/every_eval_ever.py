"""Every Eval Ever: one aggregate `<uuid>.json` and one `<uuid>_samples.jsonl` per checkpoint.

Format: schema 0.3.0 (arXiv 2606.14516, evaleval/every_eval_ever). Documents are paired by their input,
reference and choices; records without an input by their `sample_hash`.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import cache, partial
from math import isfinite
from pathlib import Path
from typing import Any, cast

from evalsuite.foundation import DataError, canonical_json
from evalsuite.foundation.taxonomy import PROTOCOLS, Protocol
from evalsuite.reports.imports.evalscope import prompt
from evalsuite.reports.imports.fields import Fields, read_lines, read_object, refuse_other_average
from evalsuite.reports.imports.identity import identity_of, without_secrets
from evalsuite.reports.imports.importer import IMPORTERS, ImportedBenchmark, ImportedLog, ImportedSample
from evalsuite.reports.imports.listing import Format, files_below

SCHEMA_VERSION = "0.3.0"
_FORMAT = Format(
    title="Every Eval Ever",
    name=re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}(?!_samples).*\.json(?!l)", re.IGNORECASE),
    keys=("schema_version", "evaluation_id", "evaluation_results"),
    companions=re.compile(r"_samples\.jsonl$"),
)
_SAMPLES = re.compile(r"_samples.*\.jsonl", re.IGNORECASE)
_LM_EVAL = ("lm_eval", "lm-eval", "lm-evaluation-harness")


class EveryEvalEver:
    """Importer of Every Eval Ever."""

    title = "Every Eval Ever"

    def recognises(self, path: Path) -> bool:
        """Whether the path is an aggregate file, or a folder with some up to three levels down."""
        return bool(_FORMAT.logs(path))

    def read(self, path: Path) -> tuple[ImportedLog, ...]:
        """Read every aggregate file with its samples; raises DataError, see `Importer`."""
        files = _FORMAT.listed(path)
        known = {_samples_file(file) for file in files}
        for file in files_below(path):
            if _SAMPLES.search(file.name) and file not in known:
                raise DataError(
                    f"{file}: samples without their aggregate file, <uuid>.json; restore it, or move the "
                    "samples elsewhere"
                )
        return tuple(_read_log(file) for file in files)


IMPORTERS.add("every-eval-ever", EveryEvalEver())


def _samples_file(file: Path) -> Path:
    return file.with_name(f"{file.stem}_samples.jsonl")


def _check_version(fields: Fields) -> None:
    found = fields.value.get("schema_version")
    if found != SCHEMA_VERSION:
        raise DataError(
            f"{fields.place}: 'schema_version' = {found!r}; evalsuite reads {SCHEMA_VERSION}: migrate the "
            "file with a converter of Every Eval Ever"
        )


def _read_log(file: Path) -> ImportedLog:
    log = read_object(file)
    _check_version(log)
    model, library = log.fields("model_info"), log.fields("eval_library")
    path = _samples_file(file)
    if not path.is_file():
        raise DataError(
            f"{path}: no samples of {file.name}; scores are paired by document, which averages do not allow: "
            "export instance-level data as well"
        )
    name = model.get("id", str)
    engine = model.fields("inference_engine", required=False).value
    return ImportedLog(
        source=file,
        harness=library.get("name", str),
        harness_version=library.get("version", str),
        label=model.get("name", str) or name,
        identity=identity_of(
            "Every Eval Ever",
            model=name,
            **{key: value for key, value in model.value.items() if key not in ("id", "name", "developer")},
        ),
        settings={"engine": without_secrets(dict(engine))},
        path=name,
        created=_created(log),
        benchmarks=_benchmarks(log, path, name),
    )


def _created(log: Fields) -> str:
    found = log.value.get("evaluation_timestamp") or log.get("retrieved_timestamp", str)
    try:
        return datetime.fromtimestamp(float(found), UTC).isoformat(timespec="seconds")
    except (ValueError, OverflowError, OSError):
        return str(found)


def _benchmarks(log: Fields, path: Path, model: str) -> dict[str, Callable[[], ImportedBenchmark]]:
    """One benchmark per evaluation name; its results of several metrics share their documents."""
    results: dict[str, list[Fields]] = {}
    for number, value in enumerate(log.get("evaluation_results", list), 1):
        result = Fields(value, f"{log.place}: result {number}")
        results.setdefault(result.get("evaluation_name", str), []).append(result)
    read = cache(partial(_read_samples, log, path, model, tuple(results)))
    return {name: partial(_benchmark, log, results[name], read, path, name) for name in results}


def _read_samples(log: Fields, path: Path, model: str, names: Sequence[str]) -> dict[str, list[Fields]]:
    """The records by evaluation name."""
    rows: dict[str, list[Fields]] = {name: [] for name in names}
    for row in read_lines(path):
        _check_version(row)
        for field, wanted in (("evaluation_id", log.value.get("evaluation_id")), ("model_id", model)):
            if row.value.get(field) != wanted:
                raise DataError(
                    f"{row.place}: '{field}' = {row.value.get(field)!r}, but {wanted!r} in {log.place}; the "
                    "samples belong to another file"
                )
        name = row.get("evaluation_name", str)
        if name not in rows:
            raise DataError(f"{row.place}: 'evaluation_name' = {name!r} is none of {', '.join(names)}")
        rows[name].append(row)
    return rows


def _benchmark(
    log: Fields, results: Sequence[Fields], read: Callable[[], dict[str, list[Fields]]], path: Path, name: str
) -> ImportedBenchmark:
    rows = read()[name]
    if not rows:
        raise DataError(
            f"{path}: no samples of '{name}'; export them, or import other benchmarks only (--benchmark)"
        )
    metrics = {str(each.value.get("evaluation_result_id")): _metric(each) for each in results}
    samples = _samples(rows, metrics)
    for result in results:
        metric, stated = _metric(result), result.fields("score_details", required=False).value.get("score")
        values = [each.values[metric] for each in samples if metric in each.values]
        if values and len(values) == len(samples) and all(map(isfinite, values)):
            found = sum(values) / len(values)
            refuse_other_average(str(path), metric, stated, found, rounding=1e-4, count=len(values))
    planned = results[0].fields("source_data").value.get("samples_number")
    there = len({canonical_json(sample.document) for sample in samples})
    config = results[0].fields("generation_config", required=False)
    details = results[0].fields("metric_config").fields("additional_details", required=False).value
    return ImportedBenchmark(
        name=name,
        source=str(path),
        protocol=_protocol(log, details.get("protocol"), rows),
        samples=tuple(samples),
        documents=planned if type(planned) is int and planned > 0 else there,
        metrics=tuple(dict.fromkeys(metrics.values())),
        version=str(details.get("task_version", "")),
        num_fewshot=_integer(details.get("num_fewshot")) or 0,
        sampling=canonical_json(config.value.get("generation_args") or {}),
    )


def _protocol(log: Fields, stated: Any, rows: Sequence[Fields]) -> Protocol:
    """The schema has no field for it: evalsuite's files state it, lm-eval's score choices."""
    if stated in PROTOCOLS:
        return cast(Protocol, stated)
    library = log.fields("eval_library").value.get("name")
    has_choices = any(row.fields("input").value.get("choices") for row in rows)
    return "loglikelihood" if library in _LM_EVAL and has_choices else "generation"


def _metric(result: Fields) -> str:
    config = result.fields("metric_config")
    if config.value.get("lower_is_better") is not False:
        raise DataError(
            f"{config.place}: 'lower_is_better' = {config.value.get('lower_is_better')!r}; only scores where "
            "higher is better are compared by document: import other benchmarks only (--benchmark)"
        )
    return str(config.value.get("metric_id") or config.value.get("metric_name") or "score")


def _samples(rows: Sequence[Fields], metrics: dict[str, str]) -> list[ImportedSample]:
    """Merge the records of one document: one per metric."""
    merged: dict[tuple[str, int], ImportedSample] = {}
    only = next(iter(metrics.values())) if len(set(metrics.values())) == 1 else None
    for row in rows:
        stated = str(row.value.get("evaluation_result_id"))
        metric = metrics.get(stated) or only
        if metric is None:
            raise DataError(
                f"{row.place}: 'evaluation_result_id' = {stated!r} is none of {', '.join(metrics)}: it does "
                "not say which metric this is"
            )
        sample = _sample(row, metric)
        key = row.get("sample_id", str), sample.seed
        known = merged.setdefault(key, sample)
        if known is not sample:
            if metric in known.values or known.document != sample.document:
                raise DataError(
                    f"{row.place}: sample {key[0]!r} has two records of '{metric}', the other in "
                    f"{known.place}; keep one"
                )
            # A document that failed under one metric is no answer under the others.
            failed = known if known.error else sample
            merged[key] = replace(
                failed,
                values={} if failed.error else {**known.values, **sample.values},
                choices={} if failed.error else {**known.choices, **sample.choices},
            )
    return list(merged.values())


def _sample(row: Fields, metric: str) -> ImportedSample:
    shown = row.fields("input")
    raw, reference, choices = shown.get("raw", str), shown.get("reference", list), shown.value.get("choices")
    metadata = row.fields("metadata", required=False).value
    document: Any = [raw, reference, choices]
    if not raw:
        document = row.value.get("sample_hash")
        if not document:
            raise DataError(
                f"{row.place}: neither 'input.raw' nor 'sample_hash' says which document this is; samples "
                "without either cannot be paired"
            )
    error = row.value.get("error")
    count = len(choices) if isinstance(choices, list) else _integer(metadata.get("choices")) or 0
    picked = _integer(metadata.get("choice"))
    return ImportedSample(
        document=document,
        prompt=_prompt(row, shown, metadata, document),
        values={metric: row.fields("evaluation").real("score")} if not error else {},
        place=row.place,
        seed=_integer(metadata.get("seed")) or 0,
        chance=1 / count if count > 1 else None,
        outcome="error" if error else str(metadata.get("outcome", "ok")),
        error=str(error) if error else None,
        choices={metric: picked} if picked is not None and not error else {},
        detail=_detail(row, reference),
    )


def _integer(value: Any) -> int | None:
    """A natural number of the metadata, whose values are texts; None for anything else."""
    text = str(value)
    return int(text) if text.isascii() and text.isdigit() and len(text) < 19 else None


def _prompt(row: Fields, shown: Fields, metadata: Any, document: Any) -> Any:
    messages = row.value.get("messages")
    if isinstance(messages, list):
        return prompt(messages, row.place)
    return shown.value.get("formatted") or metadata.get("prompt_hash") or document


def _detail(row: Fields, reference: list[Any]) -> dict[str, Any]:
    output = row.fields("output", required=False).value.get("raw")
    attribution = row.get("answer_attribution", list)
    last = attribution[-1] if attribution and isinstance(attribution[-1], dict) else {}
    return {
        "response": str(output[0]) if isinstance(output, list) and output else "",
        "extracted": str(last.get("extracted_value") or ""),
        "target": [str(each) for each in reference],
    }
