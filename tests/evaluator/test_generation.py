"""Generation through EvalScope: its prompts, extraction and metrics over documents of ours."""

import logging
import random
import re
from typing import Any

import pytest

from evalsuite.foundation import ConfigError, DataError
from evalsuite.foundation.strict import parse
from evalsuite.models.engine.requests import GenerateAnswer
from evalsuite.protocols.encode import Encoder
from evalsuite.protocols.generation import GenerationBenchmark, prompt_text
from evalsuite.protocols.outcome import looped, outcome_of
from evalsuite.protocols.time_limit import each_formula_read_once
from evalsuite.tasks.benchmark import Benchmark, load_benchmark
from evalsuite.tasks.documents import documents, identified
from evalsuite.tasks.resources import find, provide

ARC = {
    "id": "1",
    "question": "Which is largest?",
    "choices": {"text": ["an ant", "an elephant", "a cat"], "label": ["A", "B", "C"]},
    "answerKey": "B",
}
GSM = {"question": "Two and two?", "answer": "2 + 2 = 4\n#### 4"}


def harness(name: str, rows: list[dict], **options: Any) -> GenerationBenchmark:
    return GenerationBenchmark(load_benchmark(name), identified((row, None) for row in rows), **options)


def written(text: str, finish: str = "eos") -> GenerateAnswer:
    return GenerateAnswer(tuple(range(max(1, len(text.split())))), text, finish)


def test_letters_are_asked_for_and_read_as_evalscope_does() -> None:
    arc = harness("arc_easy", [ARC])
    ((role, text),) = arc.messages(0)
    assert role == "user"
    assert text.startswith("Answer the following multiple choice question.")
    assert text.endswith("Which is largest?\n\nA) an ant\nB) an elephant\nC) a cat")
    right = arc.judge(0, written("ANSWER: B"))
    assert (right.values, right.outcome, right.chance) == ({"accuracy": 1.0}, "ok", pytest.approx(1 / 3))
    assert arc.judge(0, written("ANSWER: C")).values == {"accuracy": 0.0}
    lost = arc.judge(0, written("i would rather not say"))
    assert (lost.values, lost.outcome) == ({"accuracy": 0.0}, "extraction_failed")
    assert lost.detail == {
        "response": "i would rather not say",
        "extracted": "",
        "target": "B",
        "finish": "eos",
        "tokens": 5,
    }


def test_columns_are_renamed_by_expressions() -> None:
    piqa = harness("piqa", [{"goal": "open a jar", "sol1": "turn the lid", "sol2": "sing to it", "label": 0}])
    assert "open a jar\n\nA) turn the lid\nB) sing to it" in piqa.messages(0)[0][1]
    assert piqa.judge(0, written("ANSWER: A")).values == {"accuracy": 1.0}


def test_worked_answers_are_read_from_the_box() -> None:
    examples = identified(
        ({"question": f"{number} and 1?", "answer": f"work\n#### {number + 1}"}, None) for number in range(6)
    )
    gsm = harness("gsm8k", [GSM], shots=4, examples=examples)
    ((_, text),) = gsm.messages(0)
    assert [f"{number} and 1?" in text for number in range(6)] == [True] * 4 + [False] * 2
    assert text.index("3 and 1?") < text.index("Two and two?")
    right = gsm.judge(0, written("It is \\boxed{4}."))
    assert right.values == {"accuracy": 1.0}
    assert right.detail["extracted"] == "4"
    assert gsm.judge(0, written("It is \\boxed{5}.")).values == {"accuracy": 0.0}
    # Judging does not need the examples.
    assert harness("gsm8k", [GSM]).judge(0, written("\\boxed{4}")).values == {"accuracy": 1.0}


def test_an_answer_that_the_metric_never_makes_out_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    """math-verify hands long chains of fractions to sympy, which may not come back for hours."""

    def spin(state: Any) -> None:
        while True:
            pass

    monkeypatch.setattr("evalsuite.protocols.generation.JUDGE_SECONDS", 0.2)
    gsm = harness("gsm8k", [GSM])
    whole = gsm._adapter.calculate_metrics
    gsm._adapter.calculate_metrics = spin
    judged = gsm.judge(0, written("1/3 = 1/3 + 1/3", "length"))
    assert judged.values == {"accuracy": 0.0}
    assert judged.detail["judge"].startswith("gave up after 0.2 s")
    gsm._adapter.calculate_metrics = whole
    monkeypatch.undo()
    # The limit is off again.
    assert gsm.judge(0, written("It is \\boxed{4}.")).values == {"accuracy": 1.0}


def test_no_process_is_forked_for_a_formula(monkeypatch: pytest.MonkeyPatch) -> None:
    from evalscope.metrics.math import parser

    def forked(*_: Any, **__: Any) -> None:
        raise AssertionError

    monkeypatch.setattr(parser, "run_isolated", forked)
    assert harness("gsm8k", [GSM]).judge(0, written("It is \\boxed{4}.")).values == {"accuracy": 1.0}
    # Whoever uses EvalScope beside us has its own behaviour back.
    assert parser.isolation_available()
    # A regular expression that backtracks without end is stopped as well: it asks for signals.
    monkeypatch.setattr("evalsuite.protocols.generation.JUDGE_SECONDS", 0.2)
    gsm = harness("gsm8k", [GSM])
    gsm._adapter.calculate_metrics = lambda state: re.match(r"(a|a)*b", "a" * 64)
    assert gsm.judge(0, written("aaa")).detail["judge"].startswith("gave up")


def test_a_quotient_of_many_quotients_is_worked_out() -> None:
    """sympy by itself takes 2^80 steps for this one."""
    import sympy.core.evalf as sympy_evalf

    before = sympy_evalf.evalf
    gsm = harness("gsm8k", [GSM])
    judged = gsm.judge(0, written(f"That makes {'/'.join(['124'] * 80)}", "length"))
    assert "judge" not in judged.detail
    assert (judged.values, judged.detail["extracted"].count("/")) == ({"accuracy": 0.0}, 79)
    # Two to the 128th, halved 126 times, is 4.
    halves = "/".join(["340282366920938463463374607431768211456"] + ["2"] * 126)
    assert gsm.judge(0, written(f"That makes {halves}", "length")).values == {"accuracy": 1.0}
    assert sympy_evalf.evalf is before


def test_a_formula_is_read_once_for_all_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    from evalscope.metrics.math import parser

    texts: list[str] = []
    whole = parser._parse

    def read(text: str, mode: str) -> tuple[list[Any], str]:
        texts.append(text)
        return whole(text, mode)

    monkeypatch.setattr(parser, "_parse", read)
    gsm = harness("gsm8k", [GSM])
    with each_formula_read_once():
        judged = [gsm.judge(0, written(f"It is \\boxed{{{n}}}.")).values for n in (4, 5, 4, 5)]
    assert judged == [{"accuracy": 1.0}, {"accuracy": 0.0}] * 2
    assert len(texts) == len(set(texts))
    assert parser._parse is read


def test_rows_with_a_prompt_are_asked_literally_and_judged_by_their_rule(tokenizer: Any) -> None:
    facts = load_benchmark("pocket_facts")
    found = documents(facts, limit=3)
    asked = GenerationBenchmark(facts, found)
    questions = asked.questions(Encoder(tokenizer), template=True)
    for number, (document, question) in enumerate(zip(found, questions, strict=True)):
        assert asked.messages(number) == [("user", document.row["prompt"])]
        assert tokenizer.decode(question.prompt) == tokenizer.decode(tokenizer.encode(document.row["prompt"]))
        right = asked.judge(number, written(f" {document.row['answer']}", "stop"))
        assert (right.values, right.chance) == ({"accuracy": 1.0}, 0)
        assert asked.judge(number, written(" nonsense", "stop")).values == {"accuracy": 0.0}


def test_needles_count_what_was_found() -> None:
    row = {"prompt": "where?", "answers": ["Oslo", "1234567"]}
    needles = harness("niah_single_1", [row])
    assert needles.judge(0, written(" 1234567 and oslo")).values == {"accuracy": 1.0}
    assert needles.judge(0, written(" 1234567, I think")).values == {"accuracy": 0.5}
    assert needles.judge(0, written(" nothing")).values == {"accuracy": 0.0}


INSTRUCTED = {
    "key": 1,
    "prompt": "Write fewer than 3 sentences, with at least 2 words in capital letters.",
    "instruction_id_list": ["length_constraints:number_sentences", "change_case:capital_word_frequency"],
    "kwargs": [
        {"relation": "less than", "num_sentences": 3},
        {"capital_relation": "at least", "capital_frequency": 2},
    ],
}


def test_instructions_are_judged_strictly_and_loosely() -> None:
    if find("punkt_tab") is None:
        pytest.skip("NLTK's punkt_tab is not here")
    provide("punkt_tab")
    ifeval = harness("ifeval", [INSTRUCTED])
    right = ifeval.judge(0, written("GOOD evening, Dr. Smith. It is LATE."))
    # Instruction-level scores are no means over documents and are left out.
    assert right.values == {"prompt_level_strict": 1.0, "prompt_level_loose": 1.0}
    # Loosely, a first line may be dropped.
    loose = ifeval.judge(0, written("Sure. Here it is. Look!\nIt is VERY LATE."))
    assert loose.values == {"prompt_level_strict": 0.0, "prompt_level_loose": 1.0}
    assert ifeval.judge(0, written("It is late.")).values["prompt_level_loose"] == 0.0


def test_an_answer_in_no_language_is_judged_without_a_word(caplog: pytest.LogCaptureFixture) -> None:
    if find("punkt_tab") is None:
        pytest.skip("NLTK's punkt_tab is not here")
    provide("punkt_tab")
    asked = [{"language": "de"}]
    row = INSTRUCTED | {"instruction_id_list": ["language:response_language"], "kwargs": asked}
    ifeval = harness("ifeval", [row])
    # IFEval's authors count it as followed.
    assert ifeval.judge(0, written("1. 1. 1.")).values["prompt_level_strict"] == 1.0
    assert ifeval.judge(0, written("It is late.")).values["prompt_level_strict"] == 0.0
    assert not caplog.records
    logging.getLogger().error("of another")
    assert [record.message for record in caplog.records] == ["of another"]


def test_an_answer_is_judged_alike_whenever_it_is_judged() -> None:
    """ "#" is no letter to IFEval, which then counts one that it draws at random."""
    if find("punkt_tab") is None:
        pytest.skip("NLTK's punkt_tab is not here")
    provide("punkt_tab")
    asked = {"let_frequency": 4, "let_relation": "at least", "letter": "#"}
    row = INSTRUCTED | {"instruction_id_list": ["keywords:letter_frequency"], "kwargs": [asked]}
    ifeval = harness("ifeval", [row])
    random.seed(7)
    state = random.getstate()
    half = written("abcdefghijklm " * 4)
    assert len({ifeval.judge(0, half).values["prompt_level_strict"] for _ in range(12)}) == 1
    # The dice of whoever calls are not touched.
    assert random.getstate() == state


def test_a_failed_answer_has_no_values() -> None:
    judged = harness("arc_easy", [ARC]).judge(0, GenerateAnswer.failed("too long"))
    assert (judged.values, judged.outcome) == ({}, "error")


def test_what_evalscope_cannot_ask_is_refused_by_name() -> None:
    own = load_benchmark("arc_easy").model_dump()
    unknown = parse(own | {"generation": own["generation"] | {"dataset": "arcc"}}, Benchmark, "b.yaml")
    with pytest.raises(ConfigError, match="no EvalScope benchmark 'arcc'"):
        GenerationBenchmark(unknown, identified([(ARC, None)]))
    with pytest.raises(DataError, match="cannot read document"):
        harness("arc_easy", [{"question": "no choices"}])
    with pytest.raises(ConfigError, match="4 shots asked, 1 examples of main"):
        harness("gsm8k", [GSM], shots=4, examples=identified([(GSM, None)]))
    with pytest.raises(ConfigError, match="lambada_openai: has no generation protocol"):
        harness("lambada_openai", [{"text": "a b"}])


class Template:
    chat_template = "yes"

    def apply_chat_template(self, chat: list[dict[str, str]], **how: Any) -> str:
        assert how == {"tokenize": False, "add_generation_prompt": True}
        return "".join(f"<{each['role']}>{each['content']}" for each in chat) + "<assistant>"


def test_prompts_are_chats_texts_or_literal() -> None:
    messages = [("system", "be brief"), ("user", "hello")]
    assert prompt_text(messages, "chat", Template()) == "<system>be brief<user>hello<assistant>"
    assert prompt_text(messages, "chat", None) == "be brief\n\nhello\n"
    assert prompt_text(messages[1:], "literal", Template()) == "hello"


LOOP = tuple([1, 2, 3] + [7, 8, 9] * 12)


@pytest.mark.parametrize(
    ("answer", "extracted", "right", "outcome"),
    [
        (GenerateAnswer(LOOP, "x", "length"), "", True, "ok"),
        (GenerateAnswer(LOOP, "x", "length"), "A", False, "looped"),
        (GenerateAnswer((1, 2), "x y", "length"), "", False, "truncated"),
        (GenerateAnswer((1, 2), "x y", "length"), "x y", False, "truncated"),
        (GenerateAnswer((1, 2), "x y", "length"), "A", False, "ok"),
        (GenerateAnswer((1, 2), "x y", "eos"), "", False, "extraction_failed"),
        (GenerateAnswer((1, 2), "x y", "eos"), "A", False, "ok"),
        (GenerateAnswer.failed("no"), "", False, "error"),
    ],
)
def test_the_triage_of_answers(answer: GenerateAnswer, extracted: str, right: bool, outcome: str) -> None:
    assert outcome_of(answer, extracted, right=right) == outcome


def test_a_loop_is_a_repeated_end_and_not_a_repeated_word() -> None:
    assert looped(LOOP)
    assert looped((5,) * 40)
    assert not looped((5,) * 20)
    assert not looped(tuple(range(100)))
    assert not looped((*LOOP, 1, 2))
