"""Logs that the installed lm-eval writes, of its own model that answers at random."""

import json
import math
from pathlib import Path

import pytest

from evalsuite.reports import RunSelection
from evalsuite.reports.imports import find_importer, import_logs
from evalsuite.reports.records.score_table import score_table
from evalsuite.reports.report import build_report

TASKS = {
    "choices": """
output_type: multiple_choice
doc_to_text: "{{question}}"
doc_to_choice: "{{choices}}"
doc_to_target: "{{gold}}"
metric_list: [{metric: acc}, {metric: acc_norm}]
metadata: {version: 2.0}
""",
    "sums": """
output_type: generate_until
doc_to_text: "{{question}}"
doc_to_target: "{{gold}}"
generation_kwargs: {until: ["Q:"], do_sample: false}
filter_list:
  - {name: strict, filter: [{function: regex, regex_pattern: "#### ([0-9]+)"}, {function: take_first}]}
  - {name: flexible, filter: [{function: regex, regex_pattern: "([a-z])"}, {function: take_first}]}
metric_list: [{metric: exact_match}]
metadata: {version: 1.0}
""",
    "pages": """
output_type: loglikelihood_rolling
doc_to_text: ""
doc_to_target: "{{question}}"
metric_list: [{metric: word_perplexity}, {metric: byte_perplexity}]
metadata: {version: 1.0}
""",
}


GROUP = """
group: both
task: [choices, few]
aggregate_metric_list: [{metric: acc, weight_by_size: true}]
"""


@pytest.mark.slow
def test_the_installed_lm_eval(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("lm_eval")
    from lm_eval import simple_evaluate
    from lm_eval.loggers import EvaluationTracker
    from lm_eval.tasks import TaskManager

    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    documents = [
        {"question": f"What is {i}? Say it.", "choices": ["it", f"number {i}", "none"], "gold": i % 3}
        for i in range(30)
    ]
    data = tmp_path / "documents.jsonl"
    data.write_text("".join(json.dumps(document) + "\n" for document in documents))
    folder = tmp_path / "tasks"
    folder.mkdir()
    few = tmp_path / "few.jsonl"
    few.write_text("".join(data.read_text().splitlines(keepends=True)[-7:]))
    texts = TASKS | {"few": TASKS["choices"]}
    for name, text in texts.items():
        source = f"task: {name}\ndataset_path: json\ntest_split: test\n"
        files = f"dataset_kwargs: {{data_files: {{test: {few if name == 'few' else data}}}}}\n"
        (folder / f"{name}.yaml").write_text(source + files + text.lstrip())
    (folder / "both.yaml").write_text(GROUP.lstrip())
    manager = TaskManager(include_path=str(folder), include_defaults=False)
    reported = {}
    for model in ("big", "small"):
        tracker = EvaluationTracker(output_path=str(tmp_path / "logs"))
        results = simple_evaluate(
            model="dummy",
            tasks=["both", "sums", "pages"],
            task_manager=manager,
            limit=20,
            bootstrap_iters=100,
            evaluation_tracker=tracker,
        )
        samples = results.pop("samples")
        # As lm-eval's command line, which names the model by its arguments.
        tracker.general_config_tracker.model_name = model
        tracker.general_config_tracker.model_name_sanitized = model
        tracker.save_results_aggregated(results=results, samples=samples)
        for name in texts:
            tracker.save_results_samples(task_name=name, samples=samples[name])
        reported[model] = results["results"]
    assert find_importer(tmp_path / "logs") == "lm-eval"
    runs = import_logs([("lm-eval", tmp_path / "logs")], tmp_path / "imported")
    report = build_report(runs, RunSelection(teacher="big"))
    assert not report.tensor.incomplete
    for run, model in zip(runs, ("big", "small"), strict=True):
        table = score_table(run)
        found = {(r["benchmark"], r["metric"]): r["score"] for _, r in table.iterrows()}
        for (benchmark, metric), score in found.items():
            name = metric if "," in metric else f"{metric},none"
            expected = reported[model][benchmark][name]
            assert (math.exp(score) if "perplexity" in metric else score) == pytest.approx(expected)
        assert len(found) == 8
    for number, model in enumerate(("big", "small")):
        average = report.average(number, "loglikelihood")
        assert average is not None
        assert average.score.point == pytest.approx(reported[model]["both"]["acc,none"])
