"""LongBench: our prompts and metrics are lm-eval's, prompts are cut in the middle, few-shot sets are bare."""

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from jinja2 import Environment

from evalsuite.evaluation.build import make_harness
from evalsuite.foundation import ConfigError, DataError
from evalsuite.foundation.words import first_line
from evalsuite.models.inference.requests import GenerateResponse
from evalsuite.protocols.generation import GenerationBenchmark
from evalsuite.protocols.scorers import SCORERS
from evalsuite.protocols.scorers.longbench import classes_of, classification
from evalsuite.protocols.tokenization import Encoder
from evalsuite.tasks.benchmark import load_benchmark
from evalsuite.tasks.sources.documents import with_ids
from evalsuite.tasks.suite import load_suite

NAMES = [entry.benchmark for entry in load_suite("longbench").benchmarks]
ROW = {
    "context": "  Paragraph 1: The river Aven is long.\n\nParagraph 2: “klar”, 北京 liegt 在中国。",
    "question": "Question: Which river is long?\nType:",
    "answers": ["Paragraph 2", "the river Aven"],
    "all_classes": ["River", "River bank", "Other"],
    "dataset": "made",
}
TEXT = (
    "the river Aven, is long. a Paragraph 2 Paragraph 12 段落2 厦门大学。 北京 在中国 的 River "
    "bank Other 42 42, 12 an x = 1 # note `code` // no\n\n \n    return x.y( unanswerable yes."
)
NUMBERED = {"retrieval": "Paragraph ", "retrieval_zh": "段落"}


def requested(name: str, row: dict[str, Any]) -> GenerationBenchmark:
    made = make_harness(load_benchmark(name), "generation", with_ids([(row, None)]))
    assert isinstance(made, GenerationBenchmark)
    return made


class Loose(yaml.SafeLoader):
    """Reads lm-eval's task files; functions are kept by name."""


Loose.add_constructor("!function", lambda loader, node: node.value)


def theirs(name: str) -> dict[str, Any]:
    import lm_eval.tasks

    path = Path(str(lm_eval.tasks.__file__)).parent / "longbench" / f"{name.removeprefix('longbench_')}.yaml"
    return dict(yaml.load(path.read_text(), Loose))


@pytest.mark.parametrize("name", NAMES)
def test_longbench_prompts_and_metrics_equal_lm_eval(name: str) -> None:
    task = theirs(name)
    prompt = Environment(keep_trailing_newline=True).from_string(task["doc_to_text"]).render(**ROW)
    made = requested(name, ROW)
    assert made.messages(0) == [("user", prompt)]
    assert made.text(0, None, chat_template=False) == prompt
    how = load_benchmark(name).generation
    assert how is not None
    assert how.sampling.max_new_tokens == task["generation_kwargs"]["max_gen_toks"]
    assert f"{how.metric}_score" == task["metric_list"][1]["metric"]
    bare = name.removeprefix("longbench_") in ("trec", "triviaqa", "samsum", "lsht", "lcc", "repobench-p")
    assert (how.prompt == "literal") == bare
    # lm-eval stops three of these at a line break; the official code reads their first line.
    scored = how.scorer or ""
    assert (scored.endswith("_line") or scored == "classification") == bool(
        task["generation_kwargs"]["until"]
    )


def texts(count: int) -> list[tuple[str, list[str]]]:
    rng = random.Random(7)

    def text(most: int) -> str:
        return " ".join(rng.choices(TEXT.split(" "), k=rng.randint(0, most)))

    found = [(text(30), [text(12), text(5)]) for _ in range(count)]
    return [
        *found,
        ("", ["x"]),
        ("x", [""]),
        ("the", ["a the"]),
        *((same, [same]) for same in ("River", "  x = 1")),
    ]


@pytest.mark.parametrize(
    "metric",
    [
        "qa_f1",
        "qa_f1_zh",
        "rouge",
        "rouge_zh",
        "classification",
        "count",
        "retrieval",
        "retrieval_zh",
        "code_sim",
    ],
)
def test_longbench_metric_equals_lm_eval(metric: str) -> None:
    pytest.importorskip("fuzzywuzzy")
    pytest.importorskip("rouge")
    from lm_eval.tasks.longbench import metrics

    reference: Callable[..., dict[str, float]] = getattr(metrics, f"get_{metric}_score")
    differing = 0
    for response, answers in texts(150):
        if metric in NUMBERED:
            answers = [f"{answer} {NUMBERED[metric]}12" for answer in answers]
        if metric == "count":
            answers = ["42", "12"]
        if metric == "classification":
            # The official code reads the first line; lm-eval's answers end there.
            response, answers = response.replace("\n", " "), ["River", "Other"]
        row = ROW | {"answers": answers}
        ours = SCORERS[metric](row, response).values[metric]
        assert ours == pytest.approx(reference(row, [response])[f"{metric}_score"], abs=1e-12)
        differing += 0 < ours < 1
    assert differing >= 5


def test_longbench_fewshot_uses_first_line() -> None:
    assert first_line("\n\nRiver\nRiver bank") == "River"
    triviaqa = requested("longbench_triviaqa", ROW | {"answers": ["Aven"]})
    scored = triviaqa.score(0, GenerateResponse((1,), "\nAven\nPassage: another", "length"))
    assert (scored.values, scored.detail["extracted"]) == ({"qa_f1": 1.0}, "Aven")


def test_longbench_classes_from_list_or_text() -> None:
    assert classes_of(ROW) == classes_of(ROW | {"all_classes": str(ROW["all_classes"])})
    # As published: of two names in a row within the right one, the second is not removed.
    assert classification("River bank", "River bank", ["River", "River bank"]) == 1.0
    assert classification("River bank, Other", "River bank", ["River", "River bank", "Other"]) == 0.5
    with pytest.raises(DataError, match="has no 'all_classes'"):
        classes_of(ROW | {"all_classes": None})


@pytest.mark.parametrize("name", ["longbench_multifieldqa_en", "longbench_lcc"])
@pytest.mark.parametrize("template", [False, True])
def test_longbench_truncates_in_the_middle(name: str, template: bool, tokenizer: Any) -> None:
    tokenizer.chat_template = "<{% for m in messages %}{{ m.content }}{% endfor %}>" if template else None
    how = load_benchmark(name).generation
    assert how is not None
    made = requested(name, ROW | {"context": " ".join(f"The river Aven has {n} towns." for n in range(400))})
    encoder = Encoder(tokenizer)
    (whole,) = made.request_sets(encoder, chat_template=template, max_length=100_000)
    assert len(whole.prompt) > 2000
    (request_set,) = made.request_sets(encoder, chat_template=template, max_length=1000)
    room = 1000 - how.sampling.max_new_tokens
    # A cut in the middle of a word may cost a token or two.
    assert room - 4 <= len(request_set.prompt) <= room
    same = [a == b for a, b in zip(request_set.prompt, whole.prompt, strict=False)]
    ends = [a == b for a, b in zip(reversed(request_set.prompt), reversed(whole.prompt), strict=False)]
    assert all(same[: room // 2 - 4])
    assert all(ends[: room // 2 - 4])
    assert request_set.prompt_hash != whole.prompt_hash
    with pytest.raises(ConfigError, match="the prompt cannot be truncated to 1 tokens"):
        made.request_sets(encoder, chat_template=template, max_length=how.sampling.max_new_tokens + 1)
    tokenizer.chat_template = None


def test_longbench_missing_column_is_named() -> None:
    with pytest.raises(DataError, match=r"cannot read document .*'question'.* is undefined"):
        requested("longbench_qasper", {"context": "x", "answers": ["y"]})
