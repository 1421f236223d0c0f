"""Prompts of documents as both protocols make them."""

from evalsuite.evaluation.build import make_harness
from evalsuite.protocols.generation import GenerationBenchmark
from evalsuite.protocols.loglikelihood import LogLikelihoodBenchmark
from evalsuite.tasks.benchmark import Benchmark
from evalsuite.tasks.sources.documents import Document


def prompts(benchmark: Benchmark, found: list[Document]) -> list[str]:
    """The prompt of every document, which is the same text under both protocols."""
    scored = make_harness(benchmark, "loglikelihood", found)
    written = make_harness(benchmark, "generation", found)
    assert isinstance(scored, LogLikelihoodBenchmark)
    assert isinstance(written, GenerationBenchmark)
    texts = [written.text(number, None, chat_template=True) for number in range(len(found))]
    for number, document in enumerate(found):
        pairs = scored.pairs(number)
        assert {context for context, _ in pairs} == {texts[number]}
        assert [continuation for _, continuation in pairs] == document.row["choices"]
    return texts
