"""Whether our greedy answers are those of transformers' own `generate`, token by token.

    python -m evalsuite.evaluator.agreement_greedy CHECKPOINT --data DIR --device cuda --prompts 100

Prompts are contexts of HellaSwag, evenly spaced over the data set. Each is answered by transformers at batch
size 1, by our engine alone, and by our engine together with all others; float32, torch backend, no TF32.
"""

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from evalsuite.foundation import progress
from evalsuite.models.engine.requests import GenerateRequest, Sampling
from evalsuite.models.engine.torch_engine import TorchEngine
from evalsuite.protocols.encode import Encoder
from evalsuite.protocols.loglikelihood import LogLikelihoodBenchmark
from evalsuite.tasks.benchmark import load_benchmark
from evalsuite.tasks.documents import documents

Tokens = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Divergence:
    """An answer that is not that of transformers."""

    prompt: int
    batched: bool
    place: int
    """First token that differs."""
    margin: float
    """Log-probability between the two most likely tokens there, in nats: how little rounding it takes."""


@dataclass(frozen=True, slots=True)
class Greedy:
    """How many of `prompts` answers are equal, the prompt alone and batched with all others."""

    prompts: int
    tokens: int
    alone: int
    batched: int
    divergences: list[Divergence] = field(default_factory=list)


def compare(checkpoint: Any, prompts: Sequence[Tokens], new_tokens: int, *, quiet: bool = False) -> Greedy:
    """Answer every prompt three times and compare.

    Args:
        checkpoint: model and tokenizer.
        prompts: token ids, each shorter than the model's positions by `new_tokens`.
        new_tokens: most tokens to write; an answer also ends at the model's end tokens.
        quiet: no progress bar.
    """
    engine = TorchEngine(checkpoint)
    asked = [GenerateRequest(prompt, Sampling(new_tokens)) for prompt in prompts]
    together = dict(engine.generate(asked))
    divergences: list[Divergence] = []
    written = 0
    with progress(total=len(prompts), what="greedy answers", unit="prompt", quiet=quiet) as bar:
        for number, prompt in enumerate(prompts):
            theirs = generated(checkpoint.model, prompt, new_tokens, engine.eos)
            written += len(theirs)
            ((_, alone),) = engine.generate([asked[number]])
            for batched, ours in ((False, alone.tokens), (True, together[number].tokens)):
                if ours != theirs:
                    place = first_difference(ours, theirs)
                    margin = _margin(checkpoint.model, prompt + theirs[:place])
                    divergences.append(Divergence(number, batched, place, margin))
            bar.update(1)
    wrong = sum(each.batched for each in divergences)
    return Greedy(
        len(prompts), written, len(prompts) - len(divergences) + wrong, len(prompts) - wrong, divergences
    )


@torch.inference_mode()
def generated(model: Any, prompt: Tokens, new_tokens: int, eos: set[int] | frozenset[int]) -> Tokens:
    """What transformers writes, without the end token."""
    ids = torch.tensor([prompt], device=model.device)
    written = model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        do_sample=False,
        max_new_tokens=new_tokens,
        eos_token_id=sorted(eos) or None,
        pad_token_id=min(eos, default=0),
    )
    tokens = tuple(written[0, len(prompt) :].tolist())
    return tokens[:-1] if tokens and tokens[-1] in eos else tokens


def first_difference(ours: Tokens, theirs: Tokens) -> int:
    """The first place where the two differ; the end of the shorter one if it begins the other."""
    pairs = enumerate(zip(ours, theirs, strict=False))
    return next((place for place, (a, b) in pairs if a != b), min(len(ours), len(theirs)))


@torch.inference_mode()
def _margin(model: Any, tokens: Tokens) -> float:
    logits = model(torch.tensor([tokens], device=model.device)).logits[0, -1]
    first, second = logits.double().log_softmax(-1).topk(2).values.tolist()
    return float(first - second)


def table(label: str, found: Greedy) -> str:
    """The comparison as text, with every answer that differs."""
    lines = [
        f"{label}: {found.prompts} prompts, {found.tokens} tokens; equal alone {found.alone}, "
        f"batched {found.batched}"
    ]
    for each in found.divergences:
        how = "batched" if each.batched else "alone"
        lines.append(f"prompt {each.prompt} {how}: token {each.place}, margin {each.margin:.1e}")
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> int:
    """Compare and print; 1 if an answer differs alone, or more than one in a hundred batched."""
    parser = argparse.ArgumentParser(
        prog="python -m evalsuite.evaluator.agreement_greedy", description=__doc__
    )
    parser.add_argument("checkpoint")
    parser.add_argument("--data", help="frozen data (default: EVALSUITE_DATA or hub)")
    parser.add_argument("--prompts", type=int, default=100)
    parser.add_argument("--new-tokens", type=int, default=64)
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args(argv)

    from evalsuite.models import set_backend
    from evalsuite.models.checkpoints import load_checkpoint

    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    set_backend("torch")
    checkpoint = load_checkpoint(options.checkpoint, dtype="float32", device=options.device)
    prompts = hellaswag(checkpoint, options.data, options.prompts)
    found = compare(checkpoint, prompts, options.new_tokens)
    print(table(checkpoint.label, found))
    return int(found.alone < found.prompts or found.batched < 0.99 * found.prompts)


def hellaswag(checkpoint: Any, data_dir: Path | str | None, count: int) -> list[Tokens]:
    """Contexts of `count` documents, evenly spaced, as lm-eval's task asks them."""
    benchmark = load_benchmark("hellaswag")
    found = documents(benchmark, data_dir=data_dir)
    found = found[:: max(1, len(found) // count)][:count]
    harness = LogLikelihoodBenchmark(benchmark, found)
    longest = int(checkpoint.model.config.max_position_embeddings)
    questions = harness.questions(Encoder(checkpoint.tokenizer), longest)
    return [question.scores[0].context for question in questions]


if __name__ == "__main__":
    sys.exit(main())
