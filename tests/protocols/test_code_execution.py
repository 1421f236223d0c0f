"""What may execute code: known from the harness's benchmark, with consent, and in the sandbox only."""

import os
from pathlib import Path
from typing import Any

import pytest

from evalsuite.foundation import ConfigError
from evalsuite.foundation.strict import parse
from evalsuite.models.inference.requests import GenerateResponse
from evalsuite.protocols import loglikelihood
from evalsuite.protocols.generation import GenerationBenchmark
from evalsuite.protocols.loglikelihood import LogLikelihoodBenchmark, task_file
from evalsuite.protocols.sandbox import ALLOW, WITHOUT_EXECUTION, execution_refusal, run_limited
from evalsuite.tasks.benchmark import Benchmark, all_benchmarks, load_benchmark
from evalsuite.tasks.sources.documents import with_ids
from tests.protocols.execution_scan import reasons

HUMANEVAL = {
    "task_id": "HumanEval/0",
    "prompt": 'def double(x):\n    """Return twice x."""\n',
    "canonical_solution": "    return 2 * x\n",
    "test": "def check(candidate):\n    assert candidate(3) == 6\n",
    "entry_point": "double",
}
MBPP = {
    "task_id": 1,
    "text": "Write a function double that returns twice its argument.",
    "code": "def double(x):\n    return 2 * x",
    "test_list": ["assert double(3) == 6"],
    "test_setup_code": "",
}


def user_benchmark(dataset: str, metric: str = "acc") -> Benchmark:
    """A benchmark as a user would write it, without a word about code."""
    return parse(
        {
            "name": "mine",
            "title": "Mine",
            "category": "reasoning",
            "license": "MIT",
            "citation": "none",
            "source": {"dataset": "me/mine", "split": "test"},
            "generation": {"dataset": dataset, "metric": metric, "sampling": {"max_new_tokens": 64}},
        },
        Benchmark,
        "mine.yaml",
    )


def generated(text: str) -> GenerateResponse:
    return GenerateResponse((1, 2), text, "eos")


def spy(file: Path, secret: str) -> str:
    """A response that passes its test, and tries to copy a variable of the environment into a file."""
    return (
        "```python\ndef double(x):\n    return 2 * x\n"
        f"import os\ntry:\n    open({str(file)!r}, 'w').write(os.environ.get({secret!r}, ''))\n"
        "except OSError:\n    pass\n```"
    )


def test_humaneval_of_a_user_needs_consent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(ALLOW, raising=False)
    monkeypatch.setenv("EVALSUITE_TEST_SECRET", "hunter2")
    stolen, refusal = tmp_path / "stolen", ""
    try:
        mine = GenerationBenchmark(user_benchmark("humaneval"), with_ids([(HUMANEVAL, None)]))
        mine.score(0, generated(spy(stolen, "EVALSUITE_TEST_SECRET")))
    except ConfigError as error:
        refusal = str(error)
    assert not stolen.exists()
    assert refusal.startswith("mine: ")
    assert f"set {ALLOW}=1" in refusal


@pytest.mark.parametrize(("dataset", "row"), [("humaneval", HUMANEVAL), ("mbpp", MBPP)])
def test_code_runs_in_the_sandbox_without_the_environment(
    dataset: str, row: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(ALLOW, "1")
    monkeypatch.setenv("EVALSUITE_TEST_SECRET", "hunter2")
    mine = GenerationBenchmark(user_benchmark(dataset), with_ids([(row, None)]))
    stolen = tmp_path / "stolen"
    assert mine.score(0, generated(spy(stolen, "EVALSUITE_TEST_SECRET"))).values == {"acc": 1.0}
    assert not stolen.exists()
    sees = "import os\nassert 'EVALSUITE_TEST_SECRET' in os.environ\ndef double(x):\n    return 2 * x\n"
    assert mine.score(0, generated(f"```python\n{sees}```")).values == {"acc": 0.0}
    assert mine.score(0, generated("```python\ndef double(x):\n    return x\n```")).values == {"acc": 0.0}


@pytest.mark.parametrize("consent", ["", "1"])
@pytest.mark.parametrize("dataset", ["scicode", "bigcodebench", "humaneval_plus", "multiple_mbpp"])
def test_execution_outside_the_sandbox_is_refused(
    dataset: str, consent: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(ALLOW, consent)
    refusal = ""
    try:
        GenerationBenchmark(user_benchmark(dataset), with_ids([(HUMANEVAL, None)]))
    except ConfigError as error:
        refusal = str(error)
    assert refusal.startswith(f"mine: 'dataset' = {dataset}: not known to be free of code execution")


def test_every_built_in_benchmark_is_classified(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(ALLOW, raising=False)
    refused = {
        benchmark.name
        for benchmark in all_benchmarks()
        if benchmark.generation is not None and execution_refusal(benchmark.generation.dataset)
    }
    assert refused == {"humaneval", "livecodebench"}


def test_benchmarks_without_execution_call_nothing_that_executes() -> None:
    """EvalScope's own source of every benchmark that runs without consent: no exec, no process, no agent."""

    assert {name: why for name in WITHOUT_EXECUTION if (why := reasons(name))} == {}
    for name in ("humaneval", "mbpp", "live_code_bench", "bird_sql", "bfcl_v3", "swe_bench_verified"):
        assert reasons(name), name


def test_unsafe_code_is_no_flag_of_the_user() -> None:
    values = load_benchmark("humaneval").model_dump(exclude_unset=True)
    values["generation"].pop("unsafe_code", None)
    parse(values, Benchmark, "b.yaml")
    refusal = ""
    try:
        parse(values | {"generation": values["generation"] | {"unsafe_code": False}}, Benchmark, "b.yaml")
    except ConfigError as error:
        refusal = str(error)
    assert "unknown key 'generation.unsafe_code'" in refusal


def test_a_program_that_stops_before_its_tests_does_not_pass() -> None:
    for early in ("import sys; sys.exit(0)", "raise SystemExit", "import os; os._exit(0)", "exit()"):
        assert not run_limited(f"{early}\nassert False").passed, early
    assert run_limited("x = 1").passed


def test_a_program_that_is_scored_by_its_output_may_exit() -> None:
    for program, exited in (("print(1)", True), ("print(1)\nexit()", True), ("print(1)\nexit(1)", False)):
        done = run_limited(program)
        assert (done.output, done.exited) == ("1\n", exited), program
    assert not run_limited("print('x' * 3_000_000)").exited


def test_the_sandbox_reads_no_file_outside_its_folder() -> None:
    """/proc shows the environment of the parent process, which has the same user."""
    for path in (f"/proc/{os.getpid()}/environ", "/proc/self/environ", "/etc/passwd", __file__):
        outcome = run_limited(f"open({path!r}, 'rb').read()")
        assert not outcome.passed, path
        assert "outside the working folder" in outcome.message
    assert run_limited("open('a', 'w').write('x')\nassert open('a').read() == 'x'").passed
    assert run_limited("import json, decimal, zoneinfo, random, unicodedata").passed


TASK = """\
task: mine
dataset_path: none
output_type: multiple_choice
doc_to_text: "{{question}}"
doc_to_choice: "{{choices.text}}"
doc_to_target: 1
process_docs: !function code.process
metric_list: [{metric: acc}]
"""


@pytest.mark.parametrize("through", ["absolute", "relative", "subject"])
def test_task_files_of_a_user_need_trust(through: str, tmp_path: Path) -> None:
    import lm_eval.tasks

    ran = tmp_path / "ran"
    (tmp_path / "task.yaml").write_text(TASK)
    (tmp_path / "code.py").write_text(
        f"open({str(ran)!r}, 'w').write('x')\ndef process(docs):\n    return docs\n"
    )
    # `..` behind a linked environment leads out of the folder that the link names.
    root = Path(str(lm_eval.tasks.__file__)).resolve().parent
    subject, task = None, str(tmp_path / "task.yaml")
    if through == "relative":
        task = os.path.relpath(task, root)
    if through == "subject":
        subject, task = os.path.relpath(tmp_path, root), "{subject}/task.yaml"
    values = load_benchmark("arc_easy").model_dump() | {"loglikelihood": {"task": task, "metric": "acc"}}
    mine = parse(values, Benchmark, "mine.yaml")
    row = {"question": "Which?", "choices": {"text": ["an ant", "an elephant"], "label": ["A", "B"]}}
    refusal = ""
    try:
        LogLikelihoodBenchmark(mine, with_ids([(row, subject)]))
    except ConfigError as error:
        refusal = str(error)
    assert not ran.exists()
    assert "--trust-remote-code" in refusal
    assert "task.yaml" in refusal
    made = LogLikelihoodBenchmark(mine, with_ids([(row, subject)]), trust_remote_code=True)
    assert ran.exists()
    assert made.pairs(0)[1] == ("Which?", " an elephant")


def test_task_files_of_an_editable_install_need_no_trust(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    links = tmp_path / "installed" / "lm_eval_tasks"
    links.mkdir(parents=True)
    (links / "choices.yaml").symlink_to(loglikelihood.TASK_FOLDER / "choices.yaml")
    (tmp_path / "task.yaml").write_text(TASK)
    monkeypatch.setattr(loglikelihood, "TASK_FOLDER", links)
    values = load_benchmark("pocket_facts").model_dump()
    assert values["loglikelihood"]["task"] == "evalsuite/choices.yaml"
    assert task_file(parse(values, Benchmark, "ours.yaml"), None) == links / "choices.yaml"
    values["loglikelihood"]["task"] = "evalsuite/../../task.yaml"
    with pytest.raises(ConfigError, match="trust-remote-code"):
        task_file(parse(values, Benchmark, "theirs.yaml"), None)


def test_generation_tasks_of_lm_eval_are_refused_before_their_code_is_imported() -> None:
    """lm-eval's humaneval loads a metric that executes code when its module is imported."""
    how = {"loglikelihood": {"task": "humaneval/humaneval.yaml", "metric": "pass@1"}}
    mine = parse(load_benchmark("arc_easy").model_dump() | how, Benchmark, "mine.yaml")
    refusal = None
    try:
        LogLikelihoodBenchmark(mine, with_ids([(HUMANEVAL, None)]))
    except Exception as error:
        refusal = error
    assert isinstance(refusal, ConfigError), refusal
    assert "generates text" in str(refusal)
