"""Stopping criteria of a generation: end-of-sequence tokens, stop strings, the token limit."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from evalsuite.models.checkpoints.tokenizers import ContinuationDecoder
from evalsuite.models.inference.requests import (
    FinishReason,
    GenerateRequest,
    GenerateResponse,
    SamplingParams,
)

NON_FINITE_LOGITS = "the model's logits are not finite (NaN or infinity)"


def eos_token_ids(config: Any, tokenizer: Any, generation: Any = None) -> frozenset[int]:
    """End-of-sequence ids of the model's config, the tokenizer and the generation config."""
    found: set[int] = set()
    for ids in (
        getattr(generation, "eos_token_id", None),
        getattr(config, "eos_token_id", None),
        tokenizer.eos_token_id,
    ):
        found.update([ids] if isinstance(ids, int) else ids or [])
    return frozenset(found)


class StopChecker:
    """Collects the tokens of one generation and detects its end.

    Stop strings are searched in the decoded tail that the new tokens can have completed; the full text is
    decoded only on a match, so that the cost does not grow with the length of the response.
    """

    def __init__(self, tokenizer: Any, sampling: SamplingParams, limit: int, eos_ids: frozenset[int]) -> None:
        self._decode = ContinuationDecoder(tokenizer).decode
        self.limit = limit
        self.eos_ids = eos_ids
        special = set(tokenizer.all_special_tokens)
        # Special tokens are not part of the decoded text; as stop strings they are matched by id.
        self.stop_ids = {tokenizer.convert_tokens_to_ids(text) for text in sampling.stop if text in special}
        self.stop_strings = tuple(text for text in sampling.stop if text not in special)
        # A token adds at least one byte, except special ones; eight more cover a character split in bytes.
        self.window = 8 + max((len(text.encode()) for text in self.stop_strings), default=0)
        self.tokens: list[int] = []

    def append(self, tokens: Sequence[int]) -> GenerateResponse | None:
        """Append new tokens; return the response if one of them ends it. Later tokens are ignored."""
        first = len(self.tokens)
        for token in tokens:
            if token in self.eos_ids:
                return self._finish("eos", first)
            if token in self.stop_ids:
                return self._finish("stop", first)
            self.tokens.append(token)
            if len(self.tokens) == self.limit:
                return self._finish("length", first)
        return self._match_stop_string(first)

    def _finish(self, reason: FinishReason, first: int) -> GenerateResponse:
        return self._match_stop_string(first) or GenerateResponse(
            tuple(self.tokens), self._decode(self.tokens), reason
        )

    def _match_stop_string(self, first: int) -> GenerateResponse | None:
        """The response cut before the first stop string, if the tokens from index `first` on complete one."""
        tail = self.tokens[max(0, first - self.window) :]
        if not self.stop_strings or self._find(self._decode(tail)) is None:
            return None
        for end in range(first + 1, len(self.tokens) + 1):
            text = self._decode(self.tokens[:end])
            found = self._find(text)
            if found is not None:
                return GenerateResponse(tuple(self.tokens[:end]), text[:found], "stop")
        return None

    def _find(self, text: str) -> int | None:
        """Position of the first stop string in `text`, or None."""
        found = [at for stop in self.stop_strings if (at := text.find(stop)) >= 0]
        return min(found, default=None)


@dataclass(slots=True, eq=False)
class GenerationState:
    """A request whose response grows token by token."""

    index: int
    request: GenerateRequest
    stop_checker: StopChecker
    finished: bool = False

    def append(self, tokens: list[int], non_finite: list[bool]) -> GenerateResponse | None:
        """Append new tokens, up to the first one sampled from logits that are not finite."""
        good = tokens[: non_finite.index(True)] if any(non_finite) else tokens
        response = self.stop_checker.append(good)
        if response is None and len(good) < len(tokens):
            response = GenerateResponse.from_error(NON_FINITE_LOGITS)
        self.finished = response is not None
        return response
