"""Suites `long` and `reasoning`: invented rows in the columns of their datasets, scored by the harnesses."""

import base64
import json
import os
import pickle
import zlib
from collections.abc import Callable
from difflib import SequenceMatcher
from pathlib import Path
from typing import Any

import pytest
from transformers import PreTrainedTokenizerFast

from evalsuite.foundation import ConfigError, DataError
from evalsuite.models.inference.requests import GenerateResponse, ScoreResponse
from evalsuite.protocols.generation import GenerationBenchmark
from evalsuite.protocols.loglikelihood import LogLikelihoodBenchmark
from evalsuite.protocols.request_set import Score
from evalsuite.protocols.sandbox import ALLOW
from evalsuite.protocols.tokenization import Encoder
from evalsuite.tasks.benchmark import load_benchmark
from evalsuite.tasks.sources.completion import Completer
from evalsuite.tasks.sources.documents import Document, with_ids
from evalsuite.tasks.sources.transforms import TRANSFORMS
from evalsuite.tasks.suite import load_suite

CHAT = [
    {"role": "user", "content": "write a riddle about tapirs"},
    {"role": "assistant", "content": "It snores under ferns."},
    {"role": "user", "content": "write a riddle about tapirs"},
    {"role": "assistant", "content": "Its nose arrives first."},
    {"role": "user", "content": "Prepend Qx7 to the 2nd riddle about tapirs. Do not include any other text."},
]
MRCR = {
    "prompt": json.dumps(CHAT),
    "answer": "Qx7Its nose arrives first.",
    "random_string_to_prepend": "Qx7",
    "n_needles": 2,
    "desired_msg_index": 3,
    "total_messages": 5,
    "n_chars": 200,
}
BABILONG = {"input": "Mary went to the office. It rained.", "question": "Where is Mary?", "target": "office"}
BABILONG_THING = {
    "input": "Bill gave the milk to Jeff.",
    "question": "What did Bill give? ",
    "target": "milk",
}
LONGBENCH_V2 = {
    "_id": "0",
    "domain": "Single-Document QA",
    "sub_domain": "Literary",
    "difficulty": "easy",
    "length": "short",
    "question": "What colour is the boat?",
    "choice_A": "red",
    "choice_B": "blue",
    "choice_C": "green",
    "choice_D": "grey",
    "answer": "B",
    "context": "The boat is blue.",
}
MATH = {
    "problem": "What is half of $3$?",
    "solution": "It is $\\boxed{\\frac{3}{2}}$.",
    "answer": "\\frac{3}{2}",
    "subject": "Prealgebra",
    "level": 1,
    "unique_id": "test/0",
}
AIME_24 = {"id": 60, "problem": "What is $6 \\cdot 7$?", "solution": "\\boxed{042}", "url": "none"}
AIME = {"id": "0", "problem": "What is $6 \\cdot 7$?", "answer": "42"}
GPQA = {
    "Question": "Which gas has the lightest atoms?",
    "Correct Answer": "helium\n",
    "Incorrect Answer 1": "neon",
    "Incorrect Answer 2": "argon",
    "Incorrect Answer 3": "xenon",
    "Record ID": "rec",
}


def checks(kind: str, *cases: tuple[str, str]) -> list[dict[str, str]]:
    return [{"input": given, "output": expected, "testtype": kind} for given, expected in cases]


def packed(value: Any) -> str:
    """As LiveCodeBench stores its private tests."""
    return base64.b64encode(zlib.compress(pickle.dumps(value))).decode()


CODE = {
    "question_title": "Twice",
    "question_content": "Print twice the number.",
    "platform": "atcoder",
    "question_id": "q",
    "contest_id": "c",
    "contest_date": "2025-02-01T00:00:00",
    "starter_code": "",
    "difficulty": "easy",
    "public_test_cases": json.dumps(checks("stdin", ("1\n", "2"))),
    "private_test_cases": packed(json.dumps(checks("stdin", ("-3\n", "-6")))),
    "metadata": "{}",
}
METHOD = CODE | {
    "starter_code": "class Solution:\n    def twice(self, x: int) -> int:\n        ",
    "metadata": json.dumps({"func_name": "twice"}),
    "public_test_cases": json.dumps(checks("functional", ("1", "2"))),
    "private_test_cases": packed(json.dumps(checks("functional", ("-3", "-6")))),
}
CASES: dict[str, tuple[dict[str, Any], str, str, str]] = {
    "mrcr_2needle": (MRCR, "\nQx7Its nose arrives first.", "It snores under ferns.", "mrcr_score"),
    "mrcr_4needle": (MRCR | {"n_needles": 4}, "Qx7Its nose arrives first.", "Its nose arrives", "mrcr_score"),
    "mrcr_8needle": (MRCR | {"n_needles": 8}, "Qx7Its nose arrives first.", "", "mrcr_score"),
    "babilong_qa1": (BABILONG, " Office", " kitchen", "contains"),
    "babilong_qa2": (BABILONG, " the office.", " the garden", "contains"),
    "babilong_qa3": (BABILONG, " office", " hallway", "contains"),
    "babilong_qa4": (BABILONG, " office", " bedroom", "contains"),
    "babilong_qa5": (BABILONG_THING, " milk", " football", "contains"),
    "longbench_v2": (LONGBENCH_V2, "The text says blue.\n\nANSWER: B", "ANSWER: C", "accuracy"),
    "math_500": (MATH, "Thus \\boxed{1.5}", "Thus \\boxed{2}", "accuracy"),
    "aime24": (AIME_24, "So \\boxed{42}.", "So \\boxed{43}.", "acc"),
    "aime25": (AIME, "So \\boxed{42}.", "42 or 43, I cannot say", "acc"),
    "aime26": (AIME, "So \\boxed{042}.", "So \\boxed{4}.", "acc"),
    "gpqa_diamond": (GPQA, "ANSWER: {}", "I do not know.", "accuracy"),
    "livecodebench": (CODE, "```python\nprint(2 * int(input()))\n```", "```python\nprint(2)\n```", "acc"),
}
"""Benchmark → row, right response, wrong response, metric."""


@pytest.fixture(autouse=True)
def consent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ALLOW, "1")


def document(name: str, row: dict[str, Any]) -> Document:
    """A document as the benchmark makes it of a row."""
    benchmark = load_benchmark(name)
    assert benchmark.source is not None
    if benchmark.source.transform is not None:
        (row,) = TRANSFORMS.get_or_raise(benchmark.source.transform)([row], None, {}, name)  # type: ignore[arg-type]
    if benchmark.completion is not None:
        row = Completer(benchmark.completion, name).row(row, [])
    return with_ids([(row, None)])[0]


def generation(name: str, row: dict[str, Any]) -> GenerationBenchmark:
    return GenerationBenchmark(load_benchmark(name), [document(name, row)])


def score(name: str, row: dict[str, Any], text: str) -> Score:
    return generation(name, row).score(0, GenerateResponse((1, 2), text, "eos"))


def test_every_benchmark_over_real_rows_has_a_case() -> None:
    suites = [load_suite(name) for name in ("long", "reasoning")]
    named = {entry.benchmark for suite in suites for entry in suite.benchmarks}
    assert {name for name in named if load_benchmark(name).generated is None} == CASES.keys()


@pytest.mark.parametrize("name", CASES)
def test_harness_scores_right_and_wrong_responses(name: str) -> None:
    row, right, wrong, metric = CASES[name]
    harness = generation(name, row)
    target = str(harness.score(0, GenerateResponse((1,), "", "eos")).detail["target"])
    how = load_benchmark(name).generation
    assert how is not None
    assert how.metric == metric
    values = [score(name, row, text).values[metric] for text in (right.replace("{}", target), wrong)]
    assert values == [1.0, 0.0]
    chance = {"longbench_v2": 0.25, "gpqa_diamond": 0.25}.get(name, 0.0)
    assert score(name, row, wrong).chance == chance


def test_mrcr_is_a_conversation_and_its_score_a_ratio_behind_the_prefix() -> None:
    harness = generation("mrcr_2needle", MRCR)
    assert harness.messages(0) == [(each["role"], each["content"]) for each in CHAT]
    scored = score("mrcr_2needle", MRCR, "Qx7Its nose is blue.")
    assert scored.values["mrcr_score"] == pytest.approx(
        SequenceMatcher(None, "Its nose is blue.", "Its nose arrives first.").ratio()
    )
    assert scored.outcome == "ok"


def test_longer_response_that_goes_on_is_no_next_question_of_mrcr() -> None:
    scored = score("mrcr_2needle", MRCR, "Qx7Its nose arrives first.\n\nQuestion: who?")
    assert (scored.outcome, scored.values["mrcr_score"] < 1) == ("ok", True)


@pytest.mark.parametrize(
    ("row", "program", "value"),
    [
        (CODE, "import sys\nprint(2 * int(sys.stdin.read()))\nsys.exit()", 1.0),
        (CODE, "print(2 * int(input()))\nraise ValueError", 0.0),
        (CODE, "print(2 * abs(int(input())))", 0.0),  # The private test has a negative number.
        (METHOD, "class Solution:\n    def twice(self, x):\n        return 2 * x", 1.0),
        (METHOD, "class Solution:\n    def twice(self, x):\n        return 2", 0.0),
        (
            METHOD,
            "import os\nos.system('true')\nclass Solution:\n    def twice(self, x):\n        return 2 * x",
            0.0,
        ),
    ],
)
def test_livecodebench_runs_all_tests_in_the_sandbox(row: dict[str, Any], program: str, value: float) -> None:
    assert score("livecodebench", row, f"So:\n```python\n{program}\n```").values["acc"] == value


def test_livecodebench_needs_consent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(ALLOW)
    with pytest.raises(ConfigError, match=f"set {ALLOW}=1"):
        generation("livecodebench", CODE)


class _Attack:
    def __init__(self, file: Path) -> None:
        self.file = file

    def __reduce__(self) -> tuple[Callable[[str], int], tuple[str]]:
        return os.system, (f"touch {self.file}",)


def test_livecodebench_rows_execute_nothing_when_they_are_read(tmp_path: Path) -> None:
    row = CODE | {"private_test_cases": packed(_Attack(tmp_path / "ran"))}
    with pytest.raises(DataError, match=r"cannot read document .* only text may be"):
        generation("livecodebench", row)
    assert not (tmp_path / "ran").exists()


def test_gpqa_choices_do_not_betray_the_right_one() -> None:
    rows = [GPQA | {"Question": f"Which gas? ({number})"} for number in range(200)]
    found = TRANSFORMS.get_or_raise("gpqa_choices")(rows, None, {}, "gpqa")  # type: ignore[arg-type]
    assert all(sorted(row["choices"]) == ["argon", "helium", "neon", "xenon"] for row in found)
    assert all(row["choices"][row["gold"]] == "helium" for row in found)
    shares = [sum(row["gold"] == place for row in found) for place in range(4)]
    assert min(shares) > 25


@pytest.mark.parametrize(
    ("name", "row", "choices"),
    [
        ("gpqa_diamond", GPQA, [" (A)", " (B)", " (C)", " (D)"]),
        ("longbench_v2", LONGBENCH_V2, [" A", " B", " C", " D"]),
        ("babilong_qa1", BABILONG, [" bathroom", " bedroom", " garden", " hallway", " kitchen", " office"]),
    ],
)
def test_loglikelihood_takes_the_likeliest_choice(
    name: str, row: dict[str, Any], choices: list[str], tokenizer: PreTrainedTokenizerFast
) -> None:
    made = document(name, row)
    harness = LogLikelihoodBenchmark(load_benchmark(name), [made])
    assert [continuation for _, continuation in harness.pairs(0)] == choices
    (requests,) = harness.request_sets(Encoder(tokenizer), 4096)
    gold = {"gpqa_diamond": made.row.get("gold"), "longbench_v2": 1, "babilong_qa1": 5}[name]
    for favourite in range(len(choices)):
        logprobs = tuple(-1.0 if number == favourite else -2.0 for number in range(len(choices)))
        responses = [
            ScoreResponse(logprobs, (False,) * len(choices), (1,) * len(choices))
            for _ in requests.score_requests
        ]
        scored = harness.score(0, requests, responses)
        assert scored.values["acc"] == float(favourite == gold)
        assert scored.chance == 1 / len(choices)


@pytest.mark.parametrize("protocol", ["loglikelihood", "generation"])
def test_longbench_v2_keeps_both_ends_of_a_text_that_is_too_long(
    protocol: str, tokenizer: PreTrainedTokenizerFast
) -> None:
    text = "The first word. " + "and so on " * 3000 + "The last word."
    made = [document("longbench_v2", LONGBENCH_V2 | {"context": text})]
    longest = 2048
    if protocol == "loglikelihood":
        harness = LogLikelihoodBenchmark(load_benchmark("longbench_v2"), made)
        (found,) = harness.request_sets(Encoder(tokenizer), longest)
        (request,) = found.score_requests
        prompt, room = request.context, longest - 1
        assert request.validation_error(longest) is None
    else:
        writer = GenerationBenchmark(load_benchmark("longbench_v2"), made)
        (found,) = writer.request_sets(Encoder(tokenizer), chat_template=False, max_length=longest)
        prompt, room = found.prompt, longest - 1024
    assert room - 20 < len(prompt) <= room
    read = str(tokenizer.decode(prompt))
    assert "first" in read
    assert "last" in read
    assert "boat" in read
