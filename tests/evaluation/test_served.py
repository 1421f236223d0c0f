"""The doctor's verdict on a server: what it finds, with which power, and how often a sound server passes."""

import random
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from evalsuite.evaluation.served import format_served, served_verdict
from evalsuite.models.checkpoints.load import load_checkpoint
from evalsuite.models.diagnostics.consistency_checks import _CheckRunner
from evalsuite.models.diagnostics.served import ServedPass, run_served_passes, served_divergence
from evalsuite.models.engines import load_engines
from evalsuite.models.inference.registry import EngineSettings
from evalsuite.models.inference.requests import GenerateRequest, SamplingParams, ScoreRequest
from evalsuite.models.inference.torch.engine import TorchEngine
from tests.models.inference.endpoint.server import Server, serving

DOCUMENTS = 16
WARM_RATE = 0.5
"""Of flips when the cache is warm: accuracy fell from .950 to .485 in sglang #16053."""
ROUNDING = 6e-5
"""Nats: the largest difference between vLLM 0.32.0 and the in-process engine (docs/how-to/servers.md)."""


def passes(flips: dict[str, int], documents: int) -> list[dict[str, Any]]:
    """Passes of which some have flips, the first so many documents."""
    return [
        asdict(
            ServedPass(
                name,
                "",
                num_documents=documents,
                num_continuations=2 * documents,
                flipped_texts=tuple(range(flips.get(name, 0))),
            )
        )
        for name in ("endpoint", "endpoint again", "endpoint alone", "endpoint under load")
    ]


def share_found(rate: float, documents: int, repetitions: int = 4000) -> float:
    """Share of repetitions in which a server that flips warm responses with a probability is found."""
    draw = random.Random(documents)
    found = 0
    for _ in range(repetitions):
        flips = sum(draw.random() < rate for _ in range(documents))
        found += served_verdict(passes({"endpoint again": flips}, documents), "float32").status == "failed"
    return found / repetitions


def test_a_warm_cache_that_flips_half_of_the_responses_is_found_with_16_documents() -> None:
    assert share_found(WARM_RATE, DOCUMENTS) >= 0.99


@pytest.mark.parametrize("documents", [8, 16, 48])
def test_the_rate_that_a_verdict_names_is_the_one_that_it_finds(documents: int) -> None:
    rate = 1 - 0.05 ** (1 / documents)
    verdict = served_verdict(passes({}, documents), "float32")
    assert verdict.status == "ok"
    assert f"flips {100 * rate:.1f} % of responses or more" in verdict.text
    assert share_found(rate, documents) == pytest.approx(0.95, abs=0.011)


def test_documents_that_flip_with_warm_caches_only_are_counted() -> None:
    """McNemar's mid-p of 8 to 0 is 2^-8; where the same documents flip from the start, caches are not it."""
    warm = served_verdict(passes({"endpoint again": 8}, DOCUMENTS), "float32")
    assert "8 responses flip only when the caches are warm, 0 only when they are cold" in warm.text
    assert "(McNemar's mid-p 0.0039)" in warm.text
    same = served_verdict(passes({"endpoint": 8, "endpoint again": 8}, DOCUMENTS), "float32")
    assert (same.status, "caches" in same.text) == ("failed", False)


@pytest.mark.parametrize(
    ("dtype", "difference", "status"),
    [
        ("float32", 1e-4, "ok"),
        ("float32", 1e-2, "warning"),
        ("float32", 0.2, "failed"),
        ("bfloat16", 0.2, "ok"),
        ("bfloat16", 5.0, "failed"),
    ],
)
def test_a_difference_counts_as_in_the_other_checks(dtype: str, difference: float, status: str) -> None:
    found = passes({}, DOCUMENTS)
    found[3]["max_difference"] = difference
    assert served_verdict(found, dtype).status == status


@pytest.fixture(scope="module")
def host(
    make_llama: Callable[[Path, int], Path], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[SimpleNamespace]:
    """A server, and the model that it serves as it is evaluated here; half of the tokens have a twin.

    Their rows of output weights are equal, so that rounding decides wherever one is chosen.
    """
    path = make_llama(tmp_path_factory.mktemp("served") / "tiny", 0)
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
    rows = model.lm_head.weight.data
    half = len(rows) // 2
    rows[half : half + half // 2] = rows[: half // 2]
    model.save_pretrained(path)
    checkpoint = load_checkpoint(path)
    draw = random.Random(0)

    def text(length: int) -> tuple[int, ...]:
        return tuple(draw.randrange(10, len(rows)) for _ in range(length))

    contexts = [text(draw.randint(8, 20)) for _ in range(2 * DOCUMENTS)]
    prompts = [GenerateRequest(context, SamplingParams(3)) for context in contexts]
    likely = dict(TorchEngine(checkpoint).generate(prompts))
    # One continuation of every other document is greedy.
    documents = [
        ScoreRequest(context, (likely[index].tokens if index % 2 else text(3), text(2)))
        for index, context in enumerate(contexts)
    ]
    # Shorter responses, for short tests.
    patch = pytest.MonkeyPatch()
    patch.setattr("evalsuite.models.diagnostics.served.NUM_GENERATED", 8)
    evaluated = _CheckRunner(checkpoint, documents[:DOCUMENTS]).evaluated()
    with serving(path) as server:
        engine = load_engines().get_or_raise("endpoint")
        settings = EngineSettings(device="cpu", dtype="float32", arguments={"url": server.url})
        yield SimpleNamespace(
            server=server,
            evaluated=evaluated,
            load=documents[DOCUMENTS:],
            open=lambda: engine.open(str(path), settings),
        )
    patch.undo()


@pytest.fixture
def server(host: SimpleNamespace) -> Iterator[Server]:
    """The server, which is sound before and after."""
    yield host.server
    host.server.altered, host.server.noise, host.server.names_ids = lambda body, choice: None, 0.0, True
    host.server.fault, host.server.scores = lambda number, body: "", True


def examine(host: SimpleNamespace) -> dict[str, Any]:
    """`served` of `run_consistency_checks`."""
    engine = host.open()
    try:
        found = run_served_passes(host.evaluated, engine, host.load)
        divergence = served_divergence(host.evaluated, engine)
    finally:
        engine.close()
    return {"passes": [asdict(each) for each in found], "divergence": divergence and asdict(divergence)}


def replaced(body: dict[str, Any], choice: dict[str, Any], server: Server, draw: random.Random) -> None:
    """Replace a token of a generated response, and all that come after it."""
    tokens = choice["token_ids"]
    cut = draw.randrange(len(tokens))
    tokens[cut:] = [draw.randrange(10, 50) for _ in tokens[cut:]]
    choice["text"] = server.tokenizer.decode(tokens)


def flips_when_warm(server: Server, rate: float, draw: random.Random) -> Callable[[Any, Any], None]:
    """A prefix cache that changes greedy responses to prompts it has seen, whatever they were sent for."""
    seen: set[tuple[int, ...]] = set()

    def alter(body: dict[str, Any], choice: dict[str, Any]) -> None:
        prompt = tuple(body["prompt"])
        if "echo" not in body and prompt in seen and draw.random() < rate:
            replaced(body, choice, server, draw)
        seen.update(prompt[:length] for length in range(1, len(prompt) + 1))

    return alter


@pytest.mark.parametrize("repetitions", [2, pytest.param(20, marks=pytest.mark.long)])
def test_a_server_that_flips_warm_answers_is_found(
    host: SimpleNamespace, server: Server, repetitions: int
) -> None:
    draw = random.Random(0)
    for _ in range(repetitions):
        server.altered = flips_when_warm(server, WARM_RATE, draw)
        found = examine(host)["passes"]
        verdict = served_verdict(found, "float32")
        assert verdict.status == "failed"
        assert "flips in endpoint again, endpoint alone" in verdict.text
        assert verdict.flips["endpoint"] == 0
        assert (
            f"{len(found[1]['flipped_texts'])} responses flip only when the caches are warm" in verdict.text
        )


@pytest.mark.parametrize("scores", [True, False])
def test_no_request_precedes_those_of_the_cold_pass(
    host: SimpleNamespace, server: Server, scores: bool
) -> None:
    server.scores = scores
    before = len(server.bodies)
    examine(host)
    cold = server.bodies[before:][:DOCUMENTS]
    assert not any("echo" in body for body in cold)
    assert {tuple(body["prompt"]) for body in cold} == {each.context for each in host.evaluated.requests}


def test_a_server_that_mixes_up_requests_under_load_is_found_by_that_row_alone(
    host: SimpleNamespace, server: Server
) -> None:
    others, draw = {request.context for request in host.load}, random.Random(0)

    def alter(body: dict[str, Any], choice: dict[str, Any]) -> None:
        recent = {tuple(each["prompt"]) for each in server.bodies[-4:]}
        if "echo" not in body and tuple(body["prompt"]) not in others and recent & others:
            replaced(body, choice, server, draw)

    server.altered = alter
    found = examine(host)["passes"]
    assert [bool(each["flipped_texts"]) for each in found] == [False, False, False, True]
    # Each compared request was sent between two others.
    assert served_verdict(found, "float32").text.endswith("flips in endpoint under load")


def test_a_server_that_can_generate_only_is_examined_by_its_greedy_responses(
    host: SimpleNamespace, server: Server
) -> None:
    server.scores = False
    found = examine(host)
    verdict = served_verdict(found["passes"], "float32")
    assert (verdict.status, found["divergence"]) == ("ok", None)
    assert verdict.text.startswith("greedy responses alone are compared: no difference")
    row = format_served(found, "float32").splitlines()[1]
    assert row.split() == ["endpoint", "0/16", "(<", "17.1", "%)", "–"]
    server.altered = flips_when_warm(server, WARM_RATE, random.Random(0))
    assert "flips in endpoint again" in served_verdict(examine(host)["passes"], "float32").text


def test_a_continuation_whose_greedy_flag_changes_is_a_flip(host: SimpleNamespace, server: Server) -> None:
    def alter(body: dict[str, Any], choice: dict[str, Any]) -> None:
        if "echo" in body:
            last = len(body["prompt"]) - 1
            choice["logprobs"]["top_logprobs"][last] = {"x": 0.0}

    server.altered = alter
    found = examine(host)["passes"][0]
    flags = zip(host.evaluated.answers.greedy, host.evaluated.leads, strict=True)
    clear = [index for index, (greedy, lead) in enumerate(flags) if greedy and lead > 1e-3]
    assert sum(host.evaluated.answers.greedy) == DOCUMENTS // 2 > len(clear) > 0
    assert list(found["flipped_continuations"]) == clear
    assert served_verdict([found, found], "float32").status == "failed"


@pytest.mark.parametrize("repetitions", [2, pytest.param(20, marks=pytest.mark.long)])
def test_a_server_that_rounds_otherwise_passes(
    host: SimpleNamespace, server: Server, repetitions: int
) -> None:
    server.noise = ROUNDING
    torch.manual_seed(0)
    results = [examine(host) for _ in range(repetitions)]
    statuses = [served_verdict(each["passes"], "float32").status for each in results]
    assert statuses.count("ok") >= 0.95 * repetitions
    # Rounding does change responses, where tokens have twins.
    assert all(each["passes"][0]["changed_texts"] > 0 for each in results)
    assert all(each["divergence"]["largest"] < 1e-6 for each in results)
    assert "0/16 (< 17.1 %)" in format_served(results[0], "float32")


@pytest.mark.parametrize("names_ids", [True, False])
def test_the_divergence_of_other_weights_is_bounded(
    host: SimpleNamespace, server: Server, names_ids: bool
) -> None:
    """The bound is positive, and below the KL over the whole vocabulary."""
    server.names_ids = names_ids
    server.noise = 0.3
    torch.manual_seed(0)
    engine = host.open()
    bound = served_divergence(host.evaluated, engine)
    engine.close()
    assert bound is not None
    assert bound.positions == sum(len(tokens) - 1 for tokens, _ in host.evaluated.texts)
    # Independent errors of at most .3, of variance .03, give a KL of half of it.
    assert 1e-4 < bound.mean < 0.03 / 2
    assert 0.01 < bound.returned < 1


def test_a_server_without_most_likely_tokens_has_a_dash(host: SimpleNamespace, server: Server) -> None:
    def alter(body: dict[str, Any], choice: dict[str, Any]) -> None:
        if body.get("logprobs") == 5:
            choice["logprobs"]["top_logprobs"] = None

    server.altered = alter
    found = examine(host)
    assert found["divergence"] is None
    (line,) = (line for line in format_served(found, "float32").splitlines() if line.startswith("KL"))
    assert line.split() == ["KL,", "nats", "–"]


def test_texts_without_token_ids_are_compared_as_texts(host: SimpleNamespace, server: Server) -> None:
    """Their tokens are those of the text, which the model can have written in others."""
    server.fault = lambda number, body: "bare"
    for each in examine(host)["passes"]:
        assert (each["changed_texts"], each["flipped_texts"]) == (0, ())
