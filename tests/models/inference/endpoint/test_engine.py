"""Engine `endpoint` on a server that works, and on one that misbehaves."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from evalsuite.foundation import CheckpointError, ConfigError
from evalsuite.models.checkpoints.load import load_checkpoint
from evalsuite.models.inference.endpoint.client import ServerError
from evalsuite.models.inference.requests import GenerateRequest, SamplingParams, ScoreRequest
from evalsuite.models.inference.torch.engine import TorchEngine
from tests.models.inference.endpoint.conftest import Open
from tests.models.inference.endpoint.server import Server

TEXT = "The river is long and the water is cold, so that few people swim there in the morning"


@pytest.fixture
def requests(tokenizer: Any) -> tuple[list[ScoreRequest], list[GenerateRequest]]:
    tokens = tokenizer(TEXT).input_ids
    score = [
        ScoreRequest((1, *tokens[:cut]), (tuple(tokens[cut : cut + 3]), tuple(tokens[:2]), (7,)))
        for cut in range(8, 20, 3)
    ]
    stops = ((), ("e", "s"), ("zzzz",))
    generate = [
        GenerateRequest((1, *tokens[:cut]), SamplingParams(max_new_tokens=6 + cut, stop=stops[cut % 3]))
        for cut in range(4, 10)
    ]
    return score, generate


def test_responses_are_those_of_the_in_process_engine(
    opened: Open, requests: Any, checkpoint: Path, server: Server
) -> None:
    score, generate = requests
    engine, own = opened(in_flight=4), TorchEngine(load_checkpoint(checkpoint))
    assert engine.weights_id == own.weights_id
    assert engine.fingerprint != own.fingerprint
    assert engine.max_length == 255
    expected, found = dict(own.score(score)), dict(engine.score(score))
    assert found.keys() == expected.keys()
    for index, response in expected.items():
        assert found[index].logprobs == pytest.approx(response.logprobs, abs=1e-4)
        assert (found[index].greedy, found[index].lengths) == (response.greedy, response.lengths)
    # The model's own greedy tokens count as such.
    (best,) = [
        response for _, response in own.generate([GenerateRequest(score[0].context, SamplingParams(3))])
    ]
    ((_, greedy),) = engine.score([ScoreRequest(score[0].context, (best.tokens,))])
    assert greedy.greedy == (True,)
    expected_texts, texts = dict(own.generate(generate)), dict(engine.generate(generate))
    assert {index: (each.text, each.finish_reason) for index, each in texts.items()} == {
        index: (each.text, each.finish_reason) for index, each in expected_texts.items()
    }
    assert {each.finish_reason for each in texts.values()} >= {"length"}
    assert 1 < server.most_in_flight <= 4


@pytest.mark.parametrize("names_ids", [True, False])
def test_the_most_likely_tokens_are_those_of_the_checkpoint(
    opened: Open, requests: Any, checkpoint: Path, server: Server, names_ids: bool
) -> None:
    """Where the server names tokens by their texts, those with a text of their own are known."""
    server.names_ids = names_ids
    texts = [request.context + request.continuations[0] for request in requests[0]]
    found = dict(opened().top_logprobs(texts))
    model, tokenizer = load_checkpoint(checkpoint).model, opened().info.tokenizer
    decoded = [tokenizer.decode([token]) for token in range(len(tokenizer))]
    with torch.inference_mode():
        for index, text in enumerate(texts):
            rows = model(torch.tensor([text])).logits[0, :-1].log_softmax(-1)
            for row, values in zip(rows, found[index], strict=True):
                top, ids = (each.tolist() for each in row.topk(5))
                expected = {
                    token: pytest.approx(value, abs=1e-4)
                    for token, value in zip(ids, top, strict=True)
                    if names_ids or (token < len(decoded) and decoded.count(decoded[token]) == 1)
                }
                assert values == expected
    server.fault = lambda number, body: "no tops"
    assert dict(opened().top_logprobs(texts[:1])) == {0: None}


def test_a_server_without_token_ids_gives_the_same_texts(opened: Open, requests: Any, server: Server) -> None:
    _, generate = requests
    whole = dict(opened().generate(generate))
    server.fault = lambda number, body: "bare"
    bare = dict(opened().generate(generate))
    assert {index: each.text for index, each in bare.items()} == {
        index: each.text for index, each in whole.items()
    }


@pytest.mark.parametrize("fault", ["500", "429", "half", "html", "nothing"])
def test_what_fails_now_and_then_is_repeated(opened: Open, requests: Any, server: Server, fault: str) -> None:
    score, _ = requests
    expected = dict(opened().score(score))
    server.fault = lambda number, body: fault if number % 3 else ""
    assert dict(opened(retries=40).score(score)) == expected


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("500", r"no answer in 3 attempts; the last one: status 500: 'oops'\. Responses so far are kept"),
        ("429", "the last one: status 429: 'busy'"),
        ("html", "the last one: no JSON but '<html>Bad gateway</html>'"),
        ("nothing", "the last one: no JSON but an empty body"),
        ("half", "the last one: RemoteProtocolError"),
        ("drip", r"the last one: an answer that had not ended after \d+ bytes"),
    ],
)
def test_what_fails_for_good_ends_the_run(
    opened: Open, requests: Any, server: Server, fault: str, message: str
) -> None:
    score, _ = requests
    done = []
    server.fault = lambda number, body: fault if number > 6 else ""
    with pytest.raises(ServerError, match=message):
        done.extend(index for index, _ in opened(retries=2, in_flight=1, timeout=0.5).score(score))
    assert done == [0, 1], "what was answered before is handed out"


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("400", "the server refuses the request: 'too long'"),
        ("fewer", r"the server returned \d+ log-probabilities for \d+ tokens"),
        ("no tops", "the server returned no most likely tokens"),
    ],
)
def test_one_bad_answer_is_an_error_of_its_request(
    opened: Open, requests: Any, server: Server, fault: str, message: str
) -> None:
    score, _ = requests
    server.fault = lambda number, body: fault if number == 4 else ""
    found = dict(opened(in_flight=1).score(score))
    assert pytest.approx(1) == sum(each.error is not None for each in found.values())
    with pytest.raises(AssertionError, match=message):
        raise AssertionError(found[1].error)


def test_a_server_that_only_generates_says_so(opened: Open, requests: Any, server: Server) -> None:
    score, generate = requests
    server.fault = lambda number, body: "no echo"
    with pytest.raises(ConfigError, match=r"can generate only; leave log-likelihood out"):
        dict(opened().score(score))
    assert len(dict(opened().generate(generate))) == len(generate)


def test_another_tokenizer_is_refused(opened: Open, requests: Any, server: Server) -> None:
    score, _ = requests
    server.fault = lambda number, body: "other texts"
    with pytest.raises(CheckpointError, match=r"another tokenizer .* 100 % of tokens have another text"):
        dict(opened().score(score))


@pytest.mark.parametrize(
    ("models", "arguments", "message"),
    [
        ([], {}, "lists no model; is it an OpenAI-compatible API"),
        ([{"id": "a"}, {"id": "b"}], {}, "has a, b; give model=NAME"),
        ([{"id": "a"}], {"model": "c"}, "has a, not 'c'"),
        ([{"id": "a"}], {"url": ""}, "give --engine-args url="),
        ([{"id": "a"}], {"url": "localhost:8000"}, "expected the address of an API"),
        ([{"id": "a"}], {"url": "http://me:secret@host:port/v1"}, "expected the address of an API"),
        ([{"id": "a"}], {"url": "http://me:secret@host/v1"}, "leave out user, password and query"),
        ([{"id": "a"}], {"in_flight": 0}, "in_flight = 0: must be a number of at least 1"),
        ([{"id": "a"}], {"retries": "six"}, "retries = 'six'"),
        ([{"id": "a"}], {"port": 1}, "no argument 'port'; known are url, model"),
    ],
)
def test_bad_arguments(
    opened: Open, server: Server, models: list[dict[str, Any]], arguments: dict[str, Any], message: str
) -> None:
    server.models = models
    with pytest.raises(ConfigError, match=message) as caught:
        _ = opened(**arguments).max_length
    assert "secret" not in str(caught.value)


def test_a_key_is_sent_and_written_nowhere(
    opened: Open, server: Server, requests: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-very-secret")
    engine = opened()
    assert len(dict(engine.score(requests[0][:1]))) == 1
    assert server.keys[0] == "Bearer sk-very-secret"
    assert "secret" not in json.dumps([engine.versions, engine.fingerprint])
    server.fault = lambda number, body: "401"
    with pytest.raises(ConfigError, match=r"asks for a key \(401\); set OPENAI_API_KEY") as caught:
        dict(opened().score(requests[0][:1]))
    assert "secret" not in str(caught.value)


def test_the_server_and_its_model_are_part_of_the_fingerprint(opened: Open, server: Server) -> None:
    engine = opened()
    assert engine.versions.items() >= {"model": "tiny", "server": "1.2.3"}.items()
    server.version = "1.2.4"
    assert opened().fingerprint != engine.fingerprint
    server.version = None
    assert opened().versions["server"] == "unknown"
    server.version = "1.2.3"


def test_requests_that_do_not_fit_are_not_sent(opened: Open, server: Server) -> None:
    server.models = [{"id": "tiny", "max_model_len": 8}]
    long = ScoreRequest(tuple(range(10, 30)), ((5,),))
    ((_, response),) = opened().score([long])
    assert response.error is not None
    assert "reads at most 7" in response.error
    assert server.bodies == []
