"""The Hugging Face Hub's formats: `.eval_results/*.yaml` and the `model-index` of a model card.

Sources: hub-docs, docs/hub/eval-results.md and modelcard.md; `huggingface_hub.repocard_data`.
"""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

import evalsuite
from evalsuite.foundation import DataError, write_text
from evalsuite.reports.exports.exporter import (
    EXPORTERS,
    Export,
    Measured,
    created,
    describe,
    folder_of,
    measured,
)
from evalsuite.reports.report import Report


class EvalResults:
    """One file per score in `<checkpoint>/.eval_results/`; values are percentages."""

    title = "Hugging Face .eval_results"

    def write(self, report: Report, out: Path) -> Export:
        """Write the scores whose dataset is known; see `Exporter`."""
        files: list[Path] = []
        left_out: list[str] = []
        for index in range(len(report.checkpoints)):
            folder = Path(out) / folder_of(report, index) / ".eval_results"
            for each in measured(report, index):
                reason = _why_not(each)
                if reason is not None:
                    left_out.append(f"{each.name}, {each.row.protocol}: {reason}")
                    continue
                path = folder / f"{each.name}.{each.row.protocol}.yaml"
                write_text(path, _dump([_eval_result(each, created(report, index))]))
                files.append(path)
        if not files:
            raise DataError(
                f"no score can be written as .eval_results: {'; '.join(dict.fromkeys(left_out)) or 'none'}"
            )
        return Export(tuple(files), tuple(dict.fromkeys(left_out)))


class ModelIndex:
    """`<checkpoint>/model-index.yaml`, for the front matter of a model card."""

    title = "model-index"

    def write(self, report: Report, out: Path) -> Export:
        """Write one file per checkpoint; see `Exporter`."""
        files = []
        for index in range(len(report.checkpoints)):
            found = model_index(report, index)
            if found:
                path = Path(out) / folder_of(report, index) / "model-index.yaml"
                write_text(path, _dump({"model-index": found}))
                files.append(path)
        if not files:
            raise DataError("no checkpoint has a complete score to write into a model-index")
        return Export(tuple(files))


EXPORTERS.add("eval-results", EvalResults())
EXPORTERS.add("model-index", ModelIndex())


def _dump(value: Any) -> str:
    return yaml.safe_dump(value, sort_keys=False, allow_unicode=True, width=100)


def _why_not(each: Measured) -> str | None:
    if each.benchmark.dataset is None:
        return "the plan names no dataset of the hub"
    return "a perplexity is no percentage" if each.how.direction == "lower" else None


def _eval_result(each: Measured, date: str) -> dict[str, Any]:
    dataset = each.benchmark.dataset
    assert dataset is not None
    return {
        # A benchmark's eval.yaml names its tasks; the config of the dataset is what we know of them.
        "dataset": {"id": dataset.id, "task_id": dataset.config or "default"},
        "value": round(100 * each.row.score.point, 4),
        "date": date,
        "notes": f"{describe(each)}; evalsuite {evalsuite.__version__}",
    }


def model_index(report: Report, checkpoint: int) -> list[dict[str, Any]]:
    """The `model-index` of one checkpoint; empty without complete scores."""
    results = [_result(each) for each in measured(report, checkpoint)]
    return [{"name": report.checkpoints[checkpoint].label, "results": results}] if results else []


def _result(each: Measured) -> dict[str, Any]:
    dataset = each.benchmark.dataset
    shown: dict[str, Any] = {"name": each.benchmark.title, "type": each.row.benchmark}
    if dataset is not None:
        shown |= {"type": dataset.id, "split": dataset.split}
        if dataset.config is not None:
            shown["config"] = dataset.config
    return {
        "task": {"type": "text-generation", "name": "Text generation"},
        "dataset": shown,
        "metrics": [_metric(each)],
    }


def _metric(each: Measured) -> Mapping[str, Any]:
    where = "" if each.row.context is None else f" at {each.row.context:,} tokens"
    if each.how.direction == "lower":
        return {
            "type": "perplexity",
            "name": f"{each.how.metric}{where}",
            "value": math.exp(each.row.score.point),
        }
    return {
        "type": "accuracy" if each.how.metric.startswith("acc") else each.how.metric,
        "name": f"{describe(each)}{where}",
        "value": round(100 * each.row.score.point, 4),
    }
