"""The pocket tokenizer: one token per word of the world and per digit, bytes for everything else."""

import functools
import json
import re
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tokenizers import Tokenizer
    from transformers import PreTrainedTokenizerFast

FILE = Path(__file__).with_name("vocabulary.json")
"""Words that are tokens, some with a leading space."""

END = "<|end|>"
PAD = "<|pad|>"

MAX_LENGTH = 2048
"""Context length of the pocket teacher."""

# A word with its leading space, a digit, a punctuation mark with its leading space, or one whitespace.
PATTERN = r" ?[A-Za-z]+|[0-9]| ?[^\sA-Za-z0-9]|\s"

_PIECE = re.compile(PATTERN)


@functools.cache
def words() -> tuple[str, ...]:
    """Return the words that are tokens."""
    return tuple(json.loads(FILE.read_text()))


@functools.cache
def _sizes() -> dict[str, int]:
    return dict.fromkeys(words(), 1)


def count_tokens(text: str) -> int:
    """Return the number of tokens of `text`, without loading the tokenizer.

    Counts are additive over texts that are joined at a token boundary, such as before a space and a word.
    """
    sizes = _sizes()
    total = 0
    for piece in _PIECE.findall(text):
        size = sizes.get(piece)
        if size is None:
            size = sizes[piece] = len(piece.encode())
        total += size
    return total


def build_tokenizer() -> "Tokenizer":
    """Build the tokenizer: byte-level BPE without merges, with known words as single tokens.

    Out-of-vocabulary words are split into bytes, so there is no unknown token. There is no BOS token; `END`
    closes a training text.
    """
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers

    to_byte_level = _byte_level_characters()
    symbols = [END, PAD, *(to_byte_level[byte] for byte in range(256))]
    symbols += ["".join(to_byte_level[byte] for byte in word.encode()) for word in words()]
    vocabulary = {symbol: index for index, symbol in enumerate(symbols)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[], ignore_merges=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(PATTERN), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(END, special=True), AddedToken(PAD, special=True)])
    return tokenizer


def load_tokenizer() -> "PreTrainedTokenizerFast":
    """Return the tokenizer as a transformers tokenizer, ready for ``save_pretrained``."""
    from transformers import PreTrainedTokenizerFast

    return PreTrainedTokenizerFast(
        tokenizer_object=build_tokenizer(),
        eos_token=END,
        pad_token=PAD,
        model_max_length=MAX_LENGTH,
        clean_up_tokenization_spaces=False,
    )


def _byte_level_characters() -> dict[int, str]:
    """GPT-2's mapping of bytes to printable characters."""
    printable = [
        *range(ord("!"), ord("~") + 1),
        *range(ord("¡"), ord("¬") + 1),
        *range(ord("®"), ord("ÿ") + 1),
    ]
    table = {byte: chr(byte) for byte in printable}
    spare = 256
    for byte in range(256):
        if byte not in table:
            table[byte] = chr(spare)
            spare += 1
    return table
