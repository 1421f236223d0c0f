"""Outcomes tell the truth: a guess of EvalScope, a response that runs on, code that was not extracted.

Scores are EvalScope's own throughout.
"""

from typing import Any

import pytest

from evalsuite.foundation.extraction import basis_of, options_of, parts_before_next_question
from evalsuite.foundation.named_answers import names_choice
from evalsuite.models.inference.requests import FinishReason, GenerateResponse
from evalsuite.protocols.generation import GenerationBenchmark
from evalsuite.protocols.sandbox import ALLOW
from evalsuite.tasks.benchmark import load_benchmark
from evalsuite.tasks.sources.documents import with_ids

OPTIONS = ["an ant", "a blue whale", "Both of them", "the organism dies"]
ROWS: dict[str, tuple[dict[str, Any], str | None]] = {
    "mmlu": ({"question": "Which?", "choices": OPTIONS, "answer": 1, "subject": "anatomy"}, "anatomy"),
    "ceval": (
        dict(zip("ABCD", OPTIONS, strict=True), question="Which?", answer="B", id=0, explanation=""),
        "logic",
    ),
    "hellaswag": (
        {
            "ind": 1,
            "ctx_a": "It",
            "ctx_b": "is",
            "ctx": "It is",
            "activity_label": "x",
            "endings": OPTIONS,
            "label": "1",
            "split": "val",
            "source_id": "s",
        },
        None,
    ),
    "arc_easy": (
        {
            "id": "1",
            "question": "Which?",
            "choices": {"text": OPTIONS, "label": list("ABCD")},
            "answerKey": "B",
        },
        None,
    ),
}
FORMS: dict[str, tuple[float, str, str]] = {
    # response: score, extracted, outcome
    "ANSWER: B": (1, "B", "ok"),
    "Answer: b": (0, "A", "guessed"),
    "**ANSWER: B**": (1, "B", "ok"),
    "ANSWER: (B)": (1, "B", "ok"),
    "The answer is B.": (1, "B", "ok"),
    "The correct answer would be **(B)**.": (1, "B", "ok"),
    "B": (1, "B", "ok"),
    "(B)": (1, "B", "ok"),
    "B) a blue whale": (1, "B", "ok"),
    "i'd go with B": (1, "B", "ok"),
    "Option B is correct": (1, "B", "ok"),
    "答案：B": (1, "B", "ok"),
    "选 B": (1, "B", "ok"),
    "$\\boxed{B}$": (1, "B", "ok"),
    "B) because I think so": (0, "", "extraction_failed"),
    "The answer is B. Note that C is a common distractor.": (0, "C", "guessed"),
    "I do not know. A quick guess: none": (0, "A", "guessed"),
    "A) Both the parasite and the host benefit.": (1, "B", "guessed"),
    "D) The organism dies.": (0, "", "extraction_failed"),
    "The answer is not B": (1, "B", "guessed"),
    "Vitamin C helps Bob": (1, "B", "guessed"),
    "A) an ant\nB) a blue whale\nC) Both of them\nD) the organism dies": (0, "D", "guessed"),
    "i would rather not say": (0, "", "extraction_failed"),
    # The response goes on with a next question.
    "ANSWER: B\n\nQuestion: next?\nA) x\nC) y\nANSWER: C": (0, "C", "ran_on"),
    "ANSWER: B\n\nWhat now?\nA) x\nB) y\nANSWER: A": (0, "A", "ran_on"),
    "B) a blue whale\n\nWhat now?\nA) x\nB) y\nC) z\nD) Q": (0, "", "ran_on"),
}
ENGLISH: dict[str, tuple[float, str, str]] = {
    "ANSWER: (B)\nLet me know": (1, "B", "ok"),
    "ANSWER: BC": (0, "", "extraction_failed"),
    "ANSWER: B, not C": (1, "B", "ok"),
}
CHINESE: dict[str, tuple[float, str, str]] = {
    "ANSWER: (B)\nLet me know": (0, "", "extraction_failed"),
    "ANSWER: BC": (0, "C", "guessed"),
    "ANSWER: B, not C": (0, "C", "guessed"),
}
DOUBLE = {
    "task_id": "HumanEval/0",
    "prompt": 'def double(x):\n    """Return twice x."""\n',
    "canonical_solution": "    return 2 * x\n",
    "test": "def check(candidate):\n    assert candidate(3) == 6\n",
    "entry_point": "double",
}
BODY = "    return 2 * x\n"


def harness(name: str, *rows: tuple[dict[str, Any], str | None]) -> GenerationBenchmark:
    return GenerationBenchmark(load_benchmark(name), with_ids(rows))


def generated(text: str, finish: FinishReason = "eos") -> GenerateResponse:
    return GenerateResponse(tuple(range(max(1, len(text.split())))), text, finish)


@pytest.mark.parametrize("name", ROWS)
def test_a_choice_that_no_pattern_named_is_guessed(name: str) -> None:
    benchmark = harness(name, ROWS[name])
    expected = FORMS | (CHINESE if name == "ceval" else ENGLISH)
    found = {}
    for text in expected:
        scored = benchmark.score(0, generated(text))
        found[text] = (scored.values["accuracy"], scored.detail["extracted"], scored.outcome)
    assert found == expected


@pytest.mark.parametrize("name", ["mmlu", "ceval"])
def test_scores_remain_evalscopes(name: str) -> None:
    """The value and the letter are those of the installed EvalScope's own parser."""
    from evalscope.api.evaluator import Choices
    from evalscope.utils.multi_choices import parse_answers, parse_answers_zh

    benchmark, parse = harness(name, ROWS[name]), parse_answers_zh if name == "ceval" else parse_answers

    class State:
        choices = Choices(OPTIONS)

    for text in FORMS | ENGLISH:
        scored = benchmark.score(0, generated(text))
        letters = "".join(sorted(parse(State(), completion=text)))
        assert (scored.detail["extracted"], scored.values["accuracy"]) == (letters, float(letters == "B"))


@pytest.mark.parametrize(
    ("text", "letter", "named"),
    [
        ("The answer is A because it is small", "A", True),
        ("The answer is A big one", "A", False),
        ("A cat sat", "A", False),
        ("ANSWER: A, C", "C", True),
        ("So the answer is (C)", "C", True),
        ("Option B is right, C is not", "C", False),
        ("the answer is\n\nB", "B", True),
        ("Blue whale", "B", True),
        ("Bob and Carol", "C", False),
        ("Answer: 4. Because", "B", False),
        ("因此答案应该是 B。", "B", True),
        ("(A) or (B)", "B", False),
        ("", "A", False),
    ],
)
def test_names_choice(text: str, letter: str, named: bool) -> None:
    assert names_choice(text, letter, OPTIONS) is named


@pytest.mark.parametrize(
    ("text", "value", "outcome"),
    [
        ("#### 10000\n\nQuestion: another? 5+5\nAnswer: #### 10", 0, "ran_on"),
        ("\\boxed{10000}\n\nProblem: next \\boxed{2}", 0, "ran_on"),
        ("ANSWER: \\boxed{10000}\n\nJames has 3.\n\nReasoning:\nso\n\nANSWER: \\boxed{3}", 0, "ran_on"),
        ("\\boxed{10000}<|endoftext|>\\boxed{3}", 0, "ran_on"),
        ("\\boxed{5}\n\nQuestion: another? \\boxed{2}", 0, "ok"),
        ("\\boxed{5}. Wait, \\boxed{10000}", 0, "ok"),
        ("$10,000", 1, "ok"),
        ("i do not know", 0, "extraction_failed"),
    ],
)
def test_gsm8k_runs_on(text: str, value: float, outcome: str) -> None:
    gsm = harness("gsm8k", ({"question": "How many?", "answer": "work\n#### 10000"}, None))
    # A run-on that fills the token limit is one, too.
    finishes: tuple[FinishReason, ...] = ("eos", "length") if outcome == "ran_on" else ("eos",)
    for finish in finishes:
        scored = gsm.score(0, generated(text, finish))
        assert (scored.values, scored.outcome) == ({"accuracy": value}, outcome)


@pytest.mark.parametrize(
    ("number", "text", "value", "outcome"),
    [
        (0, "So the answer is True.", 1, "ok"),
        (0, "So the answer is False.", 0, "ok"),
        (0, "So the answer is True.\n\nQ: next\nA: So the answer is Zebra.", 0, "ran_on"),
        (0, "The answer is True", 0, "extraction_failed"),
        (0, "So the answer is: True", 0, "extraction_failed"),
        (0, "True", 1, "ok"),
        (1, "So the answer is (A).", 1, "ok"),
        (1, "So the answer is (A).\n\nQ: next\nA: So the answer is (B).", 0, "ran_on"),
        (1, "The answer is (A)", 1, "ok"),
        (1, "The answer is (B)", 0, "ok"),
        (1, "I think so", 0, "guessed"),
        (1, "A dog barks", 1, "guessed"),
        (1, "no idea", 0, "extraction_failed"),
    ],
)
def test_bbh_without_its_marker_has_no_answer(number: int, text: str, value: float, outcome: str) -> None:
    bbh = harness(
        "bbh",
        ({"input": "not ( True ) is", "target": "True"}, "boolean_expressions"),
        ({"input": "which?\nOptions:\n(A) x\n(B) y", "target": "(A)"}, "snarks"),
    )
    scored = bbh.score(number, generated(text))
    assert (scored.values, scored.outcome) == ({"accuracy": value}, outcome)


def test_code_that_was_not_extracted_or_runs_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ALLOW, "1")
    humaneval, whole = harness("humaneval", (DOUBLE, None)), f"def double(x):\n{BODY}"
    expected = {
        BODY: (1, "ok"),
        "    return 3 * x\n": (0, "ok"),
        f"{BODY}\ndef other(x):\n return x +": (0, "ran_on"),
        f"from typing import List\n\n\n{whole}\nclass A(": (0, "ran_on"),
        "    return 2 * x<|endoftext|>": (0, "ran_on"),
        f"```python\n{whole}": (0, "extraction_failed"),
        f"~~~python\n{whole}~~~": (0, "extraction_failed"),
        f"```python\r\n{whole}```": (0, "extraction_failed"),
        f"```python\ndef double(x):\n    '''Doubles.'''\n```\n\n```python\n{whole}```": (
            0,
            "extraction_failed",
        ),
        "I can not do that.": (0, "extraction_failed"),
        f"Here it is:\n{whole}": (0, "extraction_failed"),
    }
    found = {}
    for text in expected:
        scored = humaneval.score(0, generated(text))
        found[text] = (scored.values["acc"], scored.outcome)
    assert found == expected
    assert humaneval.score(0, generated("    return 2 * (", "length")).outcome == "truncated"


@pytest.mark.parametrize("name", ROWS)
def test_options_are_read_from_prompts(name: str) -> None:
    (_, prompt), *_ = harness(name, ROWS[name]).messages(0)
    assert options_of(f"Example\nA) x\nB) y\nC) z\n\n{prompt}") == OPTIONS
    assert options_of("Plan A) is better.") == options_of("A. One list of one.") == []


def test_a_text_that_is_scored_by_its_form_has_no_next_question() -> None:
    assert not list(parts_before_next_question("ifeval", "One.\n\nQuestion: two?"))
    assert list(parts_before_next_question("gsm8k", "One.\n\nQuestion: two?")) == ["One.", "One.\n"]
    assert not list(parts_before_next_question("gsm8k", "\n\nQuestion: two?"))


@pytest.mark.parametrize(
    "text", ["answer: " + "\n" * 200_000, "answer is " + "*" * 200_000, " " * 200_000 + "A", "\n \n" * 80_000]
)
@pytest.mark.timeout(60)
def test_degenerate_responses_take_linear_time(text: str) -> None:
    """In quadratic time, these would take minutes."""
    names_choice(text, "A", OPTIONS)
    for dataset in ("mmlu", "humaneval"):
        list(parts_before_next_question(dataset, text))
        basis_of(dataset, text, text[-1:], OPTIONS)
