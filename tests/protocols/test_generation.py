"""Generation through EvalScope: its prompts, extraction and metrics over documents of ours."""

import logging
import random
import re
from typing import Any

import pytest
from tokenizers.processors import TemplateProcessing

from evalsuite.evaluation.documents import token_counter
from evalsuite.foundation import ConfigError, DataError
from evalsuite.foundation.chat_templates import check_template_arguments
from evalsuite.foundation.strict import parse
from evalsuite.models.inference.requests import GenerateResponse
from evalsuite.protocols.compat_evalscope import cached_formula_parsing
from evalsuite.protocols.generation import GenerationBenchmark, prompt_text
from evalsuite.protocols.outcomes import classify_outcome, is_looping
from evalsuite.protocols.tokenization import Encoder
from evalsuite.tasks.benchmark import Benchmark, load_benchmark
from evalsuite.tasks.sources.assets import ensure_asset, find_asset
from evalsuite.tasks.sources.documents import documents, with_ids

ARC = {
    "id": "1",
    "question": "Which is largest?",
    "choices": {"text": ["an ant", "an elephant", "a cat"], "label": ["A", "B", "C"]},
    "answerKey": "B",
}
GSM = {"question": "Two and two?", "answer": "2 + 2 = 4\n#### 4"}


def harness(name: str, rows: list[dict], **options: Any) -> GenerationBenchmark:
    return GenerationBenchmark(load_benchmark(name), with_ids((row, None) for row in rows), **options)


def generated(text: str, finish: str = "eos") -> GenerateResponse:
    return GenerateResponse(tuple(range(max(1, len(text.split())))), text, finish)


def test_multiple_choice_prompt_and_extraction() -> None:
    arc = harness("arc_easy", [ARC])
    ((role, text),) = arc.messages(0)
    assert role == "user"
    assert text.startswith("Answer the following multiple choice question.")
    assert text.endswith("Which is largest?\n\nA) an ant\nB) an elephant\nC) a cat")
    right = arc.score(0, generated("ANSWER: B"))
    assert (right.values, right.outcome, right.chance) == ({"accuracy": 1.0}, "ok", pytest.approx(1 / 3))
    assert arc.score(0, generated("ANSWER: C")).values == {"accuracy": 0.0}
    lost = arc.score(0, generated("i would rather not say"))
    assert (lost.values, lost.outcome) == ({"accuracy": 0.0}, "extraction_failed")
    assert lost.detail == {
        "response": "i would rather not say",
        "extracted": "",
        "target": "B",
        "finish_reason": "eos",
        "tokens": 5,
    }


def test_row_converter_renames_columns() -> None:
    piqa = harness("piqa", [{"goal": "open a jar", "sol1": "turn the lid", "sol2": "sing to it", "label": 0}])
    assert "open a jar\n\nA) turn the lid\nB) sing to it" in piqa.messages(0)[0][1]
    assert piqa.score(0, generated("ANSWER: A")).values == {"accuracy": 1.0}


def test_boxed_answer_is_extracted() -> None:
    examples = with_ids(
        ({"question": f"{number} and 1?", "answer": f"work\n#### {number + 1}"}, None) for number in range(6)
    )
    gsm = harness("gsm8k", [GSM], num_fewshot=4, examples=examples)
    ((_, text),) = gsm.messages(0)
    assert [f"{number} and 1?" in text for number in range(6)] == [True] * 4 + [False] * 2
    assert text.index("3 and 1?") < text.index("Two and two?")
    right = gsm.score(0, generated("It is \\boxed{4}."))
    assert right.values == {"accuracy": 1.0}
    assert right.detail["extracted"] == "4"
    assert gsm.score(0, generated("It is \\boxed{5}.")).values == {"accuracy": 0.0}
    # Scoring does not need the examples.
    assert harness("gsm8k", [GSM]).score(0, generated("\\boxed{4}")).values == {"accuracy": 1.0}


def test_metric_timeout_counts_as_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    """math-verify hands long chains of fractions to sympy, which may not come back for hours."""

    def spin(state: Any) -> None:
        while True:
            pass

    monkeypatch.setattr("evalsuite.protocols.generation.SCORE_SECONDS", 0.2)
    gsm = harness("gsm8k", [GSM])
    whole = gsm._adapter.calculate_metrics
    gsm._adapter.calculate_metrics = spin
    scored = gsm.score(0, generated("1/3 = 1/3 + 1/3", "length"))
    # Undecided, not wrong: a faster processor might have found it correct.
    assert (scored.outcome, scored.values) == ("error", {})
    assert "aborted after 0.2 s of processor time" in str(scored)
    gsm._adapter.calculate_metrics = whole
    monkeypatch.undo()
    # The limit is off again.
    assert gsm.score(0, generated("It is \\boxed{4}.")).values == {"accuracy": 1.0}


def test_scoring_math_does_not_fork(monkeypatch: pytest.MonkeyPatch) -> None:
    from evalscope.metrics.math import parser

    def forked(*_: Any, **__: Any) -> None:
        raise AssertionError

    monkeypatch.setattr(parser, "run_isolated", forked)
    assert harness("gsm8k", [GSM]).score(0, generated("It is \\boxed{4}.")).values == {"accuracy": 1.0}
    # Other users of EvalScope in this process get its own behaviour back.
    assert parser.isolation_available()
    # A regular expression that backtracks without end is stopped as well: it asks for signals.
    monkeypatch.setattr("evalsuite.protocols.generation.SCORE_SECONDS", 0.2)
    gsm = harness("gsm8k", [GSM])
    gsm._adapter.calculate_metrics = lambda state: re.match(r"(a|a)*b", "a" * 64)
    assert gsm.score(0, generated("aaa")).outcome == "error"


def test_scoring_long_quotient_is_fast() -> None:
    """sympy by itself takes 2^80 steps for this one."""
    import sympy.core.evalf as sympy_evalf

    before = sympy_evalf.evalf
    gsm = harness("gsm8k", [GSM])
    scored = gsm.score(0, generated(f"That makes {'/'.join(['124'] * 80)}", "length"))
    assert scored.outcome != "error"
    assert (scored.values, scored.detail["extracted"].count("/")) == ({"accuracy": 0.0}, 79)
    # Two to the 128th, halved 126 times, is 4.
    halves = "/".join(["340282366920938463463374607431768211456"] + ["2"] * 126)
    assert gsm.score(0, generated(f"That makes {halves}", "length")).values == {"accuracy": 1.0}
    assert sympy_evalf.evalf is before


def test_formula_is_parsed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    from evalscope.metrics.math import parser

    texts: list[str] = []
    whole = parser._parse

    def read(text: str, mode: str) -> tuple[list[Any], str]:
        texts.append(text)
        return whole(text, mode)

    monkeypatch.setattr(parser, "_parse", read)
    gsm = harness("gsm8k", [GSM])
    with cached_formula_parsing():
        scored = [gsm.score(0, generated(f"It is \\boxed{{{n}}}.")).values for n in (4, 5, 4, 5)]
    assert scored == [{"accuracy": 1.0}, {"accuracy": 0.0}] * 2
    assert len(texts) == len(set(texts))
    assert parser._parse is read


def test_prompt_adapter_sends_literal_prompt(tokenizer: Any) -> None:
    facts = load_benchmark("pocket_facts")
    found = documents(facts, limit=3)
    requested = GenerationBenchmark(facts, found)
    request_sets = requested.request_sets(Encoder(tokenizer), chat_template=True)
    for number, (document, request_set) in enumerate(zip(found, request_sets, strict=True)):
        assert requested.messages(number) == [("user", document.row["prompt"])]
        assert tokenizer.decode(request_set.prompt) == tokenizer.decode(
            tokenizer.encode(document.row["prompt"])
        )
        right = requested.score(number, generated(f" {document.row['answer']}", "stop"))
        assert (right.values, right.chance) == ({"accuracy": 1.0}, 0)
        assert requested.score(number, generated(" nonsense", "stop")).values == {"accuracy": 0.0}


CHAT = "{%- for m in messages -%}{{- '<s>' * loop.first + m.content -}}{%- endfor -%}"


@pytest.mark.parametrize("adds_bos", [False, True])
@pytest.mark.parametrize("template", [CHAT, CHAT.replace("'<s>' * loop.first + ", "")])
def test_prompts_have_one_bos_whether_template_or_tokenizer_writes_it(
    tokenizer: Any, template: str, adds_bos: bool
) -> None:
    inner = type(tokenizer.backend_tokenizer).from_str(tokenizer.backend_tokenizer.to_str())
    if adds_bos:
        special = [("<s>", tokenizer.bos_token_id)]
        inner.post_processor = TemplateProcessing(single="<s> $A", special_tokens=special)
    chat = type(tokenizer)(tokenizer_object=inner, bos_token="<s>", eos_token="</s>", chat_template=template)
    for messages in (True, False):
        (request_set,) = harness("gsm8k", [GSM]).request_sets(Encoder(chat), chat_template=messages)
        begins = adds_bos or (messages and template == CHAT)
        assert request_set.prompt.count(chat.bos_token_id) == begins
        assert (request_set.prompt[0] == chat.bos_token_id) == begins
    counted = parse(load_benchmark("niah_single_1").model_dump(), Benchmark, "b.yaml")
    spec = counted.generation.model_copy(update={"prompt": "chat"})
    count = token_counter(chat, counted.model_copy(update={"generation": spec}), chat_template=True)
    bare = len(chat.encode("where is it?", add_special_tokens=False))
    assert count("where is it?") == bare + (adds_bos or template == CHAT)


@pytest.mark.parametrize(
    "template", ["{{ messages[0].content + 1 }}", "{{ raise_exception('no') }}", "{% for"]
)
def test_a_template_that_fails_is_said(tokenizer: Any, template: str) -> None:
    chat = type(tokenizer)(
        tokenizer_object=tokenizer.backend_tokenizer, eos_token="</s>", chat_template=template
    )
    with pytest.raises(ConfigError, match="the chat template refuses a prompt"):
        harness("gsm8k", [GSM]).request_sets(Encoder(chat), chat_template=True)
    if template == "{% for":
        with pytest.raises(ConfigError, match="the chat template cannot be parsed"):
            check_template_arguments(template, {"enable_thinking": False})


def test_all_found_scorer_counts_needles() -> None:
    row = {"prompt": "where?", "answers": ["Oslo", "1234567"]}
    needles = harness("niah_single_1", [row])
    assert needles.score(0, generated(" 1234567 and oslo")).values == {"accuracy": 1.0}
    assert needles.score(0, generated(" 1234567, I think")).values == {"accuracy": 0.5}
    assert needles.score(0, generated(" nothing")).values == {"accuracy": 0.0}
    # What is right in part is not right: a loop shows.
    looped = GenerateResponse((7, 8) * 20, " 1234567" * 20, "length")
    assert needles.score(0, looped).outcome == "looped"


INSTRUCTED = {
    "key": 1,
    "prompt": "Write fewer than 3 sentences, with at least 2 words in capital letters.",
    "instruction_id_list": ["length_constraints:number_sentences", "change_case:capital_word_frequency"],
    "kwargs": [
        {"relation": "less than", "num_sentences": 3},
        {"capital_relation": "at least", "capital_frequency": 2},
    ],
}


def test_ifeval_strict_and_loose() -> None:
    if find_asset("punkt_tab") is None:
        pytest.skip("NLTK's punkt_tab is not here")
    ensure_asset("punkt_tab")
    ifeval = harness("ifeval", [INSTRUCTED])
    right = ifeval.score(0, generated("GOOD evening, Dr. Smith. It is LATE."))
    # Instruction-level scores are no means over documents and are left out.
    assert right.values == {"prompt_level_strict": 1.0, "prompt_level_loose": 1.0}
    # Loosely, a first line may be dropped.
    loose = ifeval.score(0, generated("Sure. Here it is. Look!\nIt is VERY LATE."))
    assert loose.values == {"prompt_level_strict": 0.0, "prompt_level_loose": 1.0}
    assert ifeval.score(0, generated("It is late.")).values["prompt_level_loose"] == 0.0


def test_ifeval_language_warning_is_silenced(caplog: pytest.LogCaptureFixture) -> None:
    if find_asset("punkt_tab") is None:
        pytest.skip("NLTK's punkt_tab is not here")
    ensure_asset("punkt_tab")
    requested = [{"language": "de"}]
    row = INSTRUCTED | {"instruction_id_list": ["language:response_language"], "kwargs": requested}
    ifeval = harness("ifeval", [row])
    # IFEval's authors count it as followed.
    assert ifeval.score(0, generated("1. 1. 1.")).values["prompt_level_strict"] == 1.0
    assert ifeval.score(0, generated("It is late.")).values["prompt_level_strict"] == 0.0
    assert not caplog.records
    logging.getLogger().error("of another")
    assert [record.message for record in caplog.records] == ["of another"]


def test_ifeval_score_is_deterministic() -> None:
    """ "#" is no letter to IFEval, which then counts one that it draws at random."""
    if find_asset("punkt_tab") is None:
        pytest.skip("NLTK's punkt_tab is not here")
    ensure_asset("punkt_tab")
    requested = {"let_frequency": 4, "let_relation": "at least", "letter": "#"}
    row = INSTRUCTED | {"instruction_id_list": ["keywords:letter_frequency"], "kwargs": [requested]}
    ifeval = harness("ifeval", [row])
    random.seed(7)
    state = random.getstate()
    half = generated("abcdefghijklm " * 4)
    assert len({ifeval.score(0, half).values["prompt_level_strict"] for _ in range(12)}) == 1
    # The dice of whoever calls are not touched.
    assert random.getstate() == state


def test_failed_generation_has_no_values() -> None:
    scored = harness("arc_easy", [ARC]).score(0, GenerateResponse.from_error("too long"))
    assert (scored.values, scored.outcome) == ({}, "error")


def test_generation_refuses_invalid_benchmark() -> None:
    own = load_benchmark("arc_easy").model_dump()
    unknown = parse(own | {"generation": own["generation"] | {"dataset": "arcc"}}, Benchmark, "b.yaml")
    with pytest.raises(ConfigError, match="no EvalScope benchmark 'arcc'"):
        GenerationBenchmark(unknown, with_ids([(ARC, None)]))
    with pytest.raises(DataError, match="cannot read document"):
        harness("arc_easy", [{"question": "no choices"}])
    with pytest.raises(ConfigError, match="num_fewshot = 4, but main has only 1 examples"):
        harness("gsm8k", [GSM], num_fewshot=4, examples=with_ids([(GSM, None)]))
    with pytest.raises(ConfigError, match="lambada_openai: has no generation protocol"):
        harness("lambada_openai", [{"text": "a b"}])


class Template:
    chat_template = "yes"

    def apply_chat_template(self, chat: list[dict[str, str]], **how: Any) -> str:
        assert how == {"tokenize": False, "add_generation_prompt": True}
        return "".join(f"<{each['role']}>{each['content']}" for each in chat) + "<assistant>"


def test_prompt_text_chat_plain_or_literal() -> None:
    messages = [("system", "be brief"), ("user", "hello")]
    assert prompt_text(messages, "chat", Template()) == "<system>be brief<user>hello<assistant>"
    assert prompt_text(messages, "chat", None) == "be brief\n\nhello\n"
    assert prompt_text(messages[1:], "literal", Template()) == "hello"


LOOP = tuple([1, 2, 3] + [7, 8, 9] * 12)


@pytest.mark.parametrize(
    ("answer", "extracted", "right", "outcome"),
    [
        (GenerateResponse(LOOP, "x", "length"), "", True, "ok"),
        (GenerateResponse(LOOP, "x", "length"), "A", False, "looped"),
        (GenerateResponse((1, 2), "x y", "length"), "", False, "truncated"),
        (GenerateResponse((1, 2), "x y", "length"), "x y", False, "truncated"),
        (GenerateResponse((1, 2), "x y", "length"), "A", False, "ok"),
        (GenerateResponse((1, 2), "x y", "eos"), "", False, "extraction_failed"),
        (GenerateResponse((1, 2), "x y", "eos"), "A", False, "ok"),
        (GenerateResponse.from_error("no"), "", False, "error"),
    ],
)
def test_classify_outcome(answer: GenerateResponse, extracted: str, right: bool, outcome: str) -> None:
    assert classify_outcome(answer, extracted, correct=right) == outcome


def test_loop_is_a_repeated_ending() -> None:
    assert is_looping(LOOP)
    assert is_looping((5,) * 40)
    assert not is_looping((5,) * 20)
    assert not is_looping(tuple(range(100)))
    assert not is_looping((*LOOP, 1, 2))
