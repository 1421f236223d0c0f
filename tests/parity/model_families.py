"""Families of causal language models against transformers' own forward pass, in both in-process engines.

    python tests/parity/model_families.py [FAMILY …] [--device cuda] [--write docs/reference/families.md]

A tiny random checkpoint of each family answers 50 short prompts: log-likelihoods of two continuations each,
and greedily, in a batch and one at a time. The reference reads each text whole and alone, in float32; for
greedy responses it reads the text again for every token.

Exit codes: 0 every engine that accepts a family gives the reference's numbers and engine transformers accepts
all, 1 not, 64 or more an error.
"""

import argparse
import random
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import torch
from transformers import PreTrainedModel

from evalsuite.cli.exit_codes import guarded
from evalsuite.foundation import ConfigError
from evalsuite.foundation.parser import Parser
from evalsuite.models.checkpoints.load import Checkpoint
from evalsuite.models.inference import GenerateRequest, SamplingParams, ScoreRequest
from evalsuite.models.inference.in_process import InProcessEngine
from evalsuite.models.inference.proof import UnsupportedModelError
from evalsuite.models.inference.torch.engine import TorchEngine
from evalsuite.models.inference.transformers.engine import TransformersEngine
from tests.parity.tiny_families import EOS, FAMILIES, VOCABULARY, Family, make_checkpoint

MAX_DIFFERENCE = 1e-4
"""Largest difference of a log-likelihood that holds, in nats."""
NEW_TOKENS = 6
ENGINES: tuple[type[InProcessEngine], ...] = (TorchEngine, TransformersEngine)


def make_requests(count: int) -> list[ScoreRequest]:
    """Random contexts of 1 to 60 tokens with two continuations."""
    draw = random.Random(0)

    def ids(low: int, high: int) -> tuple[int, ...]:
        return tuple(draw.randrange(3, VOCABULARY) for _ in range(draw.randint(low, high)))

    return [ScoreRequest(ids(1, 60), (ids(1, 1), ids(1, 6))) for _ in range(count)]


@dataclass(frozen=True, slots=True)
class Reference:
    """Log-likelihoods and greedy responses of the model itself, each text read whole and alone."""

    logprobs: list[list[float]]
    responses: list[tuple[int, ...]]
    """Without the end-of-sequence token."""
    choices: list[list[torch.Tensor]]
    """Per response and step, log-probabilities [V]."""

    def changed(self, index: int, tokens: tuple[int, ...]) -> bool:
        """Whether another response differs, but for a tie: two tokens within `MAX_DIFFERENCE`."""
        expected = (*self.responses[index], EOS)
        pairs = zip(expected, (*tokens, EOS), self.choices[index], strict=False)
        for mine, other, logprobs in pairs:
            if mine != other:
                return abs(float(logprobs[mine] - logprobs[other])) > MAX_DIFFERENCE
        return tokens != self.responses[index]


@torch.inference_mode()
def make_reference(model: PreTrainedModel, requests: Sequence[ScoreRequest]) -> Reference:
    """Run the model's own forward pass on one text at a time."""

    def logprobs(tokens: Sequence[int]) -> torch.Tensor:
        logits = model(input_ids=torch.tensor([tokens], device=model.device), use_cache=False).logits[0]
        return logits.float().log_softmax(-1).cpu()

    sums: list[list[float]] = []
    responses: list[tuple[int, ...]] = []
    choices: list[list[torch.Tensor]] = []
    for request in requests:
        sums.append([])
        for continuation in request.continuations:
            found = logprobs(request.context + continuation[:-1])[-len(continuation) :]
            sums[-1].append(float(found.gather(1, torch.tensor(continuation)[:, None]).double().sum()))
        tokens: tuple[int, ...] = ()
        choices.append([])
        while len(tokens) < NEW_TOKENS:
            choices[-1].append(logprobs(request.context + tokens)[-1])
            token = int(choices[-1][-1].argmax())
            if token == EOS:
                break
            tokens += (token,)
        responses.append(tokens)
    return Reference(sums, responses, choices)


@dataclass(frozen=True, slots=True)
class Result:
    """One family in one engine."""

    refusal: str | None = None
    """Why the engine refuses the model, or None."""
    difference: float = 0.0
    """Largest difference of a log-likelihood, in nats."""
    changed_single: int = 0
    changed_batched: int = 0
    """Greedy responses that differ, one prompt at a time and all together."""
    reading: str = ""
    """How engine transformers reads texts."""

    def holds(self) -> bool:
        """Whether all numbers are the reference's."""
        return self.difference <= MAX_DIFFERENCE and not self.changed_single and not self.changed_batched


def compare(
    kind: type[InProcessEngine],
    checkpoint: Checkpoint,
    requests: Sequence[ScoreRequest],
    reference: Reference,
) -> Result:
    """Run an engine on the requests, and compare."""
    try:
        engine = kind(checkpoint)
    except UnsupportedModelError as error:
        return Result(refusal=str(error))
    scored = dict(engine.score(requests))
    difference = max(
        abs(found - expected)
        for index, sums in enumerate(reference.logprobs)
        for found, expected in zip(scored[index].logprobs, sums, strict=True)
    )
    prompts = [GenerateRequest(request.context, SamplingParams(NEW_TOKENS)) for request in requests]
    batched = dict(engine.generate(prompts))
    single = {index: next(engine.generate([prompt]))[1] for index, prompt in enumerate(prompts)}
    return Result(
        difference=difference,
        changed_single=sum(reference.changed(index, response.tokens) for index, response in single.items()),
        changed_batched=sum(reference.changed(index, response.tokens) for index, response in batched.items()),
        reading=_reading(engine),
    )


def _reading(engine: InProcessEngine) -> str:
    if not isinstance(engine, TransformersEngine):
        return ""
    generation = {
        "batches": "in batches", "single texts": "one text at a time", "never": "by reading texts again"
    }  # fmt: skip
    return f"{engine.runner.batching}; generates {generation[engine.runner.caching]}"


def run(family: Family, count: int = 50, device: str = "cpu") -> dict[str, Result]:
    """Results by name of the engine."""
    checkpoint, requests = make_checkpoint(family), make_requests(count)
    checkpoint.model.to(device)
    reference = make_reference(checkpoint.model, requests)
    return {kind.name: compare(kind, checkpoint, requests, reference) for kind in ENGINES}


def row(family: Family, results: Mapping[str, Result]) -> str:
    """Row of the table."""
    cells = [family.title, f"`{family.model_type}`"]
    torch_result, plain = results["torch"], results["transformers"]
    cells.append("torch" if torch_result.refusal is None else "transformers")
    cells.append("–" if torch_result.refusal is None else _short(torch_result.refusal))
    cells.append(plain.reading if plain.refusal is None else f"refused: {_short(plain.refusal)}")
    return f"| {' | '.join(cells)} |"


def _short(refusal: str) -> str:
    """A refusal without the class, numbers that depend on the machine, and the error of the model's code."""
    text = re.sub(r", by up to \S+$", "", refusal.split(": ", 1)[1])
    return re.sub(r" \(\w+: .*\)$", "", text)


TABLE = """\
| family | `model_type` | default engine | why not engine torch | in engine transformers: batches |
|---|---|---|---|---|"""


def update_table(document: str, rows: Sequence[str]) -> str:
    """The document with these rows in its table."""
    head, rest = document.split(TABLE, 1)
    after = rest.lstrip("\n").split("\n\n", 1)[1]
    return "\n".join([head + TABLE, *rows, "", after])


def main() -> int:
    """Run the study and print a line per family."""
    parser = Parser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("families", nargs="*", metavar="FAMILY", help="default: all")
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--write", type=Path, metavar="FILE", help="update the table in this document")
    arguments = parser.parse_args()
    if unknown := [name for name in arguments.families if name not in FAMILIES]:
        raise ConfigError(f"unknown family {unknown[0]}; known: {', '.join(FAMILIES)}")
    if arguments.write and arguments.families:
        raise ConfigError("--write needs all families; name none")
    torch.set_num_threads(1)
    rows, holds = [], True
    for name, results in _results(arguments.families or list(FAMILIES), arguments.device):
        rows.append(row(FAMILIES[name], results))
        for kind, result in results.items():
            good = result.holds() and (kind == "torch" or result.refusal is None)
            holds &= good
            print(f"{'ok  ' if good else 'FAIL'} {name:18} {kind:14} {_line(result)}", flush=True)
    if arguments.write:
        arguments.write.write_text(update_table(arguments.write.read_text(), rows))
    return 0 if holds else 1


def _results(names: Sequence[str], device: str) -> Iterator[tuple[str, dict[str, Result]]]:
    for name in names:
        yield name, run(FAMILIES[name], device=device)


def _line(result: Result) -> str:
    if result.refusal is not None:
        return f"refused: {result.refusal}"
    changed = f"{result.changed_single} single, {result.changed_batched} batched responses changed"
    return f"{result.difference:.1e} nats, {changed} {result.reading}"


if __name__ == "__main__":
    sys.exit(guarded("model_families", main, resumable=False))
