"""Provenance: lineage of the checkpoints and environment of the runs."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from evalsuite.reports import formatting
from evalsuite.reports.analysis.lineage import lineage_of
from evalsuite.reports.records.sidecars import DoctorResult
from evalsuite.reports.report import Report
from evalsuite.reports.run import Benchmark
from evalsuite.reports.section import section


@dataclass(frozen=True, slots=True)
class LineageView:
    """Origin of one checkpoint."""

    label: str
    role: str
    facts: tuple[tuple[str, str], ...]
    stages: tuple[tuple[str, str, str], ...]
    """Name, objective, tokens."""


def lineages(report: Report) -> list[LineageView]:
    """The lineage of every checkpoint."""
    views = []
    for checkpoint in report.checkpoints:
        lineage = lineage_of(checkpoint)
        facts = [
            ("weights", checkpoint.weights_id),
            ("path", checkpoint.path),
            ("parameters", formatting.count(checkpoint.parameters) if checkpoint.parameters else ""),
            ("mixers", lineage.describe_mixers()),
            ("recipe", " ".join(part for part in (lineage.recipe, lineage.recipe_hash) if part)),
            ("seed", "" if lineage.seed is None else str(lineage.seed)),
            ("teacher", " ".join(part for part in (lineage.teacher_path, lineage.teacher_id) if part)),
            ("variant of", lineage.variant_of or ""),
            ("continues", " → ".join(lineage.ancestors)),
            ("tokens", formatting.count(lineage.tokens) if lineage.tokens else ""),
            ("distinct tokens", formatting.count(lineage.distinct_tokens) if lineage.distinct_tokens else ""),
            ("training", "" if lineage.complete else "intermediate checkpoint"),
        ]
        stages = tuple(
            (
                stage.name,
                stage.objective,
                formatting.NOTHING if stage.tokens is None else formatting.count(stage.tokens),
            )
            for stage in lineage.stages
        )
        views.append(LineageView(checkpoint.label, checkpoint.role, tuple(f for f in facts if f[1]), stages))
    return views


def environment_facts(environment: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Key-value pairs of an environment; nested values as JSON."""
    return [
        (str(key), value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, sort_keys=True))
        for key, value in environment.items()
        if value not in ({}, [], None, "")
    ]


@section("lineage", "Lineage", order=90, template="sections/lineage.html.j2")
def lineage_section(report: Report) -> list[LineageView]:
    """The lineage of every checkpoint."""
    return lineages(report)


@dataclass(frozen=True, slots=True)
class MethodView:
    """Benchmarks, doctor results and environments."""

    benchmarks: tuple[Benchmark, ...]
    recall: list[str]
    """The recall numbers of these benchmarks, with their sources."""
    doctor: tuple[DoctorResult, ...]
    environments: list[tuple[str, list[tuple[str, str]]]]
    """Run → its environment."""


@section("method", "Method and environment", order=95, template="sections/method.html.j2")
def method_section(report: Report) -> MethodView:
    """How the numbers were made."""
    runs = (run.name for run in report.tensor.merged.runs)
    numbers = {name: number for each in report.benchmarks for name, number in each.recall.items()}
    return MethodView(
        benchmarks=report.benchmarks,
        recall=[", ".join(filter(None, (each.title, each.source))) for each in numbers.values()],
        doctor=report.doctor,
        environments=[
            (run, environment_facts(facts)) for run, facts in zip(runs, report.environments, strict=True)
        ],
    )
