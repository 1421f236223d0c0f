"""The verdict as JUnit XML, Markdown and JSON."""

import re
import xml.etree.ElementTree as ET
from dataclasses import asdict
from pathlib import Path
from typing import Any

from evalsuite.foundation import write_json, write_text
from evalsuite.reports.gating.decide import INCONCLUSIVE, PASS, REGRESSION, UNMEASURED
from evalsuite.reports.gating.verdict import Decision, Verdict
from evalsuite.reports.markdown import escape, table

SCHEMA = 1
SIGNS = {PASS: "✅", REGRESSION: "❌", INCONCLUSIVE: "❔", UNMEASURED: "⚠️"}
_FORBIDDEN = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""What XML 1.0 cannot hold, even escaped."""


def write_verdict(verdict: Verdict, out: Path) -> tuple[Path, ...]:
    """Write junit.xml, gate.md and gate.json to a folder and return their paths."""
    write_text(out / "junit.xml", junit_xml(verdict))
    write_text(out / "gate.md", markdown(verdict))
    write_json(out / "gate.json", verdict_json(verdict))
    return out / "junit.xml", out / "gate.md", out / "gate.json"


def junit_xml(verdict: Verdict) -> str:
    """One test case per decision: regressions fail, unmeasured lines are errors, undecided ones skipped."""
    outcomes = [decision.outcome for decision in verdict.decisions]
    suite = ET.Element(
        "testsuite",
        name="evalsuite gate",
        tests=str(len(outcomes)),
        failures=str(outcomes.count(REGRESSION)),
        errors=str(outcomes.count(UNMEASURED)),
        skipped=str(outcomes.count(INCONCLUSIVE)),
    )
    kinds = {REGRESSION: "failure", UNMEASURED: "error", INCONCLUSIVE: "skipped"}
    for decision in verdict.decisions:
        case = ET.SubElement(suite, "testcase", name=_xml(decision.name), classname=_xml(decision.checkpoint))
        said = _xml(decision.sentence)
        if decision.outcome == PASS:
            ET.SubElement(case, "system-out").text = said
            continue
        found = ET.SubElement(case, kinds[decision.outcome], message=said)
        found.text = _xml("\n".join([decision.sentence, *_look_at(decision)]))
    root = ET.Element("testsuites")
    root.append(suite)
    ET.indent(root)
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{ET.tostring(root, encoding="unicode")}\n'


def markdown(verdict: Verdict) -> str:
    """A table for GITHUB_STEP_SUMMARY or a pull request."""
    rows = [
        [
            f"{SIGNS[decision.outcome]} {decision.outcome}",
            escape(decision.checkpoint),
            escape(decision.name),
            escape(decision.demand),
            escape(decision.found),
        ]
        for decision in verdict.decisions
    ]
    parts = [
        f"## Gate: {verdict.word}",
        table(["outcome", "checkpoint", "line", "demanded", "found (95 % interval)"], rows)
        if rows
        else "No lines.",
    ]
    said = [d for d in verdict.decisions if d.outcome != PASS]
    if said:
        parts.append(
            "\n".join(f"- **{escape(d.checkpoint)}**, {escape(d.name)}: {escape(d.sentence)}" for d in said)
        )
    documents = [line for decision in said for line in _look_at(decision)]
    if documents:
        listed = "\n".join(f"- {escape(line)}" for line in documents)
        parts.append(f"<details><summary>Documents to look at</summary>\n\n{listed}\n\n</details>")
    if verdict.warnings:
        listed = "\n".join(f"- {escape(warning)}" for warning in verdict.warnings)
        parts.append(f"<details><summary>Warnings</summary>\n\n{listed}\n\n</details>")
    return "\n\n".join(parts) + "\n"


def verdict_json(verdict: Verdict) -> dict[str, Any]:
    """Everything, for programs."""
    return {
        "schema": SCHEMA,
        "exit_code": verdict.exit_code,
        "verdict": verdict.word,
        "decisions": [{**asdict(d), "sentence": d.sentence} for d in verdict.decisions],
        "warnings": list(verdict.warnings),
    }


def _look_at(decision: Decision) -> list[str]:
    if not decision.look_at:
        return []
    return [f"{decision.checkpoint}, {decision.name}: {', '.join(decision.look_at)}"]


def _xml(text: str) -> str:
    return _FORBIDDEN.sub("\ufffd", text)
