"""Fixtures shared with the tests of the evaluation: stand-in engines, the pocket tokenizer, a tiny model."""

from tests.evaluation.conftest import crew, make_llama, tiny, tokenizer

__all__ = ["crew", "make_llama", "tiny", "tokenizer"]
