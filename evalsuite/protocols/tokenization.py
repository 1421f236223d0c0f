"""Text to token ids, as in lm-eval's HFLM, but in batches.

Two texts are encoded differently from lm-eval 0.4.13. A continuation that merges into the last token of its
context is encoded alone, where lm-eval fails an assertion (as its PR 4055 does). A page whose tokens already
begin with the prefix token gets no second one before its windows of perplexity, where lm-eval scores a BOS
after a BOS (its issue 3333).
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from evalsuite.foundation import DataError
from evalsuite.models.checkpoints.tokenizers import (
    backend_of,
    needs_special_tokens,
    prefix_text,
    prefix_token_id,
    whole_texts,
)
from evalsuite.models.inference.requests import ScoreRequest
from evalsuite.protocols.word_splits import word_start

Tokens = tuple[int, ...]

CHUNK = 1024
"""Texts per tokenizer call; a tokenizer holds more of every token than its id until it returns."""

_TAILS = 32, 256
"""Last characters of a context in which its last word is searched; more of them where fewer have none."""


class Encoder:
    """A tokenizer with lm-eval's rules for special tokens (`HFLM.tok_encode`, lm-eval 0.4.13).

    Special tokens are added by the tokenizer's default, except to a text that starts with the prefix token.
    The prefix token (BOS, else EOS) is the context of an empty prompt.
    """

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer
        prefix = prefix_token_id(tokenizer)
        if prefix is None:
            name = getattr(tokenizer, "name_or_path", "")
            raise DataError(
                f"the tokenizer{f' of {name}' if name else ''} has neither a BOS nor an EOS token, so an "
                "empty context cannot be encoded; set 'eos_token' in its tokenizer_config.json"
            )
        self.prefix_token_id = prefix
        self._prefix = prefix_text(tokenizer)
        self._backend = backend_of(tokenizer)
        self._word_start = None if self._backend is None else word_start(self._backend)

    def encode(self, texts: Sequence[str]) -> dict[str, Tokens]:
        """Return the tokens of each distinct text, with special tokens."""
        distinct = dict.fromkeys(texts)
        special = {text: needs_special_tokens(text, self._prefix) for text in distinct}
        plain, prefixed = ([text for text in distinct if special[text] is kind] for kind in (True, False))
        return self._batch(plain, None) | self._batch(prefixed, False)

    def encode_bare(self, texts: Sequence[str]) -> dict[str, Tokens]:
        """Return the tokens of each distinct text, without special tokens."""
        return self._batch(list(dict.fromkeys(texts)), False)

    def _batch(self, texts: list[str], special: bool | None) -> dict[str, Tokens]:
        if not texts:
            return {}
        how = {} if special is None else {"add_special_tokens": special}
        found: dict[str, Tokens] = {}
        whole_texts(self.tokenizer)
        for start in range(0, len(texts), CHUNK):
            chunk = texts[start : start + CHUNK]
            if self._backend is not None:
                encodings = self._backend.encode_batch_fast(chunk, add_special_tokens=special is not False)
                encoded = [each.ids for each in encodings]
            else:
                # verbose=False: the engine refuses texts that exceed the model's positions, by name.
                encoded = self.tokenizer(chunk, return_attention_mask=False, verbose=False, **how)[
                    "input_ids"
                ]
            found.update((text, tuple(tokens)) for text, tokens in zip(chunk, encoded, strict=True))
        return found

    def pairs(
        self, pairs: Sequence[tuple[str, str]], *, add_bos_token: bool = False
    ) -> list[tuple[Tokens, Tokens]]:
        """Return the tokens of each (context, continuation), as `TemplateLM.loglikelihood` does.

        Trailing spaces of a context move to the continuation; both are encoded together and split at the
        length of the context. A continuation without tokens, which the engine refuses, is one without text.

        Args:
            pairs: texts.
            add_bos_token: start every context with the prefix token, whatever the tokenizer's default.
        """
        moved = [_move_spaces(context, continuation) for context, continuation in pairs]
        encode = self._encode_with_prefix if add_bos_token else self.encode
        contexts = encode([context for context, _ in moved if context])
        bare = self.encode_bare([continuation for context, continuation in moved if not context])
        words = self._last_words(contexts)
        found = []
        for start in range(0, len(moved), CHUNK):
            chunk = moved[start : start + CHUNK]
            # Chunked, because all but the last few tokens of a few-shot prompt are discarded.
            joined = encode([a + b for a, b in chunk if a and a not in words])
            ends = self.encode_bare([words[a][0] + b for a, b in chunk if a in words])
            for context, continuation in chunk:
                if context in words:
                    word, cut = words[context]
                    encoded = contexts[context], ends[word + continuation][cut:]
                elif context:
                    cut = len(contexts[context])
                    encoded = contexts[context], joined[context + continuation][cut:]
                else:
                    encoded = self._after_prefix(bare[continuation])
                found.append(encoded)
        # A token that reaches over the end of its context leaves nothing of a continuation.
        alone = self.encode_bare(
            [text for (context, text), (_, rest) in zip(moved, found, strict=True) if context and not rest]
        )
        return [
            (tokens, alone[text] if context and not rest else rest)
            for (context, text), (tokens, rest) in zip(moved, found, strict=True)
        ]

    def _last_words(self, contexts: Mapping[str, Tokens]) -> dict[str, tuple[str, int]]:
        """Return the text from the last word of each context on, and its number of tokens.

        A tokenizer that splits words gives text from there on the same tokens with the context before it as
        without, so that the rest of a long context is not encoded again for each of its continuations.
        Contexts without two words at their end, or with special tokens behind them, are left out.
        """
        if self._word_start is None:
            return {}
        starts = {}
        for context in contexts:
            # A context that is shorter could become the prefix token together with its continuation.
            if len(context) >= len(self._prefix):
                for size in _TAILS:
                    tail = max(0, len(context) - size)
                    places = [match.start() for match in self._word_start.finditer(context, tail)]
                    if places:
                        starts[context] = context[places[-1] :]
                        break
        encoded = self.encode_bare(list(starts.values()))
        return {
            context: (word, len(encoded[word]))
            for context, word in starts.items()
            if contexts[context][-len(encoded[word]) :] == encoded[word]
        }

    def _encode_with_prefix(self, texts: Sequence[str]) -> dict[str, Tokens]:
        bare = self.encode_bare(texts)
        return {text: sum(self._after_prefix(tokens), ()) for text, tokens in bare.items()}

    def _after_prefix(self, tokens: Tokens) -> tuple[Tokens, Tokens]:
        if tokens and tokens[0] == self.prefix_token_id:
            return tokens[:1], tokens[1:]
        return (self.prefix_token_id,), tokens

    def rolling(self, text: str, max_length: int) -> list[tuple[Tokens, Tokens]]:
        """Return disjoint windows of at most `max_length` tokens, as `HFLM.loglikelihood_rolling` does.

        The first window begins with the prefix token, once, and scores all that follows it.
        """
        from lm_eval.utils import get_rolling_token_windows, make_disjoint_window

        _, tokens = self._after_prefix(self.encode([text])[text])
        windows = get_rolling_token_windows(list(tokens), self.prefix_token_id, max_length, 1)
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
