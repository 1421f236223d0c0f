"""Greedy responses of our engine against transformers' `generate`, token by token.

    python tests/parity/greedy_generation.py CHECKPOINT --data DIR --device cuda --prompts 100

Prompts are contexts of HellaSwag, evenly spaced over the data set. Each is continued by transformers at batch
size 1, by our engine alone, and by our engine in a batch with all others; float32, torch backend, no TF32.

Exit codes: 0 all responses are equal alone and 99 % of them batched, 1 they are not, 64 or more an error.
"""

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import torch

from evalsuite.cli.exit_codes import guarded
from evalsuite.foundation import progress
from evalsuite.foundation.parser import Parser
from evalsuite.models.inference.requests import GenerateRequest, SamplingParams
from evalsuite.models.inference.torch.engine import TorchEngine
from evalsuite.protocols.loglikelihood import LogLikelihoodBenchmark
from evalsuite.protocols.tokenization import Encoder
from evalsuite.tasks.benchmark import load_benchmark
from evalsuite.tasks.sources.documents import documents
from tests.parity.lm_eval_loglikelihoods import load

Tokens = tuple[int, ...]
MIN_BATCHED_EQUAL = 0.99


@dataclass(frozen=True, slots=True)
class Divergence:
    """A response that differs from transformers'."""

    prompt: int
    batched: bool
    position: int
    """First token that differs."""
    margin: float
    """Log-probability between the two most likely tokens there, in nats."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """Number of equal responses, each prompt alone and batched with all others."""

    prompts: int
    tokens: int
    alone: int
    batched: int
    divergences: list[Divergence] = field(default_factory=list)

    def holds(self) -> bool:
        """Return whether all responses are equal alone, and nearly all batched."""
        return self.alone == self.prompts and self.batched >= MIN_BATCHED_EQUAL * self.prompts


def compare(
    checkpoint: Any, prompts: Sequence[Tokens], new_tokens: int, *, quiet: bool = False
) -> Comparison:
    """Continue every prompt three times and compare.

    Args:
        checkpoint: model and tokenizer.
        prompts: token ids, each shorter than the model's positions by `new_tokens`.
        new_tokens: maximum number of new tokens; a response also ends at the model's end tokens.
        quiet: no progress bar.
    """
    engine = TorchEngine(checkpoint)
    requests = [GenerateRequest(prompt, SamplingParams(new_tokens)) for prompt in prompts]
    together = dict(engine.generate(requests))
    divergences: list[Divergence] = []
    total = 0
    with progress(total=len(prompts), what="greedy responses", unit="prompt", quiet=quiet) as bar:
        for number, prompt in enumerate(prompts):
            reference = generated(checkpoint.model, prompt, new_tokens, engine.eos_ids)
            total += len(reference)
            ((_, alone),) = engine.generate([requests[number]])
            for batched, ours in ((False, alone.tokens), (True, together[number].tokens)):
                if ours != reference:
                    position = first_difference(ours, reference)
                    margin = _margin(checkpoint.model, prompt + reference[:position])
                    divergences.append(Divergence(number, batched, position, margin))
            bar.update(1)
    wrong = sum(each.batched for each in divergences)
    return Comparison(
        len(prompts), total, len(prompts) - len(divergences) + wrong, len(prompts) - wrong, divergences
    )


@torch.inference_mode()
def generated(model: Any, prompt: Tokens, new_tokens: int, eos: set[int] | frozenset[int]) -> Tokens:
    """Return transformers' response, without the end token."""
    ids = torch.tensor([prompt], device=model.device)
    output = model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        do_sample=False,
        max_new_tokens=new_tokens,
        eos_token_id=sorted(eos) or None,
        pad_token_id=min(eos, default=0),
    )
    tokens = tuple(output[0, len(prompt) :].tolist())
    return tokens[:-1] if tokens and tokens[-1] in eos else tokens


def first_difference(ours: Tokens, reference: Tokens) -> int:
    """Return the first position that differs; the end of the shorter one if it is a prefix of the other."""
    pairs = enumerate(zip(ours, reference, strict=False))
    return next((position for position, (a, b) in pairs if a != b), min(len(ours), len(reference)))


@torch.inference_mode()
def _margin(model: Any, tokens: Tokens) -> float:
    logits = model(torch.tensor([tokens], device=model.device)).logits[0, -1]
    first, second = logits.double().log_softmax(-1).topk(2).values.tolist()
    return float(first - second)


def table(label: str, found: Comparison) -> str:
    """Return the comparison as text, with every response that differs."""
    lines = [
        f"{label}: {found.prompts} prompts, {found.tokens} tokens; equal alone {found.alone}, "
        f"batched {found.batched}"
    ]
    for each in found.divergences:
        how = "batched" if each.batched else "alone"
        lines.append(f"prompt {each.prompt} {how}: token {each.position}, margin {each.margin:.1e}")
    return "\n".join(lines)


def hellaswag_contexts(checkpoint: Any, data_dir: Path | str | None, count: int) -> list[Tokens]:
    """Return the contexts of `count` documents, evenly spaced, in lm-eval's format."""
    benchmark = load_benchmark("hellaswag")
    found = documents(benchmark, data_dir=data_dir)
    found = found[:: max(1, len(found) // count)][:count]
    harness = LogLikelihoodBenchmark(benchmark, found)
    longest = int(checkpoint.model.config.max_position_embeddings)
    request_sets = harness.request_sets(Encoder(checkpoint.tokenizer), longest)
    return [request_set.score_requests[0].context for request_set in request_sets]


def main(argv: Sequence[str] | None = None) -> int:
    """Compare and print; return the exit code."""
    parser = Parser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoint")
    parser.add_argument("--data", help="frozen data (default: EVALSUITE_DATA or hub)")
    parser.add_argument("--prompts", type=int, default=100)
    parser.add_argument("--new-tokens", type=int, default=64)
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args(argv)
    checkpoint = load(options.checkpoint, options.device)
    prompts = hellaswag_contexts(checkpoint, options.data, options.prompts)
    found = compare(checkpoint, prompts, options.new_tokens)
    print(table(checkpoint.label, found))
    return int(not found.holds())


if __name__ == "__main__":
    from evalsuite.models import kernel_policy

    with kernel_policy("torch"):
        sys.exit(guarded("greedy_generation", main, resumable=False))
