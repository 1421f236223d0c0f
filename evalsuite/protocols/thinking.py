"""Thinking budgets: a thought that is still open after some tokens is closed, and the answer generated.

Budget forcing of s1 (Muennighoff et al. 2025, arXiv 2501.19393), as two requests that any engine can run: the
thought, and a continuation of prompt, thought and closing text.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from evalsuite.foundation import content_hash
from evalsuite.foundation.thoughts import CLOSE
from evalsuite.models.inference.base import Engine
from evalsuite.models.inference.requests import GenerateRequest, GenerateResponse
from evalsuite.protocols.reasoning import answer_of

FORCED_CLOSE = f"\n{CLOSE}\n\nFinal answer:"
"""What closes a thought by force: the tag, and the words that the response goes on from."""


@dataclass(frozen=True, slots=True)
class ThinkingRequest(GenerateRequest):
    """Generation with a thinking budget, `sampling.thinking_budget`.

    Args:
        close: token ids of `FORCED_CLOSE`.
        in_reasoning: whether the prompt opens the thought.
    """

    close: tuple[int, ...] = ()
    in_reasoning: bool = False

    @property
    def budget(self) -> int:
        """Tokens after which an open thought is closed."""
        return self.sampling.thinking_budget or 0

    @property
    def max_tokens(self) -> int:
        """Longest response: the thought, what closes it, and the answer."""
        return self.budget + len(self.close) + self.sampling.max_new_tokens

    def key(self) -> tuple[str, str, str, int]:
        """Return (verb, request hash, sampling, seed), which cover the budget and what closes a thought."""
        verb, _, sampling, seed = GenerateRequest.key(self)
        return verb, content_hash([self.prompt, self.close, self.in_reasoning]), sampling, seed

    def is_forced(self, response: GenerateResponse) -> bool:
        """Whether the thought of a response was closed by force."""
        return bool(self.close) and response.tokens[self.budget :][: len(self.close)] == self.close

    def is_complete(self, response: GenerateResponse, max_length: int) -> bool:
        """Whether a model of `max_length` positions would not generate a longer response."""
        if response.finish_reason != "length":
            return True
        if self.is_forced(response):
            answer = self._answer(response.tokens[: self.budget])
            return len(response.tokens) == self.budget + len(self.close) + answer.token_limit(max_length)
        if len(response.tokens) > self.budget:
            return self._whole().is_complete(response, max_length)
        # An open thought that left no position for an answer.
        return self._answer(response.tokens).validation_error(max_length) is not None

    def thought(self) -> GenerateRequest:
        """Return the request for the first `thinking_budget` tokens."""
        return self._plain(self.prompt, self.budget, self.seed)

    def after(self, thought: GenerateResponse, max_length: int) -> GenerateRequest | None:
        """Return the second request; None if the first response is the whole one.

        A thought that ended within the budget, behind which the answer did not, is generated again together
        with it: engines decode a response as a whole, and its two parts would not make the same text.

        Args:
            thought: response to `thought()`.
            max_length: positions of the model.
        """
        if thought.finish_reason != "length":
            return None
        is_open = answer_of(thought.text, in_reasoning=self.in_reasoning) is None
        further = self._answer(thought.tokens) if is_open else self._whole()
        has_room = len(self.prompt) + len(thought.tokens) <= max_length
        return further if has_room and further.validation_error(max_length) is None else None

    def joined(
        self, thought: GenerateResponse, further: GenerateRequest, response: GenerateResponse
    ) -> GenerateResponse:
        """Return the whole response.

        Args:
            thought: response to `thought()`.
            further: the second request.
            response: to it.
        """
        if response.error or further.prompt == self.prompt:
            return response
        return replace(
            response,
            tokens=thought.tokens + self.close + response.tokens,
            text=thought.text + FORCED_CLOSE + response.text,
        )

    def _answer(self, thought: tuple[int, ...]) -> GenerateRequest:
        # Another seed: the stream of random numbers that made the thought starts at its first token.
        seed = int(content_hash([self.seed, "answer"], 8), 16)
        return self._plain(self.prompt + thought + self.close, self.sampling.max_new_tokens, seed)

    def _whole(self) -> GenerateRequest:
        return self._plain(self.prompt, self.budget + self.sampling.max_new_tokens, self.seed)

    def _plain(self, prompt: tuple[int, ...], max_new_tokens: int, seed: int) -> GenerateRequest:
        sampling = replace(self.sampling, max_new_tokens=max_new_tokens, thinking_budget=None)
        return GenerateRequest(prompt, sampling, seed)


def generate(engine: Engine, requests: Sequence[GenerateRequest]) -> Iterator[tuple[int, GenerateResponse]]:
    """Run requests as `Engine.generate`, with or without thinking budgets.

    Second requests run when all first ones have; an interruption loses the thoughts that wait for them.
    """
    waiting: list[tuple[int, ThinkingRequest, GenerateResponse, GenerateRequest]] = []
    first = [each.thought() if isinstance(each, ThinkingRequest) else each for each in requests]
    for index, response in engine.generate(first):
        request = requests[index]
        further = request.after(response, engine.max_length) if isinstance(request, ThinkingRequest) else None
        if further is None:
            yield index, response
        else:
            assert isinstance(request, ThinkingRequest)
            waiting.append((index, request, response, further))
    if waiting:
        for position, response in engine.generate([further for *_, further in waiting]):
            index, request, thought, further = waiting[position]
            yield index, request.joined(thought, further, response)
