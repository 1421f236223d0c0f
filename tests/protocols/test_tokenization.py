"""Text to tokens: in batches, and still exactly what lm-eval's own classes give one by one."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lm_eval.api.instance import Instance
from lm_eval.api.model import TemplateLM

from evalsuite.foundation import DataError
from evalsuite.protocols.tokenization import Encoder, group_by_context

PAIRS = [
    ("Question: Who is here?\nAnswer:", " Hugo"),
    ("a context that ends in spaces  ", "and goes on"),
    ("a context that ends in a line\n", "and goes on"),
    ("<s>a context with its own beginning", " hunter"),
    ("", "no context at all"),
    ("", "<s>no context but a beginning"),
    ("the same context", " lamp"),
    ("the same context", " lamps and more"),
]


class Reference(TemplateLM):
    """lm-eval's own tokenization, by its TemplateLM and HFLM's rules for special tokens."""

    def __init__(self, tokenizer: Any) -> None:
        super().__init__()
        self.tokenizer = tokenizer
        self.seen: list[Any] = []

    @property
    def eot_token_id(self) -> int:
        return int(self.tokenizer.eos_token_id)

    @property
    def prefix_token_id(self) -> int:
        return int(self.tokenizer.bos_token_id)

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **_: Any) -> list[int]:
        how = {} if add_special_tokens is None else {"add_special_tokens": add_special_tokens}
        if add_special_tokens is None and string.startswith(self.tokenizer.decode(self.prefix_token_id)):
            how["add_special_tokens"] = False
        return list(self.tokenizer.encode(string, **how))

    def _loglikelihood_tokens(self, requests: Any, **_: Any) -> list[tuple[float, bool]]:
        self.seen = [(tuple(context), tuple(rest)) for _, context, rest in requests]
        return [(0.0, False)] * len(self.seen)

    def loglikelihood_rolling(self, requests: Any, disable_tqdm: bool = False) -> list[float]:
        raise NotImplementedError

    def generate_until(self, requests: Any, disable_tqdm: bool = False) -> list[str]:
        raise NotImplementedError


def instances(pairs: list[tuple[str, str]]) -> list[Instance]:
    return [Instance("loglikelihood", {}, pair, 0, ("t", 0, 1)) for pair in pairs]


@pytest.fixture(params=["plain", "with BOS"])
def any_tokenizer(request: pytest.FixtureRequest, tokenizer: Any) -> Any:
    if request.param == "plain":
        return tokenizer
    from tokenizers.processors import TemplateProcessing
    from transformers import PreTrainedTokenizerFast

    inner = type(tokenizer.backend_tokenizer).from_str(tokenizer.backend_tokenizer.to_str())
    inner.post_processor = TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", tokenizer.bos_token_id)]
    )
    return PreTrainedTokenizerFast(tokenizer_object=inner, bos_token="<s>", eos_token="</s>")


def test_encode_pairs_equals_lm_eval(any_tokenizer: Any) -> None:
    reference = Reference(any_tokenizer)
    reference.loglikelihood(instances(PAIRS), disable_tqdm=True)
    assert Encoder(any_tokenizer).pairs(PAIRS) == reference.seen


def test_encode_does_not_repeat_prefix_token(any_tokenizer: Any) -> None:
    encoder = Encoder(any_tokenizer)
    bos = any_tokenizer.bos_token_id
    found = encoder.encode(["hunter", "<s>hunter"])
    assert found["<s>hunter"].count(bos) == 1
    assert encoder.pairs([("", "hunter")])[0][0] == (bos,)


def test_empty_continuation_is_refused(tokenizer: Any) -> None:
    with pytest.raises(DataError, match="has no tokens"):
        Encoder(tokenizer).pairs([("a context", "")])


def test_rolling_windows_cover_every_token_once(tokenizer: Any) -> None:
    encoder = Encoder(tokenizer)
    text = "the sky is blue " * 20
    tokens = encoder.encode([text])[text]
    windows = encoder.rolling(text, 16)
    assert sum((rest for _, rest in windows), ()) == tokens
    assert all(len(context) + len(rest) <= 17 for context, rest in windows)
    assert windows[0][0] == (encoder.prefix_token_id,)


TOKENS = st.lists(st.integers(0, 3), min_size=1, max_size=3).map(tuple)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(TOKENS, TOKENS), min_size=1, max_size=12))
def test_group_by_context_is_lossless(pairs: list[tuple[tuple[int, ...], tuple[int, ...]]]) -> None:
    requests, places = group_by_context(pairs)
    found = [(requests[i].context, requests[i].continuations[k]) for i, k in places]
    assert found == pairs
    contexts = [request.context for request in requests]
    assert len(set(contexts)) == len(contexts)
