"""Fixtures shared with the tests of the evaluation."""

from tests.evaluation.conftest import crew, tiny, tokenizer

__all__ = ["crew", "tiny", "tokenizer"]
