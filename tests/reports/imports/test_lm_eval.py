"""lm-eval's logs: scores, pairing, gate, and refusals by name."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from evalsuite.foundation import ConfigError, DataError
from evalsuite.reports import RunSelection, compare, policy_from_options, run_gate
from evalsuite.reports.imports import KnownBenchmark, find_importer, import_logs
from evalsuite.reports.records.score_files import read_rows, score_paths
from evalsuite.reports.records.score_table import score_table
from evalsuite.reports.report import Report, build_report
from tests.reports.imports.logs import LmEvalLog, task


def teacher() -> LmEvalLog:
    return LmEvalLog("org/big", {"arc": task(1, skill=3.0), "swag": task(2, skill=3.0)})


def student() -> LmEvalLog:
    return LmEvalLog("org/small", {"arc": task(3, skill=2.0), "swag": task(4, skill=2.0)})


def imported(tmp_path: Path, *logs: LmEvalLog, **options: Any) -> list[Path]:
    sources = [("lm-eval", log.write(tmp_path / str(number))) for number, log in enumerate(logs)]
    return import_logs(sources, tmp_path / "imported", **options)


def report_of(tmp_path: Path, *logs: LmEvalLog) -> Report:
    return build_report(imported(tmp_path, *logs), RunSelection(teacher="big"))


def test_scores_are_those_of_lm_eval(tmp_path: Path) -> None:
    log = teacher()
    (run,) = imported(tmp_path, log)
    table = score_table(run)
    found = {row["benchmark"]: row["score"] for _, row in table[table["metric"] == "acc"].iterrows()}
    assert found == {name: each["acc,none"] for name, each in log.results["results"].items()}
    assert set(table["documents"]) == {40}


def test_a_student_is_compared_document_by_document(tmp_path: Path) -> None:
    report = report_of(tmp_path, teacher(), student())
    assert [each.label for each in report.checkpoints] == ["big", "small"]
    expected = (
        np.mean([student().tasks[name].correct.mean() for name in ("arc", "swag")]),
        np.mean([teacher().tasks[name].correct.mean() for name in ("arc", "swag")]),
    )
    average = report.average(1, "loglikelihood")
    assert average is not None
    assert average.score.point == pytest.approx(expected[0])
    assert average.recovery.point == pytest.approx(expected[0] / expected[1])
    (pair,) = [each for each in report.pairs if each.protocol == "loglikelihood"]
    assert pair.difference.low <= expected[0] - expected[1] <= pair.difference.high or (
        pair.difference.low <= expected[1] - expected[0] <= pair.difference.high
    )
    assert not report.tensor.incomplete


def test_the_gate_decides_on_imported_logs(tmp_path: Path) -> None:
    weak = LmEvalLog("weak", {"arc": task(5, 400, skill=0.0), "swag": task(6, 400, skill=0.0)})
    strong = LmEvalLog("big", {"arc": task(1, 400, skill=9.0), "swag": task(2, 400, skill=9.0)})
    runs = imported(tmp_path, strong, weak)
    policy = policy_from_options(min_recovery=0.9)
    selection = RunSelection(teacher="big")
    assert run_gate(runs, policy, out=tmp_path / "gate", selection=selection).exit_code == 1
    same = LmEvalLog("copy", strong.tasks)
    runs = imported(tmp_path / "equal", strong, same)
    assert run_gate(runs, policy, out=tmp_path / "gate", selection=selection).exit_code == 0


def test_rows_hold_choices_and_log_probabilities(tmp_path: Path) -> None:
    log = teacher()
    (run,) = imported(tmp_path, log)
    (path,) = score_paths(run, "arc", "loglikelihood")
    rows = list(read_rows(path).values())
    arc = log.tasks["arc"]
    assert [row["choices"] for row in rows] == [
        {"acc": int(choice), "acc_norm": int(choice)} for choice in np.argmax(arc.logprobs, axis=1)
    ]
    assert [row["detail"]["gold"] for row in rows] == list(arc.gold)
    assert rows[0]["detail"]["logprobs"] == arc.logprobs[0].tolist()
    assert {row["chance"] for row in rows} == {0.25}


def test_a_known_benchmark_has_its_title_category_and_metric(tmp_path: Path) -> None:
    known = KnownBenchmark(
        title="ARC",
        category="knowledge",
        chances={"loglikelihood": "per_document", "generation": 0.25},
        metrics={"loglikelihood": "acc_norm"},
    )
    runs = imported(tmp_path, teacher(), lookup=lambda name: known if name == "arc" else None)
    plan = build_report(runs).benchmarks
    assert [(each.title, each.category) for each in plan] == [("ARC", "knowledge"), ("swag", "other")]
    assert plan[0].chance == "per_document"
    assert [each.protocols["loglikelihood"].metric for each in plan] == ["acc_norm", "acc"]


def test_subtasks_of_a_group_count_as_one(tmp_path: Path) -> None:
    log = teacher()
    log.results["group_subtasks"] = {"all": ["some", "swag"], "some": ["arc"], "swag": []}
    (run,) = imported(tmp_path, log)
    assert [each.group for each in build_report([run]).benchmarks] == ["all", "all"]


@pytest.mark.parametrize("by_size", [True, False])
def test_a_group_weighs_its_tasks_as_its_own_score_does(tmp_path: Path, by_size: bool) -> None:
    sizes = {"few": 20, "many": 80}
    expected = []
    for model, seeds in (("big", (1, 2)), ("small", (3, 4))):
        tasks = {name: task(seed, n) for (name, n), seed in zip(sizes.items(), seeds, strict=True)}
        log = LmEvalLog(model, tasks)
        scores = [each.correct.mean() for each in tasks.values()]
        expected.append(float(np.average(scores, weights=list(sizes.values()) if by_size else None)))
        log.results["group_subtasks"] = {"outer": ["both"], "both": ["few", "many"]}
        log.results["groups"] = {"both": {"acc,none": expected[-1], "acc_stderr,none": "N/A"}}
        log.write(tmp_path / "logs")
    runs = import_logs([("lm-eval", tmp_path / "logs")], tmp_path / "imported")
    report = build_report(runs, RunSelection(teacher="big"))
    assert {each.group for each in report.benchmarks} == {"both"}
    compare(runs, tmp_path / "report", selection=RunSelection(teacher="big"))
    page = (tmp_path / "report" / "index.html").read_text()
    assert ("weighted by their documents" in page) == by_size
    found = [report.average(number, "loglikelihood") for number in (0, 1)]
    assert [each and each.score.point for each in found] == pytest.approx(expected)
    log.results["groups"]["both"]["acc,none"] = 0.999
    with pytest.raises(DataError, match=r"group 'both': 'acc,none' = 0.999 is neither the average"):
        imported(tmp_path, log)


def test_settings_that_change_numbers_tell_checkpoints_apart(tmp_path: Path) -> None:
    settings: list[dict[str, Any]] = [
        {},
        {"load_in_4bit": True},
        {"gguf_file": "q2.gguf"},
        {"gguf_file": "q8.gguf"},
        {"batch_size": 8, "device": "cuda"},
    ]
    logs = []
    for number, each in enumerate(settings):
        log = LmEvalLog("org/base", {f"task{number}": task(number)})
        log.results["config"]["model_args"] |= each
        logs.append(log)
    logs += [LmEvalLog(name, {"task": task(9)}) for name in ("m/kda/final", "m/teacher/final")]
    report = build_report(imported(tmp_path, *logs))
    assert {each.label for each in report.checkpoints} == {
        "base",
        "base (load_in_4bit=True)",
        "base (gguf_file=q2.gguf)",
        "base (gguf_file=q8.gguf)",
        "kda/final",
        "teacher/final",
    }


def test_repeated_questions_stay_apart(tmp_path: Path) -> None:
    same = ["the same"] * 40
    logs = [LmEvalLog(name, {"arc": task(seed, documents=40)}) for name, seed in (("big", 1), ("small", 2))]
    for log in logs:
        log.tasks["arc"].documents = same
        log.__post_init__()
    report = report_of(tmp_path, *logs)
    assert [len(cell.documents) for cell in report.tensor.cells] == [40]


def test_two_filters_are_two_metrics_of_one_document(tmp_path: Path) -> None:
    log = LmEvalLog("big", {"sums": task(1)})
    log.results["configs"]["sums"] |= {
        "output_type": "generate_until",
        "generation_kwargs": {"until": ["Q:"], "do_sample": False},
        "metric_list": [{"metric": "exact_match"}],
    }
    rows = []
    for number, row in enumerate(log.rows["sums"]):
        for name, answer in (("strict", "[invalid]"), ("flexible", "[invalid]" if number % 4 else "7")):
            rows.append(
                row
                | {
                    "filter": name,
                    "arguments": {"gen_args_0": {"arg_0": "prompt", "arg_1": {"until": ["Q:"]}}},
                    "resps": [["It is 7."]],
                    "filtered_resps": [answer],
                    "metrics": ["exact_match"],
                    "exact_match": float(answer == "7"),
                }
            )
    log.rows["sums"] = rows
    (run,) = imported(tmp_path, log)
    table = score_table(run)
    assert dict(zip(table["metric"], table["score"], strict=True)) == {
        "exact_match,strict": 0.0,
        "exact_match,flexible": 0.25,
    }
    assert set(table["protocol"]) == {"generation"}
    assert set(table["extraction_failed"]) == {30}


def test_perplexities_are_nats_with_their_units(tmp_path: Path) -> None:
    log = LmEvalLog("big", {"wiki": task(1, 3, choices=2)})
    log.results["configs"]["wiki"] |= {
        "output_type": "loglikelihood_rolling",
        "metric_list": [{"metric": name} for name in ("word_perplexity", "byte_perplexity", "bits_per_byte")],
    }
    for row, nats in zip(log.rows["wiki"], (-10.0, -20.0, -30.0), strict=True):
        row |= {
            "metrics": ["word_perplexity", "byte_perplexity", "bits_per_byte"],
            "word_perplexity": [nats, 5],
            "byte_perplexity": [nats, 50],
            "bits_per_byte": [nats, 50],
            "filtered_resps": [str(nats)],
            "arguments": {"gen_args_0": {"arg_0": "text"}},
        }
    (run,) = imported(tmp_path, log)
    (plan,) = build_report([run]).benchmarks
    how = plan.protocols["loglikelihood"]
    assert (how.metric, how.direction, how.units) == ("word_perplexity", "lower", "words")
    table = score_table(run)
    (score,) = table[table["metric"] == "word_perplexity"]["score"]
    assert math.isclose(score, 60 / 15)


# What cannot be paired is said by name.


def test_other_prompts_are_not_measured(tmp_path: Path) -> None:
    other = student()
    for row in other.rows["arc"][:5]:
        row["arguments"]["gen_args_2"]["arg_1"] += "!"
    report = report_of(tmp_path, teacher(), other)
    assert [(each.benchmark, each.documents) for each in report.tensor.incomplete] == [("arc", 35)]
    assert any("5 have other prompts than its teacher's" in text for text in report.warnings)


def test_samples_that_the_log_counts_but_lacks_are_refused(tmp_path: Path) -> None:
    log = student()
    del log.rows["arc"][7]
    message = r"samples_arc_.*: 39 documents, but 40 were evaluated \('n-samples' in results_.*restore it"
    with pytest.raises(DataError, match=message):
        report_of(tmp_path, teacher(), log)


def test_samples_of_another_evaluation_are_refused(tmp_path: Path) -> None:
    log = student()
    log.rows["arc"] = teacher().rows["arc"]
    log.results["results"]["arc"]["acc,none"] = 0.975
    with pytest.raises(DataError, match=r"samples_arc_.*40 samples have 'acc,none' = .*log reports 0.975"):
        report_of(tmp_path, teacher(), log)


def test_documents_that_one_model_lacks_are_not_measured(tmp_path: Path) -> None:
    log = student()
    rows = log.rows["arc"]
    del rows[7]
    log.results["n-samples"]["arc"]["effective"] = 39
    log.results["results"]["arc"]["acc,none"] = float(np.mean([row["acc"] for row in rows]))
    report = report_of(tmp_path, teacher(), log)
    assert [(each.benchmark, each.documents, each.planned) for each in report.tensor.incomplete] == [
        ("arc", 39, 40)
    ]
    average = report.average(1, "loglikelihood")
    assert average is not None
    assert average.missing == ("arc",)


def test_other_documents_are_not_measured(tmp_path: Path) -> None:
    log = student()
    for row in log.rows["swag"]:
        row["doc_hash"] = row["doc_hash"][::-1]
    report = report_of(tmp_path, teacher(), log)
    assert [each.benchmark for each in report.tensor.incomplete] == ["swag"]
    assert any("its teacher lacks 40" in text for text in report.warnings)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"version": 2.0}, r"'arc' has task version '2.0', but '1.0' in .*cannot be paired"),
        ({"num_fewshot": 5}, r"'arc' has num_fewshot 5, but 0 in "),
    ],
)
def test_other_settings_are_refused(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    other = LmEvalLog("org/small", {"arc": task(3, **change), "swag": task(4)})
    with pytest.raises(DataError, match=message):
        imported(tmp_path, teacher(), other)
    assert len(imported(tmp_path, teacher(), other, benchmarks=["swag"])) == 2


def test_two_logs_of_one_checkpoint_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"'big' has another log of 'arc'.*pass the path of one"):
        imported(tmp_path, teacher(), teacher())


def test_an_unknown_benchmark_is_refused_with_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"--benchmark arcs: no imported log has it.*'arc'"):
        imported(tmp_path, teacher(), benchmarks=["arcs"])


# Bad logs.


def without_samples(log: LmEvalLog) -> None:
    del log.rows["arc"]


def empty_samples(log: LmEvalLog) -> None:
    log.rows["arc"] = []


def old_version(log: LmEvalLog) -> None:
    del log.results["lm_eval_version"]


def without_hash(log: LmEvalLog) -> None:
    del log.rows["arc"][2]["doc_hash"]


def repeated_document(log: LmEvalLog) -> None:
    log.rows["arc"].append(log.rows["arc"][3])


def text_as_score(log: LmEvalLog) -> None:
    log.rows["arc"][4]["acc"] = "=HYPERLINK(1)"


def bad_logprob(log: LmEvalLog) -> None:
    log.rows["arc"][4]["filtered_resps"][0][0] = "<b>"


def unknown_kind(log: LmEvalLog) -> None:
    log.results["configs"]["arc"]["output_type"] = "dance"


def no_object(log: LmEvalLog) -> None:
    log.rows["arc"][1] = ["a", "list"]  # type: ignore[assignment]


def no_fraction(log: LmEvalLog) -> None:
    for row in log.rows["arc"]:
        row["acc"] = row["acc_norm"] = 37.5
    log.results["results"]["arc"]["acc,none"] = 37.5


def no_date(log: LmEvalLog) -> None:
    log.results["date"] = 1e300


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (without_samples, r"samples_arc_.*: no samples of 'arc'.*--log_samples.*ledger --averages"),
        (empty_samples, r"samples_arc_.*: no samples; evaluate again with --log_samples"),
        (old_version, r"'lm_eval_version' = None.*lm-eval 0.4.3 and later"),
        (without_hash, r"samples_arc_.*, line 3: 'doc_hash' is missing"),
        (repeated_document, r"line 41: document 3 has two samples of filter 'none', the other in .*line 4"),
        (text_as_score, r"line 5: 'acc' = '=HYPERLINK\(1\)'; expected a finite number"),
        (bad_logprob, r"line 5: 'filtered_resps' has the log-probability '<b>'"),
        (unknown_kind, r"'output_type' = 'dance'; expected one of"),
        (no_object, r"line 2: expected a JSON object, found \['a', 'list'\]"),
        (no_fraction, r"no metric with a score per document.*'acc' = 37.5 is no fraction.*--benchmark"),
        (no_date, r"'date' = 1e\+300 is no time"),
    ],
)
def test_bad_logs_are_refused_by_name(
    tmp_path: Path, damage: Callable[[LmEvalLog], None], message: str
) -> None:
    log = teacher()
    damage(log)
    with pytest.raises(DataError, match=message):
        imported(tmp_path, log)


def test_values_that_are_no_numbers_are_errors_of_their_documents(tmp_path: Path) -> None:
    log = teacher()
    log.rows["arc"][4]["acc"] = log.results["results"]["arc"]["acc,none"] = float("nan")
    log.rows["arc"][5]["filtered_resps"][1][0] = "nan"
    log.rows["arc"][6]["filtered_resps"][2][0] = "inf"
    (run,) = imported(tmp_path, log)
    (path,) = score_paths(run, "arc", "loglikelihood")
    rows = list(read_rows(path).values())
    assert {i: row["error"] for i, row in enumerate(rows) if row["outcome"] == "error"} == {
        4: "lm-eval: 'acc' = nan",
        5: "lm-eval: log-probability 1 is nan",
        6: "lm-eval: log-probability 2 is inf",
    }


def test_a_choice_that_the_model_rules_out_is_a_score(tmp_path: Path) -> None:
    log = teacher()
    row = log.rows["arc"][4]
    wrong = (int(row["target"]) + 1) % 4
    row["filtered_resps"][wrong][0] = "-inf"
    (run,) = imported(tmp_path, log)
    (path,) = score_paths(run, "arc", "loglikelihood")
    found = list(read_rows(path).values())[4]
    assert (found["outcome"], found["values"]["acc"]) == ("ok", row["acc"])
    assert found["detail"]["logprobs"][wrong] == min(found["detail"]["logprobs"]) < -1e300


def test_a_bad_benchmark_can_be_left_out(tmp_path: Path) -> None:
    log = teacher()
    without_samples(log)
    unknown_kind(log)
    (run,) = imported(tmp_path, log, benchmarks=["swag"])
    assert [each.name for each in build_report([run]).benchmarks] == ["swag"]


def test_names_with_markup_are_shown_as_text(tmp_path: Path) -> None:
    name = "<img src=x onerror=alert(1)>"
    logs = [LmEvalLog(model, {name: task(seed)}) for model, seed in (("=1+1", 1), ("<b>small", 2))]
    comparison = compare(
        imported(tmp_path, *logs), tmp_path / "report", selection=RunSelection(teacher="=1+1")
    )
    page = comparison.page.read_text()
    assert "onerror=alert(1)&gt;" in page
    assert "<b>small" not in page
    assert "<img src=x" not in page
    table = (tmp_path / "report" / "leaderboard.csv").read_text()
    assert "\n=1+1" not in table


def test_a_log_is_recognised(tmp_path: Path) -> None:
    path = teacher().write(tmp_path / "logs")
    inner = next(path.glob("*"))
    assert find_importer(path) == "lm-eval"
    assert find_importer(inner) == "lm-eval"
    assert find_importer(next(inner.glob("results_*"))) == "lm-eval"
    checkpoint = tmp_path / "checkpoint"
    checkpoint.mkdir()
    (checkpoint / "config.json").write_text('{"model_type": "llama"}')
    assert find_importer(checkpoint) is None
    assert find_importer(tmp_path / "absent") is None
