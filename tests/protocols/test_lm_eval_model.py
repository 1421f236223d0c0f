"""Our engine as a model of lm-eval."""

from pathlib import Path
from typing import Any

import pytest
from lm_eval.api.instance import Instance

from evalsuite.foundation import ConfigError
from evalsuite.protocols.lm_eval_model import EngineLM


def instance(*arguments: Any) -> Instance:
    return Instance("loglikelihood", {}, arguments, 0, ("t", 0, 1))


@pytest.fixture
def engine(crew: Any) -> Any:
    return crew.engine_factory()("a", "a")


def test_lm_eval_model_groups_continuations(crew: Any, engine: Any, tokenizer: Any) -> None:
    lm = EngineLM(engine, tokenizer=tokenizer)
    found = lm.loglikelihood([instance("the lamp", " was old"), instance("the lamp", " was new")], True)
    assert len(engine.requests) == 1
    (request,) = engine.requests
    assert len(request.continuations) == 2
    expected = [crew.logprob("a", request.context, each) for each in request.continuations]
    assert found == [(each, False) for each in expected]


def test_lm_eval_model_truncates_left(engine: Any, tokenizer: Any) -> None:
    engine.max_length = 4
    lm = EngineLM(engine, tokenizer=tokenizer)
    context = "the lamp and the chair and the bowl"
    lm.loglikelihood([instance(context, " was old")], True)
    (request,) = engine.requests
    whole = tokenizer.encode(context + " was old")
    assert (*request.context, *request.continuations[0]) == tuple(whole[-5:])
    with pytest.raises(ConfigError, match="does not fit 4 positions"):
        lm.loglikelihood([instance("the", " lamp and the chair and the bowl")], True)


def test_lm_eval_model_cache_dir(engine: Any, tokenizer: Any, tmp_path: Path) -> None:
    requests = [instance("the lamp", " was old")]
    first = EngineLM(engine, tokenizer=tokenizer, cache_dir=tmp_path).loglikelihood(requests, True)
    again = EngineLM(engine, tokenizer=tokenizer, cache_dir=tmp_path).loglikelihood(requests, True)
    assert first == again
    assert len(engine.requests) == 1


def test_lm_eval_model_rolling_sums_windows(engine: Any, tokenizer: Any) -> None:
    engine.max_length = 8
    lm = EngineLM(engine, tokenizer=tokenizer)
    (total,) = lm.loglikelihood_rolling([instance("the sky is blue " * 6)], True)
    scored = dict(engine.score(engine.requests))
    assert total == pytest.approx(sum(sum(answer.logprobs) for answer in scored.values()))
    assert len(scored) > 1


def test_lm_eval_model_sampling_params(engine: Any, tokenizer: Any) -> None:
    lm = EngineLM(engine, tokenizer=tokenizer, seed=3)
    greedy = {"until": ["\n\n"], "max_gen_toks": 5, "do_sample": False, "temperature": 0.9}
    sampled = {"until": "Q:", "do_sample": True, "temperature": 0.5, "top_p": 0.9}
    generated = " " + tokenizer.decode(tokenizer.encode("the lamp")[-3:]).strip()
    requests = [instance("the lamp", greedy), instance("the lamp", sampled)]
    assert lm.generate_until(requests, True) == [generated, generated]
    first, second = sorted(
        (request for request in engine.requests), key=lambda each: each.sampling.temperature
    )
    assert (first.sampling.greedy, first.sampling.max_new_tokens, first.sampling.stop) == (True, 5, ("\n\n",))
    assert (second.sampling.temperature, second.sampling.top_p, second.seed) == (0.5, 0.9, 3)
    assert second.sampling.max_new_tokens == 256
    with pytest.raises(ConfigError, match="'num_beams' is not supported"):
        lm.generate_until([instance("the lamp", {"until": [], "num_beams": 4})], True)
