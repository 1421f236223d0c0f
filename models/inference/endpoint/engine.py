"""The endpoint engine: the checkpoint as a server of OpenAI's completions API runs it.

Requests are token ids, as for every engine, so that prompts do not depend on the server's templates. The
log-likelihood of a continuation is read from the log-probabilities of an echoed prompt (`echo`, `logprobs`),
which vLLM and SGLang return; servers that do not can generate only.
"""

import math
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeVar

from evalsuite.foundation import CheckpointError, ConfigError, EvalsuiteError
from evalsuite.models.checkpoints.fingerprint import fingerprint, source_hash
from evalsuite.models.checkpoints.load import CheckpointInfo, describe_checkpoint
from evalsuite.models.checkpoints.positions import stated_positions
from evalsuite.models.inference.base import NoScoresError
from evalsuite.models.inference.endpoint.client import Client, RefusedError, ServerError
from evalsuite.models.inference.registry import ENGINES, EngineSettings, EngineType
from evalsuite.models.inference.requests import (
    AnyRequest,
    FinishReason,
    GenerateRequest,
    GenerateResponse,
    ScoreRequest,
    ScoreResponse,
    split_valid,
)

SOURCE = ("inference/endpoint",)
"""Our code that computes responses; the fingerprint covers it."""
MIN_SAME_TOKENS = 0.9
"""Share of echoed tokens with the text of ours, below which the server has another tokenizer."""
TIE = 1e-6
"""Nats by which a token may be below the most likely one and still count as greedy: servers round."""
TOP_TOKENS = 5
"""Most likely tokens that are requested; OpenAI's API has no more."""
Result = TypeVar("Result")


@dataclass(frozen=True)
class Served:
    """What a server says about itself."""

    model: str
    positions: int | None
    """Positions that it reads; None if it does not say."""
    version: str
    """Of the server's software; empty if it does not say."""


@ENGINES.register("endpoint")
class EndpointEngine(EngineType):
    """Runs requests on a server that is told to hold the checkpoint.

    Args:
        info: the checkpoint whose tokenizer and weights the server is said to have.
        url: of the API, e.g. http://localhost:8000/v1.
        model: name of the model there; may be left out if there is one.
        in_flight: requests that are sent at once.
        timeout: seconds for one answer.
        retries: further attempts after 429, 5xx, a broken connection or what is no JSON.

    Raises:
        ConfigError: an argument that is not valid, a model that is not there, a server without
            log-probabilities of prompts that is to score.
        CheckpointError: the server has another tokenizer.
        ServerError: no usable answer.
    """

    display_name = "a server"
    arguments_help = (
        "url=http://HOST:PORT/v1 of an OpenAI-compatible server; also model, in_flight, timeout, retries"
    )
    chooses_devices = True
    opens_unloaded = True
    stores_each = True

    def __init__(
        self,
        info: CheckpointInfo,
        *,
        url: str = "",
        model: str | None = None,
        in_flight: int = 16,
        timeout: float = 600.0,
        retries: int = 6,
    ) -> None:
        if not url:
            raise ConfigError("engine endpoint: give --engine-args url=http://HOST:PORT/v1")
        for name, value, least in (
            ("in_flight", in_flight, 1),
            ("timeout", timeout, 0.1),
            ("retries", retries, 0),
        ):
            if not isinstance(value, int | float) or isinstance(value, bool) or not least <= value < 1e6:
                raise ConfigError(
                    f"engine endpoint: {name} = {value!r}: must be a number of at least {least:g}"
                )
        self.info = info
        self._model = model
        self._in_flight = int(in_flight)
        self._client = Client(url, timeout=timeout, retries=int(retries), connections=self._in_flight)
        self._has_checked_tokens = False

    @classmethod
    def open(cls, path: str, settings: EngineSettings) -> "EndpointEngine":
        """Reads config and tokenizer; device and dtype are the server's."""
        known = ("url", "model", "in_flight", "timeout", "retries")
        if extra := [name for name in settings.arguments if name not in known]:
            raise ConfigError(f"engine endpoint has no argument '{extra[0]}'; known are {', '.join(known)}")
        info = describe_checkpoint(path, trust_remote_code=settings.trust_remote_code, shares_tokenizer=True)
        return cls(info, **settings.arguments)

    @property
    def label(self) -> str:
        return self.info.label

    @property
    def weights_id(self) -> str:
        return self.info.weights_id

    @cached_property
    def served(self) -> Served:
        """What the server says about itself; it is called once."""
        listed = self._client.get("models")
        models = {each["id"]: each for each in _mappings(listed, "data") if isinstance(each.get("id"), str)}
        if not models:
            raise ConfigError(f"{self._client.url}/models: lists no model; is it an OpenAI-compatible API?")
        if self._model is None and len(models) > 1:
            raise ConfigError(f"{self._client.url}: has {', '.join(sorted(models))}; give model=NAME")
        name = self._model or next(iter(models))
        if name not in models:
            raise ConfigError(f"{self._client.url}: has {', '.join(sorted(models))}, not '{name}'")
        positions = models[name].get("max_model_len")
        return Served(name, positions if isinstance(positions, int) else None, self._version())

    def _version(self) -> str:
        """As vLLM states it, outside the API."""
        probe = Client(self._client.url.removesuffix("/v1"), timeout=10, retries=0, connections=1)
        try:
            value = probe.get("version")
        except (ConfigError, RefusedError, ServerError):
            return ""
        finally:
            probe.close()
        return str(value.get("version", "")) if isinstance(value, dict) else ""

    @cached_property
    def max_length(self) -> int:
        """One less than the server reads, because it always generates a token."""
        found = [
            each for each in (stated_positions(self.info.config), self.served.positions) if each is not None
        ]
        if not found:
            raise ConfigError(
                f"{self.info.path}: neither its config nor the server states a number of positions"
            )
        return min(found) - 1

    @property
    def versions(self) -> dict[str, str]:
        """The server's model and version, and our own source."""
        served = self.served
        return {"model": served.model, "server": served.version or "unknown", "source": source_hash(*SOURCE)}

    @cached_property
    def fingerprint(self) -> str:
        """Of another engine's responses to the same weights it differs."""
        return fingerprint(self.info.weights_id, "served", "endpoint", self.versions)

    def score(self, requests: Sequence[ScoreRequest]) -> Iterator[tuple[int, ScoreResponse]]:
        """Sends context and continuation once per continuation."""
        yield from self._run(requests, self._score, ScoreResponse.from_error)

    def generate(self, requests: Sequence[GenerateRequest]) -> Iterator[tuple[int, GenerateResponse]]:
        """Random draws differ from those of other engines for the same seed."""
        yield from self._run(requests, self._generate, GenerateResponse.from_error)

    def top_logprobs(
        self, texts: Sequence[Sequence[int]]
    ) -> Iterator[tuple[int, list[dict[int, float]] | None]]:
        """The `TOP_TOKENS` most likely ones, and the text's own, as far as the server names them."""
        requests = [ScoreRequest(tuple(text[:1]), (tuple(text[1:]),)) for text in texts]
        yield from self._run(requests, self._top_logprobs, lambda error: None)

    def _run(
        self,
        requests: Sequence[AnyRequest],
        run: Callable[[AnyRequest], Result],
        from_error: Callable[[str], Result],
    ) -> Iterator[tuple[int, Result]]:
        """Run requests with a bounded number in flight; a request that is refused becomes an error.

        After a failure none is sent any more, and what is in flight is handed out before it is raised.
        """
        valid, invalid = split_valid(requests, lambda request: request.validation_error(self.max_length))
        for index, error in invalid:
            yield index, from_error(error)
        waiting = deque(valid)
        pool = ThreadPoolExecutor(self._in_flight)
        flying: dict[Future[Result], int] = {}
        failure: EvalsuiteError | None = None
        try:
            while waiting or flying:
                while waiting and len(flying) < self._in_flight:
                    index = waiting.popleft()
                    flying[pool.submit(run, requests[index])] = index
                done, _ = wait(flying, return_when=FIRST_COMPLETED)
                for future in done:
                    index = flying.pop(future)
                    try:
                        result = future.result()
                    except RefusedError as error:
                        result = from_error(str(error))
                    except EvalsuiteError as error:
                        failure = failure or error
                        waiting.clear()
                        continue
                    yield index, result
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
        if failure:
            raise failure

    def _score(self, request: ScoreRequest) -> ScoreResponse:
        logprobs, greedy = [], []
        for continuation in request.continuations:
            prompt = [*request.context, *continuation]
            body = {"max_tokens": 1, "temperature": 0.0, "echo": True, "logprobs": 1}
            found = self._echoed(prompt, self._complete(prompt, body))
            if isinstance(found, str):
                return ScoreResponse.from_error(found)
            rows = found[len(request.context) :]
            logprobs.append(math.fsum(value for value, _ in rows))
            greedy.append(all(value >= best - TIE for value, best in rows))
        if not all(map(math.isfinite, logprobs)):
            return ScoreResponse.from_error("the server's log-probabilities are not finite")
        return ScoreResponse(tuple(logprobs), tuple(greedy), tuple(map(len, request.continuations)))

    def _echoed(self, prompt: Sequence[int], choice: Mapping[str, Any]) -> list[tuple[float, float]] | str:
        """Return log-probability of every token and of the most likely one there, or what is wrong.

        The first token has none, and NaN stands for it.
        """
        given = choice.get("logprobs")
        if not isinstance(given, dict) or not isinstance(given.get("token_logprobs"), list):
            raise NoScoresError(
                f"{self._client.url}: returns no log-probabilities of an echoed prompt, and can generate "
                "only; leave log-likelihood out (--protocol generation)"
            )
        values, best = given["token_logprobs"], given.get("top_logprobs")
        if len(values) not in (len(prompt), len(prompt) + 1):
            return f"the server returned {len(values)} log-probabilities for {len(prompt)} tokens"
        if not isinstance(best, list) or len(best) != len(values):
            return "the server returned no most likely tokens (top_logprobs), which tell what is greedy"
        self._check_tokens(prompt, given.get("tokens"))
        rows = [(math.nan, math.nan)]
        for value, top in zip(values[1 : len(prompt)], best[1 : len(prompt)], strict=True):
            numbers = list(top.values()) if isinstance(top, dict) else []
            if not all(isinstance(each, int | float) for each in (value, *numbers)) or not numbers:
                return "the server left out the log-probability of a token"
            rows.append((float(value), float(max(numbers))))
        return rows

    def _top_logprobs(self, request: ScoreRequest) -> list[dict[int, float]] | None:
        """Return log-probabilities by token id per position; None if the server returns none."""
        prompt = [*request.context, *request.continuations[0]]
        body = {"max_tokens": 1, "temperature": 0.0, "echo": True, "logprobs": TOP_TOKENS}
        # vLLM names tokens by their ids then; others ignore it and return their texts.
        choice = self._complete(prompt, body | {"return_tokens_as_token_ids": True})
        given = choice.get("logprobs")
        rows = given.get("top_logprobs") if isinstance(given, dict) else None
        if not isinstance(rows, list) or len(rows) < len(prompt):
            return None
        found = []
        for row in rows[1 : len(prompt)]:
            if not isinstance(row, dict) or not all(isinstance(each, int | float) for each in row.values()):
                return None
            ids = ((self._token_id(name), float(value)) for name, value in row.items())
            found.append({token: value for token, value in ids if token is not None})
        return found if any(found) else None

    def _token_id(self, name: str) -> int | None:
        """The token of a name; None for a text that no token has, or more than one."""
        prefix, _, number = name.rpartition(":")
        return int(number) if prefix == "token_id" and number.isdigit() else self._tokens_by_text.get(name)

    @cached_property
    def _tokens_by_text(self) -> dict[str, int]:
        ids = range(len(self.info.tokenizer))
        texts = self.info.tokenizer.batch_decode([[token] for token in ids])
        counts = Counter(texts)
        return {text: token for token, text in zip(ids, texts, strict=True) if counts[text] == 1}

    def _check_tokens(self, prompt: Sequence[int], texts: Any) -> None:
        """Refuse a server whose tokens have other texts; a prompt with enough letters decides once."""
        if self._has_checked_tokens or not isinstance(texts, list):
            return
        ours = [self.info.tokenizer.decode([token]).strip() for token in prompt]
        pairs = [
            (own, str(text).strip())
            for own, text in zip(ours, texts, strict=False)
            if own.isascii() and own.isalnum()
        ]
        if len(pairs) < 8:
            return
        same = sum(own == text for own, text in pairs) / len(pairs)
        if same < MIN_SAME_TOKENS:
            own, text = next((own, text) for own, text in pairs if own != text)
            raise CheckpointError(
                f"{self._client.url}: has another tokenizer than {self.info.path}: {100 * (1 - same):.0f} % "
                f"of tokens have another text, e.g. {text!r} for {own!r}; it serves another model"
            )
        self._has_checked_tokens = True

    def _generate(self, request: GenerateRequest) -> GenerateResponse:
        sampling = request.sampling
        body: dict[str, Any] = {
            "max_tokens": request.token_limit(self.max_length),
            "temperature": sampling.temperature,
            "return_token_ids": True,
        }
        if not sampling.greedy:
            body |= {"top_p": sampling.top_p, "seed": request.seed}
            body |= {"top_k": sampling.top_k} if sampling.top_k else {}
        if sampling.stop:
            body["stop"] = list(sampling.stop)
        choice = self._complete(list(request.prompt), body)
        text, reason = choice.get("text"), choice.get("finish_reason")
        if not isinstance(text, str) or reason not in ("stop", "length"):
            return GenerateResponse.from_error(
                f"the server ended with {reason!r} and text {type(text).__name__}"
            )
        finish: FinishReason = "length" if reason == "length" else "eos"
        # vLLM and SGLang name what stopped a generation; a string was one of `stop`.
        if reason == "stop" and isinstance(choice.get("stop_reason", choice.get("matched_stop")), str):
            finish = "stop"
        if found := [at for stop in sampling.stop if (at := text.find(stop)) >= 0]:
            text, finish = text[: min(found)], "stop"
        tokens = choice.get("token_ids")
        if not isinstance(tokens, list):
            tokens = self.info.tokenizer.encode(text, add_special_tokens=False)
        return GenerateResponse(tuple(map(int, tokens)), text, finish)

    def _complete(self, prompt: list[int], body: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the one choice of a completion."""
        answer = self._client.post("completions", {"model": self.served.model, "prompt": prompt, **body})
        choices = _mappings(answer, "choices")
        if len(choices) != 1:
            raise ServerError(f"{self._client.url}/completions: has {len(choices)} choices, not one")
        return choices[0]

    def close(self) -> None:
        """Close the connections; the server goes on."""
        self._client.close()


def _mappings(value: Any, name: str) -> list[Mapping[str, Any]]:
    rows = value.get(name) if isinstance(value, dict) else None
    return [row for row in rows if isinstance(row, dict)] if isinstance(rows, list) else []
