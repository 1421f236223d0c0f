"""A run over the endpoint whose connection or client is killed goes on where it was."""

import multiprocessing
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from evalsuite.models.inference.endpoint.client import ServerError
from evalsuite.models.inference.requests import GenerateRequest, SamplingParams, ScoreRequest
from evalsuite.models.inference.response_cache import Key, ResponseCache, run_requests
from tests.models.inference.endpoint.conftest import Open
from tests.models.inference.endpoint.server import Server

IN_FLIGHT = 3
BROKEN = 69
"""Exit code of a client whose server is gone."""


def documents(kills: int) -> list[ScoreRequest | GenerateRequest]:
    """So few to score that kills reach generation, and so many in all that no client ends before its kill."""
    draw = random.Random(0)

    def text(length: int) -> tuple[int, ...]:
        return tuple(draw.randrange(10, 300) for _ in range(length))

    score = [ScoreRequest(text(6), (text(2), text(3))) for _ in range(kills)]
    return [*score, *(GenerateRequest(text(6), SamplingParams(3)) for _ in range(15 * kills))]


def sent_as(request: ScoreRequest | GenerateRequest) -> list[tuple[int, ...]]:
    """The prompts in which the engine sends a request."""
    if isinstance(request, ScoreRequest):
        return [request.context + tokens for tokens in request.continuations]
    return [request.prompt]


def work(opened: Open, folder: Path, requests: list[ScoreRequest | GenerateRequest]) -> None:
    """A client that ends when the server is gone."""
    try:
        run_requests(opened(in_flight=IN_FLIGHT, retries=0), ResponseCache(folder), requests, quiet=True)
    except ServerError:
        os._exit(BROKEN)


def stored(opened: Open, folder: Path, keys: Iterable[Key]) -> dict[Key, Any]:
    """Responses on disk."""
    return ResponseCache(folder).known(opened().fingerprint, keys)


def wait_until(reached: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not reached():
        assert time.monotonic() < end
        time.sleep(0.001)


@pytest.mark.parametrize("kills", [4, pytest.param(20, marks=pytest.mark.long)])
def test_kills_lose_nothing_and_nothing_answered_is_sent_again(
    opened: Open, server: Server, tmp_path: Path, kills: int
) -> None:
    """Half of the kills break a connection, half end the client by SIGKILL.

    What was in flight on other connections is on disk when the client ends. One that is killed can lose what
    is on its way, `IN_FLIGHT` requests at most.
    """
    folder, draw, everything = tmp_path / "killed", random.Random(0), documents(kills)
    requests = {request.key(): sent_as(request) for request in everything}
    owner = {prompt: key for key, prompts in requests.items() for prompt in prompts}
    verbs = set()
    for kill in range(kills):
        first, last = (len(each) for each in (server.bodies, server.answered))
        before, more = stored(opened, folder, requests), draw.randint(4, 14)
        broken = first + more if kill % 2 else None
        server.fault = lambda number, body, broken=broken: "half" if number == broken else ""
        process = multiprocessing.get_context("fork").Process(target=work, args=(opened, folder, everything))
        process.start()
        if not broken:
            wait_until(lambda end=last + more: len(server.answered) >= end)
            process.kill()
        process.join()
        assert process.exitcode == (BROKEN if broken else -signal.SIGKILL)
        wait_until(lambda: server.in_flight == 0)

        sent = Counter(owner[tuple(body["prompt"])] for body in server.bodies[first:])
        assert not sent.keys() & before.keys(), "what is on disk is not sent again"
        answered = Counter(owner[tuple(body["prompt"])] for body in server.answered[last:])
        whole = {key for key, count in answered.items() if count == len(requests[key])}
        after = stored(opened, folder, requests)
        assert {key: after[key] for key in before} == before
        assert len(whole - after.keys()) <= (0 if broken else IN_FLIGHT)
        verbs |= {key[0] for key in sent}
    assert verbs == {"score", "generate"}
    server.fault = lambda number, body: ""
    killed, whole = (tmp_path / name for name in ("killed", "whole"))
    for each in (killed, whole):
        work(opened, each, everything)
    assert stored(opened, killed, requests) == stored(opened, whole, requests)
    assert len(stored(opened, killed, requests)) == len(requests)
