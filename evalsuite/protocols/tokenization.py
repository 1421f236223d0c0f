"""Text to token ids, exactly as in lm-eval's HFLM, but in batches."""

from collections.abc import Iterator, Sequence
from typing import Any

from evalsuite.foundation import DataError
from evalsuite.models.inference.requests import ScoreRequest

Tokens = tuple[int, ...]

CHUNK = 1024
"""Texts per tokenizer call; a tokenizer holds offsets and more of every token until it returns."""


class Encoder:
    """A tokenizer with lm-eval's rules for special tokens (`HFLM.tok_encode`, lm-eval 0.4.13).

    Special tokens are added by the tokenizer's default, except to a text that starts with the prefix token.
    The prefix token (BOS, else EOS) is the context of an empty prompt.
    """

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer
        bos = tokenizer.bos_token_id
        prefix = bos if bos is not None else tokenizer.eos_token_id
        if prefix is None:
            raise DataError(
                "the tokenizer has neither a BOS nor an EOS token, so an empty context cannot be encoded"
            )
        self.prefix_token_id = int(prefix)
        self._prefix = tokenizer.decode(self.prefix_token_id)

    def encode(self, texts: Sequence[str]) -> dict[str, Tokens]:
        """Return the tokens of each distinct text, with special tokens."""
        distinct = dict.fromkeys(texts)
        prefixed = [text for text in distinct if text.startswith(self._prefix)]
        plain = [text for text in distinct if not text.startswith(self._prefix)]
        return self._batch(plain, None) | self._batch(prefixed, False)

    def encode_bare(self, texts: Sequence[str]) -> dict[str, Tokens]:
        """Return the tokens of each distinct text, without special tokens."""
        return self._batch(list(dict.fromkeys(texts)), False)

    def _batch(self, texts: list[str], special: bool | None) -> dict[str, Tokens]:
        if not texts:
            return {}
        how = {} if special is None else {"add_special_tokens": special}
        found: dict[str, Tokens] = {}
        for start in range(0, len(texts), CHUNK):
            chunk = texts[start : start + CHUNK]
            # verbose=False: the engine refuses texts that exceed the model's positions, by name.
            encoded = self.tokenizer(chunk, return_attention_mask=False, verbose=False, **how)["input_ids"]
            found.update((text, tuple(tokens)) for text, tokens in zip(chunk, encoded, strict=True))
        return found

    def pairs(
        self, pairs: Sequence[tuple[str, str]], *, add_bos_token: bool = False
    ) -> list[tuple[Tokens, Tokens]]:
        """Return the tokens of each (context, continuation), as `TemplateLM.loglikelihood` does.

        Trailing spaces of a context move to the continuation; both are encoded together and split at the
        length of the context.

        Args:
            pairs: texts.
            add_bos_token: start every context with the prefix token, whatever the tokenizer's default.

        Raises:
            DataError: a continuation without tokens.
        """
        moved = [_move_spaces(context, continuation) for context, continuation in pairs]
        encode = self._encode_with_prefix if add_bos_token else self.encode
        contexts = encode([context for context, _ in moved if context])
        bare = self.encode_bare([continuation for context, continuation in moved if not context])
        found = []
        for start in range(0, len(moved), CHUNK):
            chunk = moved[start : start + CHUNK]
            # Chunked, because all but the last few tokens of a few-shot prompt are discarded.
            joined = encode([context + continuation for context, continuation in chunk if context])
            for context, continuation in chunk:
                if context:
                    cut = len(contexts[context])
                    encoded = contexts[context], joined[context + continuation][cut:]
                else:
                    encoded = self._after_prefix(bare[continuation])
                if not encoded[1]:
                    raise DataError(f"the continuation {continuation[:40]!r} has no tokens")
                found.append(encoded)
        return found

    def _encode_with_prefix(self, texts: Sequence[str]) -> dict[str, Tokens]:
        bare = self.encode_bare(texts)
        return {text: sum(self._after_prefix(tokens), ()) for text, tokens in bare.items()}

    def _after_prefix(self, tokens: Tokens) -> tuple[Tokens, Tokens]:
        if tokens and tokens[0] == self.prefix_token_id:
            return tokens[:1], tokens[1:]
        return (self.prefix_token_id,), tokens

    def rolling(self, text: str, max_length: int) -> list[tuple[Tokens, Tokens]]:
        """Return disjoint windows of at most `max_length` tokens, as `HFLM.loglikelihood_rolling` does."""
        from lm_eval.utils import get_rolling_token_windows, make_disjoint_window

        tokens = list(self.encode([text])[text])
        windows = get_rolling_token_windows(tokens, self.prefix_token_id, max_length, 1)
        return [(tuple(context), tuple(rest)) for context, rest in map(make_disjoint_window, windows)]


def _move_spaces(context: str, continuation: str) -> tuple[str, str]:
    if not context:
        return context, continuation
    bare = context.rstrip()
    # As in lm-eval, a context of spaces alone becomes empty.
    return bare, context[len(bare) :] + continuation


def group_by_context(
    pairs: Sequence[tuple[Tokens, Tokens]],
) -> tuple[list[ScoreRequest], list[tuple[int, int]]]:
    """Join continuations of one context into one request, so that the context is prefilled once.

    Returns:
        The requests, and for each pair the indices of its request and continuation.
    """
    contexts: dict[Tokens, list[Tokens]] = {}
    for context, continuation in pairs:
        contexts.setdefault(context, []).append(continuation)
    order = {context: number for number, context in enumerate(contexts)}
    locations = list(_locations(pairs, order))
    return [ScoreRequest(context, tuple(rest)) for context, rest in contexts.items()], locations


def _locations(pairs: Sequence[tuple[Tokens, Tokens]], order: dict[Tokens, int]) -> Iterator[tuple[int, int]]:
    taken = [0] * len(order)
    for context, _ in pairs:
        request = order[context]
        yield request, taken[request]
        taken[request] += 1
