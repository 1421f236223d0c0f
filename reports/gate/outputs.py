"""The verdict as JUnit XML, Markdown and JSON."""

import re
import xml.etree.ElementTree as ET
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from evalsuite.foundation import write_json, write_text
from evalsuite.foundation.typed import from_json
from evalsuite.reports.gate.decide import INCONCLUSIVE, PASS, REGRESSION, UNMEASURED
from evalsuite.reports.gate.verdict import RuleResult, Verdict
from evalsuite.reports.json_values import to_json
from evalsuite.reports.markdown import escape, table

SCHEMA = 3
SIGNS = {PASS: "✅", REGRESSION: "❌", INCONCLUSIVE: "❔", UNMEASURED: "⚠️"}
_FORBIDDEN = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""Characters that XML 1.0 cannot represent, even escaped."""


def write_verdict(verdict: Verdict, out: Path) -> tuple[Path, ...]:
    """Write junit.xml, gate.md and gate.json to a folder and return their paths."""
    write_text(out / "junit.xml", junit_xml(verdict))
    write_text(out / "gate.md", markdown(verdict))
    write_json(out / "gate.json", verdict_json(verdict))
    return out / "junit.xml", out / "gate.md", out / "gate.json"


def junit_xml(verdict: Verdict) -> str:
    """One test case per result: regressions fail, unmeasured rules are errors, undecided ones are skipped."""
    outcomes = [result.outcome for result in verdict.results]
    suite = ET.Element(
        "testsuite",
        name="evalsuite gate",
        tests=str(len(outcomes)),
        failures=str(outcomes.count(REGRESSION)),
        errors=str(outcomes.count(UNMEASURED)),
        skipped=str(outcomes.count(INCONCLUSIVE)),
    )
    kinds = {REGRESSION: "failure", UNMEASURED: "error", INCONCLUSIVE: "skipped"}
    for result in verdict.results:
        case = ET.SubElement(suite, "testcase", name=_xml(result.name), classname=_xml(result.checkpoint))
        message = _xml(result.sentence)
        if result.outcome == PASS:
            ET.SubElement(case, "system-out").text = message
            continue
        element = ET.SubElement(case, kinds[result.outcome], message=message)
        element.text = _xml("\n".join([result.sentence, *_look_at(result)]))
    if verdict.warnings:
        ET.SubElement(suite, "system-out").text = _xml("\n".join(verdict.warnings))
    root = ET.Element("testsuites")
    root.append(suite)
    ET.indent(root)
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{ET.tostring(root, encoding="unicode")}\n'


def markdown(verdict: Verdict) -> str:
    """Format the verdict as Markdown for GITHUB_STEP_SUMMARY or a pull request."""
    rows = [
        [
            f"{SIGNS[result.outcome]} {result.outcome}",
            escape(result.checkpoint),
            escape(result.name),
            escape(result.requirement),
            escape(result.measured),
        ]
        for result in verdict.results
    ]
    parts = [
        f"## Gate: {verdict.word}",
        table(["outcome", "checkpoint", "rule", "required", "measured (95 % interval)"], rows)
        if rows
        else "No rules.",
    ]
    failing = [d for d in verdict.results if d.outcome != PASS]
    if failing:
        parts.append(
            "\n".join(
                f"- **{escape(d.checkpoint)}**, {escape(d.name)}: {escape(d.sentence)}" for d in failing
            )
        )
    documents = [line for result in failing for line in _look_at(result)]
    if documents:
        listed = "\n".join(f"- {escape(line)}" for line in documents)
        parts.append(f"<details><summary>Documents to look at</summary>\n\n{listed}\n\n</details>")
    if verdict.warnings:
        listed = "\n".join(f"- {escape(warning)}" for warning in verdict.warnings)
        parts.append(f"### Warnings\n\n{listed}")
    return "\n\n".join(parts) + "\n"


def verdict_json(verdict: Verdict) -> dict[str, Any]:
    """Convert the verdict to JSON-able values; this is the content of gate.json."""
    return {
        "schema": SCHEMA,
        "exit_code": verdict.exit_code,
        "verdict": verdict.word,
        "policy": {"name": verdict.policy, "id": verdict.policy_id},
        "results": [{**to_json(d), "sentence": d.sentence} for d in verdict.results],
        "tolerated": verdict.tolerated,
        "warnings": list(verdict.warnings),
    }


def verdict_from_json(values: Mapping[str, Any], source: str) -> Verdict:
    """The verdict that `verdict_json` wrote.

    Raises:
        DataError: a result with an unknown key or a value of another type; the message names `source`.
    """
    results = [{key: each for key, each in row.items() if key != "sentence"} for row in values["results"]]
    return Verdict(
        tuple(from_json(each, RuleResult, source) for each in results),
        values["exit_code"],
        values["tolerated"],
        tuple(values["warnings"]),
        values["policy"]["name"],
        values["policy"]["id"],
    )


def _look_at(result: RuleResult) -> list[str]:
    if not result.look_at:
        return []
    return [f"{result.checkpoint}, {result.name}: {', '.join(result.look_at)}"]


def _xml(text: str) -> str:
    return _FORBIDDEN.sub("\ufffd", text)
