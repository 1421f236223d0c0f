"""Training with a teacher store and without: tokens per second, bytes a token, and how far the loss differs.

    python -m tests.performance.teacher_store --teacher pocket --mixer gated_deltanet --k 64 32 128 256
    python -m tests.performance.teacher_store --teacher MODEL.gguf --text 'docs/**/*.md' --batch-size 1

Steps with a store of the first K and with the teacher alternate in one process, in CPU seconds. Losses
and their gradients w.r.t. the student's logits (L1 norm) are compared with those of the full KL, for each K,
after these steps. Exits with 1 if the median ratio is below `--min-ratio`.
"""

import argparse
import glob
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from evalsuite.distill import Recipe
from evalsuite.distill.data.loader import DataSources, StageDataLoader
from evalsuite.distill.objectives.forward import hidden_states
from evalsuite.distill.objectives.kl_and_cross_entropy import kd_per_token
from evalsuite.distill.objectives.top_tokens import top_tokens
from evalsuite.distill.recipe.config import LossConfig
from evalsuite.distill.training.builders import build_models
from evalsuite.distill.training.distributed import ProcessGroup
from evalsuite.distill.training.teacher_stores import make_stores, open_stores
from evalsuite.distill.training.train_step import StudentTrainState, TrainStep
from evalsuite.foundation.parser import Parser
from evalsuite.models.decoder.head import LanguageModelHead


def parse(arguments: list[str]) -> argparse.Namespace:
    parser = Parser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--teacher", default="pocket")
    parser.add_argument("--mixer", default="gated_deltanet")
    parser.add_argument("--text", help="glob pattern of text files; default: the pocket corpus")
    parser.add_argument("--k", type=int, nargs="+", default=[64, 32, 128, 256])
    parser.add_argument("--seq-len", type=int, default=256)
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--steps", type=int, default=30, help="steps of training, of which most are timed")
    parser.add_argument("--min-ratio", type=float, default=0.0)
    return parser.parse_args(arguments)


def recipe_of(options: argparse.Namespace, store: Path, k: int) -> Recipe:
    source: dict[str, Any] = {"kind": "pocket", "max_haystack_tokens": options.seq_len}
    if options.text is not None:
        file = store.parent / "text.jsonl"
        texts = (Path(each).read_text() for each in sorted(glob.glob(options.text, recursive=True)))
        file.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
        source = {"kind": "local", "files": [str(file)]}
    batch = options.batch_size * options.seq_len
    stage = {
        "name": "kd", "objective": "kd", "data": "source", "tokens": options.steps * batch, "lr": 1e-3,
        "seq_len": options.seq_len, "batch_size": options.batch_size, "teacher_store": str(store),
        "loss": {"top_k": k, "tail": "bucket"},
    }  # fmt: skip
    student = {"mixers": [options.mixer]}
    value = {"name": "store", "teacher": options.teacher, "student": student, "data": {"source": source}}
    return Recipe.model_validate({**value, "stages": [stage]})


class Steps:
    """Training steps of a student, with what reads their data."""

    def __init__(self, recipe: Recipe, loss: LossConfig, *, stored: bool) -> None:
        group = ProcessGroup("cpu")
        models = build_models(recipe, group.device)
        self.teacher, (self.student,) = models.teacher, models.students.values()
        stage: Any = recipe.stages[0]
        stores = open_stores(recipe, models.tokenizer) if stored else {}
        targets = None
        if stored:
            k = stage.stored_k
            targets = lambda number, sequence: stores["kd"].targets(number, sequence, k)  # noqa: E731
        self.stage = stage.model_copy(update={} if stored else {"teacher_store": None, "loss": loss})
        state = StudentTrainState("student", self.student)
        state.begin_stage(self.stage)
        self._step = TrainStep(self.teacher, [state], self.stage, group)
        sources = DataSources(recipe.data, models.tokenizer, seed=recipe.seed)
        self._loader, self._number = StageDataLoader(sources, self.stage, targets=targets), 0

    def run(self) -> float:
        """CPU seconds of one step, which other processes on the machine do not change."""
        start = time.process_time()
        self.batch = next(self._loader)
        self._step(self.batch, self._number)
        self._number += 1
        return time.process_time() - start


def distances(trained: Steps, ks: list[int]) -> None:
    """Print how far the loss of each K is from the full KL, on the last batch of a trained student."""
    batch = trained.batch.micro_batches[0]
    with torch.no_grad():
        assert trained.teacher is not None
        states = [batch.select(hidden_states(model, batch)) for model in (trained.student, trained.teacher)]
        heads = [LanguageModelHead.of(model) for model in (trained.student, trained.teacher)]
        student, teacher = (head.logits(each)[:1024] for head, each in zip(heads, states, strict=True))
    student = student.requires_grad_()

    def gradient(config: LossConfig) -> tuple[torch.Tensor, torch.Tensor]:
        kl = kd_per_token(student, teacher, config)
        return kl.mean(), torch.autograd.grad(kl.sum(), student)[0]

    full, exact = gradient(LossConfig())
    size = exact.abs().sum(-1).mean()
    for k in ks:
        kl, found = gradient(LossConfig(top_k=k, tail="bucket"))
        tail = top_tokens(teacher, k).log_probs[:, -1].exp().mean()
        apart = (found - exact).abs().sum(-1).mean()
        cosine = torch.nn.functional.cosine_similarity(found.flatten(), exact.flatten(), dim=0)
        print(
            f"K {k}: KL {kl:.4f} of {full:.4f} ({kl / full - 1:+.2%}), gradients {apart / size:.2%} apart "
            f"(bound {2 * tail / size:.2%}), cosine {cosine:.5f}, mass outside {tail:.3%}"
        )


def main(arguments: list[str]) -> int:
    options = parse(arguments)
    k = options.k[0]
    with tempfile.TemporaryDirectory() as folder:
        recipe = recipe_of(options, Path(folder) / "store", k)
        for made in make_stores(recipe, quiet=True):
            print(made)
        live = Steps(recipe, LossConfig(), stored=False)
        stored = Steps(recipe, LossConfig(), stored=True)
        times = [(live.run(), stored.run()) for _ in range(options.steps)][2:]
    tokens = recipe.stages[0].tokens_per_step
    rates = [tokens / statistics.median(each) for each in zip(*times, strict=True)]
    low, ratio, high = statistics.quantiles((a / b for a, b in times), n=4)
    print(
        f"K {k}: {rates[0]:,.0f} tokens per CPU second with the teacher, {rates[1]:,.0f} with the store, "
        f"ratio {ratio:.2f} (quartiles {low:.2f} to {high:.2f}, {len(times)} steps)"
    )
    distances(live, options.k)
    return int(ratio < options.min_ratio)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
