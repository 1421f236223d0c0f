"""Does vLLM answer as the in-process engine does? The same prompts to both, for every kind of student.

    python -m evalsuite.models.vllm_plugin.agreement --out reports/published/vllm

needs EVALSUITE_VLLM_PYTHON. Rows are written as they are found; run again, the command goes
on where it was. With `--teacher FOLDER --mixer gated_deltanet` it takes a hybrid of another teacher, with
`--student FOLDER` a student that was trained, which `--text FILE` lets read prose.

In bfloat16 (`--dtype bfloat16`) two right engines part at every near-tie, so both are held against the
in-process engine in float32 on the CPU, as the doctor's precision check does.
"""

import argparse
import gc
import json
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import PreTrainedModel

from evalsuite.foundation import append_jsonl, progress, write_text
from evalsuite.models import MIXERS
from evalsuite.models.checkpoints import describe_checkpoint, load_checkpoint
from evalsuite.models.engine.requests import GenerateAnswer, GenerateRequest, ScoreAnswer, ScoreRequest
from evalsuite.models.engine.torch_engine import TorchEngine
from evalsuite.models.engine.vllm_engine import VllmEngine
from evalsuite.models.engine.vllm_process import VllmProcess, find_python
from evalsuite.models.vllm_plugin.examples import (
    LONGEST,
    WRITTEN,
    Source,
    Student,
    chosen_students,
    noise,
    prompts,
    prose,
    questions,
    save,
)
from evalsuite.models.vllm_plugin.rows import Rounding, Row, read, table

MAX_LENGTH = LONGEST + WRITTEN + 8

REGIMES: dict[str, dict[str, Any]] = {
    "all at once": {},
    "chunks of 64": {"max_num_batched_tokens": 64, "max_num_seqs": 32},
    "prefix cache": {"enable_prefix_caching": True},
    "little cache": {"num_gpu_blocks_override": 40},
}
"""Ways to serve, as arguments of vLLM. In 40 blocks a handful of sequences fit; the others wait for slots."""

AT_ONCE = {"little cache": 32}
"""Most sequences that run together on a GPU, else 256: CUDA graphs want a block of state for each."""

RECURRENT = frozenset(MIXERS) - {"softmax", "sliding_window"}

WINDOWS_ONLY = 80
"""Blocks in the little cache for students of nothing but sliding windows. vLLM makes those of 16 tokens (0.32
on a CPU: of 32) whatever `block_size` says, and starts only if the longest prompt's 65 of them are there."""

ROOM = {"kv_cache_memory_bytes": 1 << 30}
"""Cache in the other regimes; vLLM would take half of the machine."""


@dataclass(frozen=True, slots=True)
class Answers:
    """What one engine says to all prompts and questions."""

    written: dict[int, GenerateAnswer]
    scores: dict[int, ScoreAnswer]

    def parted(self, other: "Answers") -> list[int]:
        """The prompts that are answered otherwise."""
        return [i for i, answer in self.written.items() if other.written[i].tokens != answer.tokens]

    def places(self, other: "Answers") -> int:
        """How many pairs of tokens there are with which answers part."""
        pairs = ((self.written[i].tokens, other.written[i].tokens) for i in self.parted(other))
        return len({(a[n : n + 1], b[n : n + 1]) for a, b in pairs for n in [_common(a, b)]})

    def deviation(self, other: "Answers") -> float:
        """Largest difference of a continuation's log-likelihood."""
        return max(
            abs(mine - theirs)
            for i, answer in self.scores.items()
            for mine, theirs in zip(answer.logprobs, other.scores[i].logprobs, strict=True)
        )


def _common(a: Sequence[int], b: Sequence[int]) -> int:
    """How many tokens two answers begin with alike."""
    return next((n for n, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


class Reference:
    """What the in-process engine answers."""

    def __init__(
        self, folder: Path, asked: Sequence[GenerateRequest], scored: Sequence[ScoreRequest], dtype: str
    ) -> None:
        self.asked, self.scored, self.dtype = asked, scored, dtype
        model, self.ours = self._ask(folder, dtype, "cuda" if torch.cuda.is_available() else "cpu")
        self.exact = None
        if dtype != "float32":
            model, self.exact = self._ask(folder, "float32", "cpu")
        self.model = model
        self._gaps: dict[tuple[int, ...], float] = {}

    def _ask(self, folder: Path, dtype: str, device: str) -> tuple[PreTrainedModel, Answers]:
        checkpoint = load_checkpoint(folder, dtype=dtype, device=device)
        engine = TorchEngine(checkpoint, max_length=MAX_LENGTH - 1)
        answers = Answers(dict(engine.generate(self.asked)), dict(engine.score(self.scored)))
        return checkpoint.model, answers

    def compare(self, student: str, regime: str, vllm: VllmEngine) -> Row:
        """Ask vLLM the same. With a prefix cache everything is asked twice, and the second time counts."""
        written = dict(vllm.generate(self.asked))
        if vllm.arguments.get("enable_prefix_caching"):
            written = dict(vllm.generate(self.asked))
        theirs = Answers(written, dict(vllm.score(self.scored)))
        parted = self.ours.parted(theirs)
        tokens = [token for answer in self.ours.written.values() for token in answer.tokens]
        versions = {
            **vllm.versions,
            "our torch": torch.__version__,
            "our transformers": transformers.__version__,
        }
        rounding = None
        if self.exact is not None:
            rounding = Rounding(
                our_equal=len(self.asked) - len(self.exact.parted(self.ours)),
                our_deviation=self.exact.deviation(self.ours),
                vllm_equal=len(self.asked) - len(self.exact.parted(theirs)),
                vllm_deviation=self.exact.deviation(theirs),
                our_places=self.exact.places(self.ours),
                vllm_places=self.exact.places(theirs),
            )
        return Row(
            student=student,
            regime=regime,
            dtype=self.dtype,
            prompts=len(self.asked),
            equal=len(self.asked) - len(parted),
            gaps=tuple(
                self.gap(self.asked[i].prompt, self.ours.written[i].tokens, written[i].tokens) for i in parted
            ),
            questions=len(self.scored),
            deviation=self.ours.deviation(theirs),
            written=len(tokens),
            distinct=len(set(tokens)),
            cached=vllm.cached_tokens,
            versions=", ".join(f"{name} {version}" for name, version in versions.items()),
            rounding=rounding,
            measured=f"{datetime.now(UTC):%Y-%m-%dT%H:%MZ}",
        )

    @torch.no_grad()
    def gap(self, prompt: tuple[int, ...], ours: tuple[int, ...], theirs: tuple[int, ...]) -> float:
        """How far apart the two likeliest tokens are, by our model in float32, where two answers part."""
        text = prompt + ours[: _common(ours, theirs)]
        if text not in self._gaps:
            tokens = torch.tensor([text], device=self.model.device)
            top = self.model(tokens).logits[0, -1].double().log_softmax(-1).topk(2).values
            self._gaps[text] = float(top[0] - top[1])
        return self._gaps[text]


def measure(
    students: Sequence[Student],
    build: Callable[[Student, Path], Path],
    process: VllmProcess,
    *,
    regimes: Sequence[str],
    count: int,
    dtype: str = "float32",
    arguments: dict[str, Any] | None = None,
    known: frozenset[tuple[str, str]] = frozenset(),
    source: Source | None = None,
) -> Iterator[Row]:
    """Compare students one after another in one running vLLM.

    Args:
        build: saves a student under a folder and returns the checkpoint's folder.
        count: how many prompts; a fifth as many questions are scored.
        arguments: of vLLM, in every regime.
        known: pairs of student and regime that are left out.
        source: where prompts and questions come from; None for random tokens.
    """
    for student in students:
        wanted = [regime for regime in regimes if (student.name, regime) not in known]
        if not wanted:
            continue
        with tempfile.TemporaryDirectory() as place:
            folder = build(student, Path(place))
            info = describe_checkpoint(folder)
            engines = {
                regime: VllmEngine(
                    info,
                    dtype=dtype,
                    max_length=MAX_LENGTH,
                    arguments={
                        **served(regime, student, gpu=torch.cuda.is_available()),
                        **(arguments or {}),
                    },
                    process=process,
                )
                for regime in wanted
            }
            with ThreadPoolExecutor(1) as pool:
                # vLLM loads while the in-process engine answers.
                loaded = pool.submit(lambda first: first.versions, engines[wanted[0]])
                reference = Reference(
                    folder,
                    prompts(count, source or noise(info.config.vocab_size)),
                    questions(max(1, count // 5), source or noise(info.config.vocab_size)),
                    dtype,
                )
                loaded.result()
            for regime, engine in engines.items():
                yield reference.compare(student.name, regime, engine)
            del reference, engines
            gc.collect()


def served(regime: str, student: Student, *, gpu: bool) -> dict[str, Any]:
    """What vLLM is told about a student in a regime."""
    told: dict[str, Any] = dict(ROOM)
    if gpu:
        told["max_num_seqs"] = AT_ONCE.get(regime, 256)
        if not set(student.mixers) & RECURRENT:
            # Without a state that sets their size, blocks are of 16 tokens there, and no prompt fits into 40.
            told["block_size"] = 128
    told |= REGIMES[regime]
    if regime == "little cache" and set(student.mixers) == {"sliding_window"}:
        told["num_gpu_blocks_override"] = WINDOWS_ONLY
    return told


def main() -> int:
    """Measure what is not measured yet and write the table; 1 if a row does not hold."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True, help="folder for agreement.jsonl and agreement.md")
    parser.add_argument("--teacher", default="pocket", help="default: %(default)s")
    mixers: dict[str, Any] = {"nargs": "+", "choices": MIXERS, "metavar": "MIXER", "default": []}
    parser.add_argument("--mixer", **mixers, help="only hybrids of these mixers")
    parser.add_argument("--pure", **mixers, help="only students of one of these mixers in every layer")
    parser.add_argument("--student", help="a student's folder; nothing is built")
    parser.add_argument("--name", help="what it is called in the table; default: its label")
    parser.add_argument("--text", type=Path, help="prose to cut prompts from; default: random tokens")
    parser.add_argument(
        "--part", default="1/1", metavar="K/N", help="only the Kth of N parts of the students"
    )
    parser.add_argument("--regime", nargs="+", choices=REGIMES, default=list(REGIMES))
    parser.add_argument("--prompts", type=int, default=200, help="default: %(default)s")
    parser.add_argument("--dtype", default="float32", help="default: %(default)s")
    parser.add_argument("--arguments", type=json.loads, default={}, help="more of vLLM's, as JSON")
    chosen = parser.parse_args()
    found = chosen.out / "agreement.jsonl"
    rows = read(found) if found.exists() else []
    with ThreadPoolExecutor(1) as pool:
        starting = pool.submit(VllmProcess, find_python(), students=True)
        teacher = load_checkpoint(chosen.student or chosen.teacher, dtype=chosen.dtype)
        process = starting.result()
    layers = teacher.model.config.num_hidden_layers
    students = chosen_students(layers, alone=chosen.pure, hybrids=chosen.mixer)
    part, parts = map(int, chosen.part.split("/"))
    share = -(-len(students) // parts)
    students = students[(part - 1) * share : part * share]
    if chosen.student:
        students = [Student(chosen.name or teacher.label, tuple(teacher.model.config.mixers))]
    elif chosen.teacher != "pocket":
        students = [Student(f"{teacher.label}: {student.name}", student.mixers) for student in students]
    source = prose(teacher.tokenizer(chosen.text.read_text()).input_ids) if chosen.text else None

    def build(student: Student, place: Path) -> Path:
        folder = Path(chosen.student) if chosen.student else None
        return folder or save(student, teacher.model, teacher.tokenizer, place)

    try:
        with progress(total=len(students) * len(chosen.regime), what="agreement") as bar:
            for row in measure(
                students,
                build,
                process,
                regimes=chosen.regime,
                count=chosen.prompts,
                dtype=chosen.dtype,
                arguments=chosen.arguments,
                known=frozenset((row.student, row.regime) for row in rows if row.dtype == chosen.dtype),
                source=source,
            ):
                append_jsonl(found, [asdict(row)])
                rows.append(row)
                bar.update(1)
    finally:
        process.close()
    write_text(
        chosen.out / "agreement.md", table(rows, {name: {**ROOM, **given} for name, given in REGIMES.items()})
    )
    print(f"wrote {chosen.out / 'agreement.md'}")
    broken = [row for row in rows if not row.holds]
    for row in broken:
        print(
            f"does not hold: {row.student}, {row.regime}: {row.equal} of {row.prompts}, {row.deviation:.1e}"
        )
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
