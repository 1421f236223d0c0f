"""Longest and median request of the benchmarks that a leaderboard counts, in tokens of its teacher.

    python -m evalsuite.reports.studies.leaderboards.prompt_lengths TEACHER --data DIR

A student whose attention reaches W tokens back computes what full attention computes on every request of at
most W tokens: recoveries over such requests say nothing about what lies further back. A request is a context
with its longest choice, as lm-eval builds them, without examples.
"""

from pathlib import Path
from statistics import median

from evalsuite.foundation.parser import Parser
from evalsuite.models.checkpoints.load import load_checkpoint
from evalsuite.protocols.loglikelihood import LogLikelihoodBenchmark
from evalsuite.protocols.tokenization import Encoder
from evalsuite.reports.studies.leaderboards.leaderboard_numbers import COUNTED
from evalsuite.tasks.benchmark import load_benchmark
from evalsuite.tasks.sources.documents import documents

WINDOW = 256
"""Of `sliding_window-8m`."""


def lengths(name: str, encoder: Encoder, data: Path) -> list[int]:
    """Tokens of the longest request of every document."""
    benchmark = load_benchmark(name)
    harness = LogLikelihoodBenchmark(benchmark, documents(benchmark, data_dir=data))
    return [
        max(len(each.context) + len(tokens) for each in found.score_requests for tokens in each.continuations)
        for found in harness.request_sets(encoder, max_length=8192)
    ]


def main() -> None:
    """Print one line per benchmark."""
    parser = Parser(description=__doc__.splitlines()[0])
    parser.add_argument("teacher", help="folder, hub id or GGUF file; its tokenizer alone is used")
    parser.add_argument("--data", type=Path, required=True)
    args = parser.parse_args()
    encoder = Encoder(load_checkpoint(args.teacher, dtype="bfloat16").tokenizer)
    for name in COUNTED:
        found = lengths(name, encoder, args.data)
        beyond = sum(length > WINDOW for length in found)
        print(
            f"{name}: {len(found):,} documents, longest {max(found)} tokens, median {median(found):.0f}, "
            f"{beyond} beyond {WINDOW}"
        )


if __name__ == "__main__":
    main()
