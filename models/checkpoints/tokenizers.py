"""Rules for tokenizers that training and evaluation share: whole texts, one BOS, and continuations.

Nothing else uses the backend of a fast tokenizer (`tokenizers.Tokenizer`).
"""

import json
from collections.abc import Callable, Sequence
from typing import Any

from evalsuite.foundation import ConfigError

ANCHOR = "a"
"""Text before a continuation: every tokenizer has it, and it combines with nothing."""


def whole_texts(tokenizer: Any) -> Any:
    """Switch off truncation and padding of a tokenizer's backend, and return the tokenizer.

    A tokenizer.json stores those of the last call before it was saved, often by a training script. Calls
    through transformers reset them, but the backend applies them: texts would be cut and padded silently.
    """
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is not None:
        _reset(backend, _splits_special_tokens(tokenizer))
    return tokenizer


def with_stated_tokens(tokenizer: Any, stated: Callable[[str], Any]) -> Any:
    """Give the tokenizer of a GGUF file the special tokens that the file states, and return it.

    transformers 5.17 has SmolLM2's BOS as its EOS, and adds no BOS to texts of Gemma 3, without a word.

    Args:
        tokenizer: a fast tokenizer.
        stated: name of a field of the header → its value; None where it is not stated.

    Raises:
        ConfigError: texts begin with a token that is not stated, or that a slow tokenizer cannot add.
    """
    for name in ("bos", "eos"):
        number = stated(f"tokenizer.ggml.{name}_token_id")
        if number is not None and getattr(tokenizer, f"{name}_token_id") != number:
            setattr(tokenizer, f"{name}_token", tokenizer.convert_ids_to_tokens(int(number)))
    if not stated("tokenizer.ggml.add_bos_token"):
        return tokenizer
    bos, backend = tokenizer.bos_token, getattr(tokenizer, "backend_tokenizer", None)
    if bos is None or backend is None:
        raise ConfigError("its texts begin with a token that it does not name")
    if backend.encode(ANCHOR).ids[:1] != [tokenizer.bos_token_id]:
        from tokenizers.processors import TemplateProcessing

        special = [(bos, tokenizer.bos_token_id)]
        backend.post_processor = TemplateProcessing(
            single=f"{bos} $A", pair=f"{bos} $A {bos} $B", special_tokens=special
        )
    return tokenizer


def _splits_special_tokens(tokenizer: Any) -> bool:
    return bool(getattr(tokenizer, "split_special_tokens", False))


def _reset(backend: Any, splits_special_tokens: bool) -> None:
    # Assigned only where needed: a thread may be encoding with it.
    if backend.truncation is not None:
        backend.no_truncation()
    if backend.padding is not None:
        backend.no_padding()
    # Copies in other processes lose it.
    if backend.encode_special_tokens is not splits_special_tokens:
        backend.encode_special_tokens = splits_special_tokens


def tokenizer_parts(tokenizer: Any) -> dict[str, Any] | None:
    """Return what determines the tokens of a fast tokenizer, as in tokenizer.json; None for a slow one."""
    backend = getattr(whole_texts(tokenizer), "backend_tokenizer", None)
    return None if backend is None else json.loads(backend.to_str())


def backend_of(tokenizer: Any) -> Any:
    """Return the `tokenizers.Tokenizer` that a tokenizer merely passes its texts to; None for any other."""
    backend = getattr(whole_texts(tokenizer), "backend_tokenizer", None)
    if backend is None:
        return None
    from transformers import PreTrainedTokenizerFast

    kind, methods = type(tokenizer), ("__call__", "_encode_plus", "_batch_encode_plus")
    same = (getattr(kind, name, None) is getattr(PreTrainedTokenizerFast, name, None) for name in methods)
    return backend if all(same) else None


def prefix_token_id(tokenizer: Any) -> int | None:
    """Return the token that a text begins with (BOS, else EOS); None if the tokenizer has neither."""
    token = tokenizer.bos_token_id
    token = tokenizer.eos_token_id if token is None else token
    return None if token is None else int(token)


class TextEncoder:
    """Encodes texts with the tokenizer's special tokens, unless a text begins with its own.

    A text that begins with the text of the prefix token, such as a rendered chat, gets no special tokens, so
    that every text has one BOS (`HFLM.tok_encode`, lm-eval 0.4.13). It can be sent to other processes, which
    need not import transformers for it.
    """

    def __init__(self, tokenizer: Any) -> None:
        self._name = type(tokenizer).__name__
        self._backend = backend_of(tokenizer)
        self._splits_special_tokens = _splits_special_tokens(tokenizer)
        self._prefix = prefix_text(tokenizer)

    def encode(self, texts: Sequence[str], *, offsets: bool = False) -> list[Any]:
        """Return one `tokenizers.Encoding` per text; their offsets are valid only if `offsets`.

        Raises:
            ConfigError: the tokenizer is none that passes its texts to `tokenizers`.
        """
        if self._backend is None:
            raise ConfigError(
                f"{self._name}: a tokenizer that is not one of the tokenizers package; convert it to a "
                "tokenizer.json"
            )
        _reset(self._backend, self._splits_special_tokens)
        encode = self._backend.encode_batch if offsets else self._backend.encode_batch_fast
        special = [needs_special_tokens(text, self._prefix) for text in texts]
        found: dict[int, Any] = {}
        for kind in (True, False):
            numbers = [number for number, needed in enumerate(special) if needed is kind]
            encodings = encode([texts[number] for number in numbers], add_special_tokens=kind)
            found |= dict(zip(numbers, encodings, strict=True))
        return [found[number] for number in range(len(texts))]


def prefix_text(tokenizer: Any) -> str:
    """Return the text of the prefix token, as a chat template writes it; empty if there is none."""
    text = tokenizer.eos_token if tokenizer.bos_token_id is None else tokenizer.bos_token
    return "" if text is None else str(text)


def needs_special_tokens(text: str, prefix: str) -> bool:
    """Return whether a tokenizer adds its special tokens to a text: not if it begins with `prefix` itself."""
    return not (prefix and text.startswith(prefix))


class ContinuationDecoder:
    """Decodes tokens that continue another text, without special tokens.

    Decoders of SentencePiece drop the first space of a text, which is part of a continuation. Others give the
    same text with and without an anchor before it.
    """

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._anchor = list(tokenizer.encode(ANCHOR, add_special_tokens=False))
        self._before = self._decode(self._anchor)

    def decode(self, tokens: Sequence[int]) -> str:
        """Return the text by which the tokens continue what is before them."""
        text = self._decode([*self._anchor, *tokens])
        if self._before and text.startswith(self._before):
            return text[len(self._before) :]
        return self._decode(list(tokens))

    def _decode(self, tokens: list[int]) -> str:
        return str(self._tokenizer.decode(tokens, skip_special_tokens=True))
