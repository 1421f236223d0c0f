"""Every Eval Ever 0.3.0: one aggregate file and its samples per checkpoint.

Format: evaleval/every_eval_ever (arXiv 2606.14516), `eval.schema.json` and `instance_level_eval.schema.json`,
with the rules of its validator. Questions are not exported: `sample_id` is the hash of the document.
"""

import hashlib
import json
import time
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import evalsuite
from evalsuite.foundation import DataError, canonical_json, write_bytes, write_json
from evalsuite.reports.analysis.cells import Cell
from evalsuite.reports.exports.exporter import EXPORTERS, Export, Measured, created, folder_of, measured
from evalsuite.reports.records.score_files import read_rows
from evalsuite.reports.report import Report

SCHEMA_VERSION = "0.3.0"
COLLECTION = "evalsuite"
_DEVELOPER = "local"
"""Developer of a checkpoint that has no name on the hub."""


class EveryEvalEver:
    """`data/evalsuite/<developer>/<model>/<uuid>.json` with `<uuid>_samples.jsonl`."""

    title = "Every Eval Ever 0.3"

    def write(self, report: Report, out: Path) -> Export:
        """Write one aggregate file and its samples per checkpoint; see `Exporter`."""
        files: list[Path] = []
        left_out: list[str] = []
        for index in range(len(report.checkpoints)):
            scores = measured(report, index)
            left_out += [
                f"{each.name}, {each.row.protocol}: a perplexity has no upper bound, but the schema needs one"
                for each in scores
                if each.how.direction == "lower"
            ]
            chosen = [each for each in scores if each.how.direction == "higher"]
            if chosen:
                files += _write(report, index, chosen, Path(out))
        if not files:
            raise DataError("no checkpoint has a complete score to export")
        return Export(tuple(files), tuple(dict.fromkeys(left_out)))


EXPORTERS.add("every-eval-ever", EveryEvalEver())


def _write(report: Report, checkpoint: int, scores: list[Measured], out: Path) -> list[Path]:
    entry = report.checkpoints[checkpoint]
    model = folder_of(report, checkpoint)
    evaluation_id = f"{COLLECTION}/{_DEVELOPER}_{model}_{entry.weights_id}/{created(report, checkpoint)}"
    # A version 4 identifier, as the database requires, but the same for the same evaluation.
    name = uuid.UUID(bytes=hashlib.sha256(evaluation_id.encode()).digest()[:16], version=4)
    folder = f"data/{COLLECTION}/{_DEVELOPER}/{model}"
    identity = {"evaluation_id": evaluation_id, "model_id": f"{_DEVELOPER}/{model}"}
    lines = [
        json.dumps(record, ensure_ascii=False, allow_nan=False) + "\n"
        for each in scores
        for record in _records(report, checkpoint, each, identity)
    ]
    samples = "".join(lines).encode()
    aggregate = {
        "schema_version": SCHEMA_VERSION,
        "evaluation_id": evaluation_id,
        "evaluation_timestamp": created(report, checkpoint),
        "retrieved_timestamp": str(int(time.time())),
        "source_metadata": {
            "source_name": "evalsuite",
            "source_type": "evaluation_run",
            "source_organization_name": "unknown",
            "evaluator_relationship": "other",
        },
        "eval_library": {"name": "evalsuite", "version": evalsuite.__version__},
        "model_info": _model(report, checkpoint, identity["model_id"]),
        "evaluation_results": [_result(each) for each in scores],
        "detailed_evaluation_results": {
            "format": "jsonl",
            "file_path": f"{folder}/{name}_samples.jsonl",
            "hash_algorithm": "sha256",
            "checksum": hashlib.sha256(samples).hexdigest(),
            "total_rows": len(lines),
        },
    }
    paths = [out / folder / f"{name}.json", out / folder / f"{name}_samples.jsonl"]
    write_bytes(paths[1], samples)
    write_json(paths[0], aggregate)
    return paths


def _model(report: Report, checkpoint: int, identifier: str) -> dict[str, Any]:
    entry = report.checkpoints[checkpoint]
    details = {
        "deployment_type": "self_deployed",
        "model_availability": "unknown",
        "weights_id": entry.weights_id,
        "role": entry.role,
    }
    if entry.teacher is not None:
        details["teacher"] = report.checkpoints[entry.teacher].label
    return {
        "name": entry.label,
        "id": identifier,
        "developer": _DEVELOPER,
        "additional_details": details,
    }


def _names(each: Measured) -> dict[str, str]:
    name = f"{COLLECTION}.{each.name}.{each.row.protocol}"
    return {"evaluation_name": name, "evaluation_result_id": f"{name}.{each.how.metric}"}


def _result(each: Measured) -> dict[str, Any]:
    dataset = each.benchmark.dataset
    source: dict[str, Any] = {"dataset_name": each.benchmark.title, "source_type": "other"}
    if dataset is not None:
        source |= {"source_type": "hf_dataset", "hf_repo": dataset.id, "hf_split": dataset.split}
        source["samples_number"] = each.how.planned(each.row.context)
    interval = each.row.score
    return {
        **_names(each),
        "source_data": source,
        "metric_config": {
            "metric_id": "accuracy" if each.how.metric == "acc" else each.how.metric,
            "metric_name": each.how.metric,
            "metric_unit": "proportion",
            "lower_is_better": False,
            "score_type": "continuous",
            "min_score": 0.0,
            "max_score": 1.0,
            "additional_details": {
                "protocol": each.row.protocol,
                "num_fewshot": str(each.how.num_fewshot),
            },
        },
        "score_details": {
            "score": interval.point,
            "uncertainty": {
                "confidence_interval": {
                    "lower": interval.low,
                    "upper": interval.high,
                    "confidence_level": 0.95,
                    "method": interval.method or "Wilson score",
                },
                "num_samples": each.row.documents,
            },
        },
        **(
            {"generation_config": {"additional_details": {"sampling": each.how.sampling}}}
            if each.how.sampling
            else {}
        ),
    }


def _records(
    report: Report, checkpoint: int, each: Measured, identity: Mapping[str, str]
) -> Iterator[dict[str, Any]]:
    """The samples of one score: one record per document and seed."""
    cell = _cell(report, checkpoint, each)
    place = cell.present.index(checkpoint)
    rows: dict[int, dict[int, dict[str, Any]]] = {
        int(file): read_rows(report.tensor.score_files[file])
        for file in sorted({int(number) for number in cell.score_files[place].ravel()})
    }
    for document in range(len(cell.documents)):
        for seed in range(len(cell.seeds)):
            row = rows[int(cell.score_files[place, seed, document])][int(cell.lines[place, seed, document])]
            yield {"schema_version": SCHEMA_VERSION, **identity, **_names(each), **_record(row, each)}


def _cell(report: Report, checkpoint: int, each: Measured) -> Cell:
    key = each.row.benchmark, each.row.protocol, each.row.context
    return next(cell for cell in report.tensor.cells if cell.key == key and checkpoint in cell.present)


def _record(row: Mapping[str, Any], each: Measured) -> dict[str, Any]:
    detail = row["detail"]
    score = float(row["values"].get(each.how.metric, 0.0))
    reference = detail.get("target", detail.get("gold", []))
    references = reference if isinstance(reference, list) else [reference]
    extracted = detail.get("extracted")
    answer = {
        "turn_idx": 0,
        "source": "output.raw",
        "extracted_value": str(extracted),
        "extraction_method": each.how.metric,
        "is_terminal": True,
    }
    return {
        "sample_id": row["doc_id"] if row["seed"] == 0 else f"{row['doc_id']}/{row['seed']}",
        "sample_hash": row["doc_id"],
        "interaction_type": "single_turn",
        "input": {"raw": "", "reference": [str(value) for value in references if value is not None]},
        "output": {"raw": [str(detail.get("response", ""))]},
        "answer_attribution": [answer] if extracted else [],
        "evaluation": {"score": score, "is_correct": score == 1.0},
        **({"error": str(row["error"])} if row["error"] else {}),
        "metadata": _metadata(row, each),
    }


def _metadata(row: Mapping[str, Any], each: Measured) -> dict[str, str]:
    found = {
        "protocol": each.row.protocol,
        "prompt_hash": row["prompt_hash"],
        "seed": str(row["seed"]),
        "outcome": row["outcome"],
    }
    logprobs = row["detail"].get("logprobs")
    if isinstance(logprobs, list) and len(logprobs) > 1:
        found |= {"choices": str(len(logprobs)), "logprobs": canonical_json(logprobs)}
    if (choice := row["choices"].get(each.how.metric)) is not None:
        found["choice"] = str(choice)
    return found
