"""Text to tokens: in batches, and still exactly what lm-eval's own classes give one by one."""

from pathlib import Path
from string import ascii_letters
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from lm_eval.api.instance import Instance
from lm_eval.api.model import TemplateLM
from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from evalsuite.evaluation.checkpoints import tokenizer_id
from evalsuite.evaluation.documents import token_counter
from evalsuite.foundation import DataError
from evalsuite.protocols.tokenization import Encoder, group_by_context
from evalsuite.protocols.word_splits import WORD_SPLITS
from evalsuite.tasks.benchmark import load_benchmark

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


WORDS = [
    "the",
    "a cat",
    "'s",
    "It's",
    "Émile",
    "naïve",
    "12",
    "3.5",
    "\n",
    "\n\n",
    "  ",
    "…",
    "Answer:",
    "<x>",
    "\t",
    "ß",
]
TEXTS = st.lists(st.sampled_from([*WORDS, " "]), max_size=8).map("".join)


def trained(
    *split: Any, special: tuple[AddedToken, ...] = (), normalizer: Any = None
) -> PreTrainedTokenizerFast:
    """A byte-level tokenizer with few merges, which therefore differ by what is around a text."""
    inner = Tokenizer(models.BPE())
    inner.pre_tokenizer = pre_tokenizers.Sequence(list(split)) if len(split) > 1 else split[0]
    trainer = trainers.BpeTrainer(
        vocab_size=400, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), special_tokens=["<s>", "<x>"]
    )
    inner.train_from_iterator([" ".join(WORDS) * 3, "the cat thecat a catthe Answer: cats"] * 5, trainer)
    inner.add_tokens(list(special))
    if normalizer is not None:
        inner.normalizer = normalizer
    return PreTrainedTokenizerFast(tokenizer_object=inner, bos_token="<s>", eos_token="<s>")


SPLITS = {
    "GPT-2": (pre_tokenizers.ByteLevel(add_prefix_space=False),),
    "SmolLM2": (pre_tokenizers.Digits(True), pre_tokenizers.ByteLevel(add_prefix_space=False)),
} | {
    pattern[:12]: (
        pre_tokenizers.Split(Regex(pattern), "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
    )
    for pattern in WORD_SPLITS
}


def sentencepiece(
    normalizer: Any, split: Any, *, across: bool = False, **model: Any
) -> PreTrainedTokenizerFast:
    """A tokenizer that writes a space as "▁" and splits nowhere; `across` has tokens of several words."""
    inner = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    inner.normalizer = normalizers.Replace(" ", "▁")
    inner.pre_tokenizer = pre_tokenizers.Split("." if across else "▁", "merged_with_next")
    octets = [f"<0x{byte:02X}>" for byte in range(256)]
    alphabet = [*ascii_letters, "▁"]
    trainer = trainers.BpeTrainer(
        vocab_size=400, initial_alphabet=alphabet, special_tokens=["<unk>", "<s>", "<x>", *octets]
    )
    inner.train_from_iterator([" ".join(WORDS) * 3, "the cat thecat a catthe Answer: cats"] * 5, trainer)
    inner.normalizer, inner.pre_tokenizer = normalizer, split
    for name, value in model.items():
        setattr(inner.model, name, value)
    return PreTrainedTokenizerFast(tokenizer_object=inner, bos_token="<s>", eos_token="<s>")


REPLACE = normalizers.Replace(" ", "▁")
SENTENCEPIECE = {
    "Gemma": (REPLACE, pre_tokenizers.Split(" ", "merged_with_previous")),
    "no splits": (REPLACE, None),
    "Llama 2": (normalizers.Sequence([normalizers.Prepend("▁"), REPLACE]), None),
    "Metaspace": (None, pre_tokenizers.Metaspace(prepend_scheme="first", split=False)),
    "Metaspace, splits": (None, pre_tokenizers.Metaspace(prepend_scheme="always")),
}


NORMALIZERS = {
    "GGUF": normalizers.Sequence([]),
    "NFC": normalizers.Sequence([normalizers.NFC(), normalizers.Sequence([])]),
}
"""What transformers gives tokenizers that it converts, and a stack of what changes no spaces."""


@pytest.fixture(params=[*SPLITS, *NORMALIZERS, *SENTENCEPIECE])
def splitting(request: pytest.FixtureRequest) -> PreTrainedTokenizerFast:
    if parts := SENTENCEPIECE.get(request.param):
        return sentencepiece(*parts)
    split = SPLITS.get(request.param, SPLITS["GPT-2"])
    return trained(*split, normalizer=NORMALIZERS.get(request.param))


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(context=TEXTS, continuations=st.lists(TEXTS.filter(str.strip), min_size=1, max_size=3))
def test_ends_of_contexts_encode_as_whole_texts_do(
    splitting: PreTrainedTokenizerFast, context: str, continuations: list[str]
) -> None:
    pairs = [(start + context, each) for each in continuations for start in ("", "one cat and the other ")]
    encoder, whole = Encoder(splitting), Encoder(splitting)
    assert encoder._word_start
    whole._word_start, whole._backend = None, None
    for add_bos_token in (False, True):
        found = [each.pairs(pairs, add_bos_token=add_bos_token) for each in (whole, encoder)]
        assert found[0] == found[1]
        assert all(rest for _, rest in found[0])


@pytest.mark.parametrize("end", ["Answer:", "12 + 34 = " * 9])
def test_long_contexts_are_encoded_once(splitting: PreTrainedTokenizerFast, end: str) -> None:
    encoder = Encoder(splitting)
    lengths: list[int] = []
    encode = encoder._batch
    encoder._batch = lambda texts, special: (lengths.extend(map(len, texts)), encode(texts, special))[1]  # type: ignore[method-assign, func-returns-value]
    context = "the cat and the cat " * 50 + end
    encoder.pairs([(context, f" {letter}") for letter in "ABCD"])
    assert sum(lengths) < len(context) + 6 * len(end) + 100


@pytest.mark.parametrize(
    "tokenizer",
    [
        trained(pre_tokenizers.ByteLevel(add_prefix_space=True)),
        trained(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)),
        trained(pre_tokenizers.ByteLevel(add_prefix_space=False), special=(AddedToken("a cat"),)),
        trained(pre_tokenizers.ByteLevel(add_prefix_space=False), special=(AddedToken("<y>", rstrip=True),)),
        trained(
            pre_tokenizers.Split(Regex(r"\w+ \w+"), "isolated"), pre_tokenizers.ByteLevel(use_regex=False)
        ),
        trained(
            pre_tokenizers.Split(Regex(WORD_SPLITS[0]), "merged_with_next"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ),
        trained(
            pre_tokenizers.ByteLevel(add_prefix_space=False),
            normalizer=normalizers.Sequence([normalizers.Replace("a c", "c")]),
        ),
        sentencepiece(REPLACE, None, across=True),
        sentencepiece(REPLACE, None, ignore_merges=True),
        sentencepiece(normalizers.Prepend("▁"), None),
        sentencepiece(normalizers.Sequence([REPLACE, normalizers.Prepend("▁")]), pre_tokenizers.Digits()),
        sentencepiece(None, pre_tokenizers.Metaspace(replacement="_")),
    ],
)
def test_tokenizers_that_read_over_words_encode_whole_texts(tokenizer: PreTrainedTokenizerFast) -> None:
    encoder = Encoder(tokenizer)
    assert encoder._word_start is None
    reference = Reference(tokenizer)
    pairs = [("one cat and a", " cat too"), ("the cat", "s are there"), ("the<y> cat", " sat")]
    reference.loglikelihood(instances(pairs), disable_tqdm=True)
    assert encoder.pairs(pairs) == reference.seen


def test_tokenizers_that_do_more_than_their_backend_are_called(tokenizer: Any) -> None:
    class Shouting(PreTrainedTokenizerFast):
        def _encode_plus(self, text: Any, *args: Any, **named: Any) -> Any:
            upper = text.upper() if isinstance(text, str) else [each.upper() for each in text]
            return super()._encode_plus(upper, *args, **named)

    loud = Shouting(tokenizer_object=tokenizer.backend_tokenizer, bos_token="<s>", eos_token="</s>")
    texts = ["hunter", "the lamp"]
    found = Encoder(loud).encode(texts)
    assert list(found.values()) == list(Encoder(tokenizer).encode([each.upper() for each in texts]).values())


MERGES = pre_tokenizers.ByteLevel(add_prefix_space=False)


@pytest.mark.parametrize("add_bos_token", [False, True])
@pytest.mark.parametrize("context", ["one cat and the c", "c"])
def test_a_continuation_that_merges_into_its_context_is_encoded_alone(
    context: str, add_bos_token: bool
) -> None:
    tokenizer = trained(MERGES)
    encoder = Encoder(tokenizer)
    texts = encoder.encode_bare([context, f"{context}at", "at", f"{context}at and"])
    assert len(texts[f"{context}at"]) <= len(texts[context])
    (merged, other) = encoder.pairs([(context, "at"), (context, "at and")], add_bos_token=add_bos_token)
    start = (encoder.prefix_token_id,) if add_bos_token else ()
    assert merged == ((*start, *texts[context]), texts["at"])
    # lm-eval's own split, wherever it leaves anything.
    assert other[1] == texts[f"{context}at and"][len(texts[context]) :]


@pytest.mark.parametrize("context", ["a context", ""])
def test_a_choice_without_text_has_no_tokens_which_the_engine_refuses(tokenizer: Any, context: str) -> None:
    requests, _ = group_by_context(Encoder(tokenizer).pairs([(context, "hunter"), (context, "")]))
    errors = [each.validation_error(64) for each in requests]
    assert errors == [
        "invalid request: continuation 1 is empty (a choice without text, or with none that the tokenizer "
        "encodes)"
    ]


def test_a_tokenizer_without_any_end_is_named() -> None:
    bare = PreTrainedTokenizerFast(
        tokenizer_object=trained(MERGES).backend_tokenizer, name_or_path="org/model"
    )
    with pytest.raises(DataError, match="the tokenizer of org/model has neither a BOS nor an EOS token"):
        Encoder(bare)


def test_rolling_windows_cover_every_token_once(tokenizer: Any) -> None:
    encoder = Encoder(tokenizer)
    text = "the sky is blue " * 20
    tokens = encoder.encode([text])[text]
    windows = encoder.rolling(text, 16)
    assert sum((rest for _, rest in windows), ()) == tokens
    assert all(len(context) + len(rest) <= 17 for context, rest in windows)
    assert windows[0][0] == (encoder.prefix_token_id,)


@pytest.mark.parametrize("text", ["the sky is blue " * 20, "hunter", "<s>hunter", "", "<s>"])
def test_windows_of_perplexity_have_one_bos_and_otherwise_those_of_lm_eval(
    any_tokenizer: Any, text: str
) -> None:
    from lm_eval.utils import get_rolling_token_windows, make_disjoint_window

    encoder, bos = Encoder(any_tokenizer), any_tokenizer.bos_token_id
    windows = encoder.rolling(text, 16)
    bare = [token for token in encoder.encode_bare([text])[text] if token != bos]
    assert [token for _, rest in windows for token in rest] == bare
    assert [token for context, _ in windows[:1] for token in context] == [bos][: len(bare)]
    if not text.startswith("<s>"):
        expected = [
            (tuple(context), tuple(rest))
            for context, rest in map(make_disjoint_window, get_rolling_token_windows(bare, bos, 16, 1))
        ]
        assert windows == expected


def save_after_training(tokenizer: Any, folder: Path) -> Any:
    """A tokenizer as a training script leaves it: with truncation and padding of its last batch."""
    tokenizer(["hunter"], truncation=True, max_length=3, padding="max_length")
    tokenizer.save_pretrained(folder)
    return PreTrainedTokenizerFast.from_pretrained(folder)


def test_truncation_of_a_tokenizer_file_changes_no_token_and_no_count(tokenizer: Any, tmp_path: Path) -> None:
    plain = PreTrainedTokenizerFast.from_pretrained(_saved(tokenizer, tmp_path / "plain"))
    cut = save_after_training(plain, tmp_path / "cut")
    assert cut.backend_tokenizer.truncation is not None
    texts = ["the lamp of the hunter is in the box", "the sky is blue " * 40]
    encoders = [Encoder(plain), Encoder(cut)]
    assert encoders[0].encode(texts) == encoders[1].encode(texts)
    for benchmark in map(load_benchmark, ("niah_single_1", "pocket_niah_single_1")):
        for left in (plain, cut):
            left(["hunter"], truncation=True, max_length=3, padding="max_length")
        counts = [[token_counter(each, benchmark)(text) for text in texts] for each in (plain, cut)]
        assert counts[0] == counts[1]
        assert counts[0][1] > 100
    assert tokenizer_id(plain) == tokenizer_id(cut)


def _saved(tokenizer: Any, folder: Path) -> Path:
    copy = type(tokenizer.backend_tokenizer).from_str(tokenizer.backend_tokenizer.to_str())
    made = PreTrainedTokenizerFast(
        tokenizer_object=copy, bos_token="<s>", eos_token="</s>", pad_token="<|pad|>"
    )
    made.save_pretrained(folder)
    return folder


TOKENS = st.lists(st.integers(0, 3), min_size=1, max_size=3).map(tuple)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(TOKENS, TOKENS), min_size=1, max_size=12))
def test_group_by_context_is_lossless(pairs: list[tuple[tuple[int, ...], tuple[int, ...]]]) -> None:
    requests, places = group_by_context(pairs)
    found = [(requests[i].context, requests[i].continuations[k]) for i, k in places]
    assert found == pairs
    contexts = [request.context for request in requests]
    assert len(set(contexts)) == len(contexts)
