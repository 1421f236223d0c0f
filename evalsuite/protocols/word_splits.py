"""Tokenizers that encode what follows a word as if nothing was before it."""

import json
import re
from string import ascii_letters
from typing import Any

from tokenizers.models import BPE

WORD_SPLITS = (
    # GPT-2, Llama 3, Qwen 2, GPT-4o, and the pocket teacher.
    r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+",
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    r" ?[A-Za-z]+|[0-9]| ?[^\sA-Za-z0-9]|\s",
)
"""Patterns of which no match contains two letters with a space between them, so that they split there."""

WITH_SPACE = re.compile(r"(?<=[A-Za-z]) (?=[A-Za-z])")
WITHOUT_SPACE = re.compile(r"(?<=[A-Za-z] )(?=[A-Za-z])")
"""Where a word starts that follows another one: at the space between them, or behind it."""

_SPACE = "▁"
"""What SentencePiece writes for a space."""
_REPLACE = {"type": "Replace", "pattern": {"String": " "}, "content": _SPACE}
_PREPEND = {"type": "Prepend", "prepend": _SPACE}
_CROSSING = re.compile(f"[A-Za-z][ {_SPACE}]")


def word_start(backend: Any) -> re.Pattern[str] | None:
    """Return where a text can be cut so that a tokenizer encodes the rest as if it was still whole.

    That is, between words, if it always splits between a letter and a space with a letter behind it, and
    encodes both sides by themselves. A tokenizer of SentencePiece splits nowhere, but merges across no place
    that none of its tokens contains; one that puts a space before every text gets a rest without its own.

    Args:
        backend: a `tokenizers.Tokenizer`.

    Returns:
        `WITH_SPACE`, `WITHOUT_SPACE`, or None if there is no such place.
    """
    model = backend.model
    if type(model) is not BPE or model.dropout:
        return None
    # Added tokens are found before the text is split, and these could reach over the place.
    added = backend.get_added_tokens_decoder().values()
    if any(" " in each.content or each.lstrip or each.rstrip or each.single_word for each in added):
        return None
    normalizer, before = _stated(backend.normalizer), _stated(backend.pre_tokenizer)
    steps = before["pretokenizers"] if before and before["type"] == "Sequence" else [before]
    if start := _start_of_sentencepiece(normalizer, steps):
        return start if _merges_within_words(backend) else None
    splits = _keeps_words(normalizer) and all(map(_keeps_places, steps)) and any(map(_splits_words, steps))
    return WITH_SPACE if splits else None


def _stated(part: Any) -> Any:
    """A part as in tokenizer.json, of which a whole vocabulary takes a second to write."""
    return None if part is None else json.loads(part.__getstate__())


def _start_of_sentencepiece(normalizer: Any, steps: list[Any]) -> re.Pattern[str] | None:
    """Where words start for a tokenizer that writes each space as SentencePiece does; None for another."""
    if normalizer is None:
        # Metaspace puts no space before a text that begins with one.
        return WITH_SPACE if [step and step.get("replacement") for step in steps] == [_SPACE] else None
    if not all(step is None or step.get("pattern") == {"String": " "} for step in steps):
        return None
    # A step that splits at spaces finds none any more.
    if normalizer == {"type": "Sequence", "normalizers": [_PREPEND, _REPLACE]}:
        return WITHOUT_SPACE
    return WITH_SPACE if normalizer == _REPLACE else None


def _merges_within_words(backend: Any) -> bool:
    """Whether no token has a letter before a space, and every piece of a word is a token by itself."""
    model, vocabulary = backend.model, backend.get_vocab()
    return (
        not (model.continuing_subword_prefix or model.end_of_word_suffix or model.ignore_merges)
        and vocabulary.keys() >= {*ascii_letters, _SPACE}
        and not any(map(_CROSSING.search, vocabulary))
    )


def _keeps_words(normalizer: Any) -> bool:
    """Whether a normalizer changes nothing across a space between two letters."""
    if normalizer is None or normalizer == {"type": "NFC"}:
        return True
    # transformers gives tokenizers from GGUF files a sequence of none.
    return normalizer["type"] == "Sequence" and all(map(_keeps_words, normalizer["normalizers"]))


def _keeps_places(step: Any) -> bool:
    """Whether a pre-tokenizer only splits further."""
    if step is None:
        return False
    if step["type"] == "ByteLevel":
        return not step["add_prefix_space"]
    return step["type"] in ("Digits", "Punctuation") or _splits_words(step)


def _splits_words(step: Any) -> bool:
    """Whether a pre-tokenizer splits before a space between two letters, whatever is around them."""
    if step["type"] == "ByteLevel":
        return bool(step["use_regex"])
    if step["type"] != "Split" or step["behavior"] != "Isolated" or step["invert"]:
        return False
    return step["pattern"].get("Regex") in WORD_SPLITS
