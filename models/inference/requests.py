"""Requests to an engine and its responses: token ids in, log-probabilities or tokens out."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Any, Literal, TypeVar

from evalsuite.foundation import ConfigError, content_hash

FinishReason = Literal["stop", "eos", "length", "error"]

INVALID_PREFIX = "invalid request: "
"""Prefix of the error of a request that was never run. Such a response is recomputed if the engine would now
accept the request."""


@dataclass(frozen=True, slots=True)
class ScoreRequest:
    """Log-likelihood of each continuation given the context.

    Args:
        context: token ids, at least one (BOS included if the model expects it).
        continuations: token ids to score, each at least one long.
    """

    context: tuple[int, ...]
    continuations: tuple[tuple[int, ...], ...]

    def key(self) -> tuple[str, str, str, int]:
        """Return (verb, request hash, sampling, seed): the cache key within one fingerprint."""
        return "score", content_hash([self.context, self.continuations]), "", 0

    def max_num_tokens(self) -> int:
        """Number of tokens of the context plus the longest continuation."""
        return len(self.context) + max((len(tokens) for tokens in self.continuations), default=0)

    def validation_error(self, max_length: int) -> str | None:
        """Return why a model of `max_length` positions cannot run this request, or None."""
        if not self.context:
            return INVALID_PREFIX + "the context is empty (give at least the BOS or prefix token)"
        if not self.continuations:
            return INVALID_PREFIX + "there is no continuation to score"
        for number, tokens in enumerate(self.continuations):
            if not tokens:
                return INVALID_PREFIX + (
                    f"continuation {number} is empty (a choice without text, or with none that the tokenizer "
                    "encodes)"
                )
        # The last token of a continuation is predicted, never read.
        length = self.max_num_tokens()
        if length - 1 > max_length:
            return INVALID_PREFIX + (
                f"context and continuation have {length} tokens, the model reads at most {max_length}"
            )
        return None


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """Sampling and stopping parameters of a generation.

    Args:
        max_new_tokens: maximum number of generated tokens.
        temperature: 0 is greedy; otherwise logits are divided by it.
        top_p: nucleus sampling: smallest set of most likely tokens whose probability reaches it; 1 disables.
        top_k: number of most likely tokens to sample from; 0 disables.
        stop: strings that end the generation; the text is cut before the first of them.
        thinking_budget: tokens after which a thought that is open is closed by force, before the answer of at
            most `max_new_tokens`; None: no budget. What runs such a request makes two of it, and no engine
            sees a budget.

    Temperature, top-k and top-p apply in this order and with the definitions of transformers' logits
    processors. Raises ConfigError for values out of range.
    """

    max_new_tokens: int
    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    stop: tuple[str, ...] = ()
    thinking_budget: int | None = None

    def __post_init__(self) -> None:
        if self.max_new_tokens < 1:
            raise ConfigError(f"max_new_tokens = {self.max_new_tokens}: must be at least 1")
        if not (math.isfinite(self.temperature) and self.temperature >= 0):
            raise ConfigError(f"temperature = {self.temperature}: must be 0 (greedy) or positive")
        if not 0 < self.top_p <= 1:
            raise ConfigError(f"top_p = {self.top_p}: must be above 0 and at most 1")
        if self.top_k < 0:
            raise ConfigError(f"top_k = {self.top_k}: must be 0 (all tokens) or positive")
        if self.thinking_budget is not None and self.thinking_budget < 1:
            raise ConfigError(f"thinking_budget = {self.thinking_budget}: must be at least 1 (or left out)")
        if "" in self.stop:
            raise ConfigError("stop contains an empty string, which would end every generation at once")

    @property
    def greedy(self) -> bool:
        """Whether the response is independent of the seed."""
        return self.temperature == 0

    def key(self) -> str:
        """Return a short readable string, equal for parameters that give equal responses."""
        choice = "greedy" if self.greedy else f"t{self.temperature:g}-p{self.top_p:g}-k{self.top_k}"
        stop = f"-stop{content_hash(sorted(self.stop), 8)}" if self.stop else ""
        budget = f"-think{self.thinking_budget}" if self.thinking_budget is not None else ""
        return f"{choice}-n{self.max_new_tokens}{stop}{budget}"


@dataclass(frozen=True, slots=True)
class GenerateRequest:
    """Generation from a prompt. The seed applies to this request alone."""

    prompt: tuple[int, ...]
    sampling: SamplingParams
    seed: int = 0

    def key(self) -> tuple[str, str, str, int]:
        """Return (verb, request hash, sampling, seed); the seed is 0 for greedy requests."""
        seed = 0 if self.sampling.greedy else self.seed
        return "generate", content_hash(self.prompt), self.sampling.key(), seed

    @property
    def max_tokens(self) -> int:
        """Tokens of the longest response, whatever the model's positions."""
        return self.sampling.max_new_tokens

    def is_complete(self, response: "GenerateResponse", max_length: int) -> bool:
        """Whether a model of `max_length` positions would not generate a longer response."""
        return response.finish_reason != "length" or len(response.tokens) == self.token_limit(max_length)

    def token_limit(self, max_length: int) -> int:
        """Maximum number of new tokens: `max_new_tokens`, or what is left of the model's positions."""
        return min(self.sampling.max_new_tokens, max_length - len(self.prompt) + 1)

    def validation_error(self, max_length: int) -> str | None:
        """Return why a model of `max_length` positions cannot run this request, or None."""
        if not self.prompt:
            return INVALID_PREFIX + "the prompt is empty (give at least the BOS or prefix token)"
        if len(self.prompt) > max_length:
            return INVALID_PREFIX + (
                f"the prompt has {len(self.prompt)} tokens, the model reads at most {max_length}"
            )
        return None


@dataclass(frozen=True, slots=True)
class _Stored:
    def to_dict(self) -> dict[str, Any]:
        """Return a JSON-serializable form; floats round-trip exactly."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: value for name, value in values.items() if name != "error" or value}


@dataclass(frozen=True, slots=True)
class ScoreResponse(_Stored):
    """One entry per continuation: summed natural log-probability, greedy flag, number of tokens.

    `greedy` is true if every token of the continuation is the model's argmax. A response with an `error` has
    no entries, so that a failure cannot pass for a score of zero.
    """

    logprobs: tuple[float, ...]
    greedy: tuple[bool, ...]
    lengths: tuple[int, ...]
    error: str | None = None

    @staticmethod
    def from_error(error: str) -> "ScoreResponse":
        """Return the response to a request that could not be scored."""
        return ScoreResponse((), (), (), error)

    @staticmethod
    def from_dict(values: dict[str, Any]) -> "ScoreResponse":
        """Inverse of `to_dict`."""
        return ScoreResponse(
            tuple(values["logprobs"]), tuple(values["greedy"]), tuple(values["lengths"]), values.get("error")
        )


@dataclass(frozen=True, slots=True)
class GenerateResponse(_Stored):
    """Generated tokens and text.

    Args:
        tokens: generated ids without the end-of-sequence token; with a stop string, up to and including the
            token that completed it.
        text: the decoded tokens without special tokens, cut before the first stop string.
        finish_reason: "stop" (a stop string), "eos", "length" (the token limit), or "error".
        error: the cause if `finish_reason` is "error".
    """

    tokens: tuple[int, ...]
    text: str
    finish_reason: FinishReason
    error: str | None = None

    @staticmethod
    def from_error(error: str) -> "GenerateResponse":
        """Return the response to a request that could not be run."""
        return GenerateResponse((), "", "error", error)

    @staticmethod
    def from_dict(values: dict[str, Any]) -> "GenerateResponse":
        """Inverse of `to_dict`."""
        return GenerateResponse(
            tuple(values["tokens"]), values["text"], values["finish_reason"], values.get("error")
        )


Request = ScoreRequest | GenerateRequest
Response = ScoreResponse | GenerateResponse
AnyRequest = TypeVar("AnyRequest", ScoreRequest, GenerateRequest)


def split_valid(
    requests: Sequence[AnyRequest], error_of: Callable[[AnyRequest], str | None]
) -> tuple[list[int], list[tuple[int, str]]]:
    """Indices of the requests that can be run, and index and error of each other one."""
    errors = [(index, error_of(request)) for index, request in enumerate(requests)]
    valid = [index for index, error in errors if error is None]
    return valid, [(index, error) for index, error in errors if error is not None]
