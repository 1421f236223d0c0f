"""When an answer ends: end-of-sequence tokens, stop strings, the token limit."""

from collections.abc import Sequence
from typing import Any

from evalsuite.models.engine.requests import Finish, GenerateAnswer, Sampling


def eos_ids(config: Any, tokenizer: Any, generation: Any = None) -> frozenset[int]:
    """Ids that end a sequence: of the model's config, the tokenizer and the generation config."""
    found: set[int] = set()
    for ids in (
        getattr(generation, "eos_token_id", None),
        getattr(config, "eos_token_id", None),
        tokenizer.eos_token_id,
    ):
        found.update([ids] if isinstance(ids, int) else ids or [])
    return frozenset(found)


class Ending:
    """Decides for one answer, as tokens come in, whether it has ended.

    A stop string is looked for in the decoded tail that new tokens can have completed; the whole answer
    is decoded only once that finds one, so that the cost does not grow with the answer.
    """

    def __init__(self, tokenizer: Any, sampling: Sampling, limit: int, eos: frozenset[int]) -> None:
        self.tokenizer = tokenizer
        self.limit = limit
        self.eos = eos
        special = set(tokenizer.all_special_tokens)
        # A special token is not part of the decoded text, so as a stop string it is matched by its id.
        self.stop_ids = {tokenizer.convert_tokens_to_ids(text) for text in sampling.stop if text in special}
        self.stops = tuple(text for text in sampling.stop if text not in special)
        # A token adds at least one byte, except special ones; eight more cover a character split in bytes
        # and a first piece whose space the decoder strips.
        self.window = 8 + max((len(text.encode()) for text in self.stops), default=0)
        self.tokens: list[int] = []

    def extend(self, tokens: Sequence[int]) -> GenerateAnswer | None:
        """Take new tokens; return the answer if one of them ended it, ignoring those after."""
        first = len(self.tokens)
        for token in tokens:
            if token in self.eos:
                return self._ended("eos", first)
            if token in self.stop_ids:
                return self._ended("stop", first)
            self.tokens.append(token)
            if len(self.tokens) == self.limit:
                return self._ended("length", first)
        return self._stopped(first)

    def _ended(self, finish: Finish, first: int) -> GenerateAnswer:
        return self._stopped(first) or GenerateAnswer(tuple(self.tokens), self._text(self.tokens), finish)

    def _stopped(self, first: int) -> GenerateAnswer | None:
        """The answer cut before the first stop string, if the tokens since number `first` complete one."""
        if not self.stops or not self._find(self.tokens[max(0, first - self.window) :]):
            return None
        for end in range(first + 1, len(self.tokens) + 1):
            text = self._text(self.tokens[:end])
            if found := self._find_in(text):
                return GenerateAnswer(tuple(self.tokens[:end]), text[: found - 1], "stop")
        return None

    def _find(self, tokens: Sequence[int]) -> bool:
        return bool(self._find_in(self._text(tokens)))

    def _find_in(self, text: str) -> int:
        """1 + the position of the first stop string in `text`; 0 if there is none."""
        return min((at + 1 for stop in self.stops if (at := text.find(stop)) >= 0), default=0)

    def _text(self, tokens: Sequence[int]) -> str:
        return self.tokenizer.decode(list(tokens), skip_special_tokens=True)
