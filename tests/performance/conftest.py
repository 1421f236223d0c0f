"""Fixtures of the inference tests, which the benchmarks' tests share."""

from tests.models.conftest import one_thread
from tests.models.inference.conftest import build, tokenizer

__all__ = ["build", "one_thread", "tokenizer"]
