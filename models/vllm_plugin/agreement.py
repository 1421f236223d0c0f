"""Does vLLM answer as the in-process engine does? The same prompts to both, for every kind of student.

    python -m evalsuite.models.vllm_plugin.agreement --out reports/published/vllm

needs EVALSUITE_VLLM_PYTHON. Rows are written as they are found; run again, the command goes
on where it was. With `--teacher FOLDER --mixer gated_deltanet` it takes a hybrid of another teacher.

In bfloat16 (`--dtype bfloat16`) two right engines part at every near-tie, so both are held against the
in-process engine in float32 on the CPU, as the doctor's precision check does.
"""

import argparse
import gc
import json
import math
import platform
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from datetime import date
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import PreTrainedModel

from evalsuite.foundation import append_jsonl, progress, read_jsonl, write_text
from evalsuite.models.checkpoints import describe_checkpoint, load_checkpoint
from evalsuite.models.engine.requests import GenerateAnswer, GenerateRequest, ScoreAnswer, ScoreRequest
from evalsuite.models.engine.torch_engine import TorchEngine
from evalsuite.models.engine.vllm_engine import VllmEngine
from evalsuite.models.engine.vllm_process import VllmProcess, find_python
from evalsuite.models.vllm_plugin.examples import (
    LONGEST,
    WRITTEN,
    Student,
    every_student,
    hybrid,
    prompts,
    questions,
    save,
)

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

ROOM = {"kv_cache_memory_bytes": 1 << 30}
"""Cache in the other regimes; vLLM would take half of the machine."""


NEAR = 1e-3
"""Two log-probabilities that are closer than this may change places."""
SLACK = 2.0
"""In a shorter precision vLLM may lie this many times as far from float32 as the in-process engine does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """What one student gave in one regime."""

    student: str
    regime: str
    dtype: str
    prompts: int
    equal: int
    gaps: tuple[float, ...]
    """Log-probability between the two likeliest tokens at each first divergence."""
    questions: int
    deviation: float
    """Largest difference of a continuation's log-likelihood, nats."""
    written: int
    distinct: int
    """How many different tokens were written: a model that repeats one proves little."""
    cached: int
    """Prompt tokens that came out of vLLM's prefix cache."""
    versions: str
    rounding: "Rounding | None" = None
    """What the dtype alone changes, if it is not float32."""

    @property
    def holds(self) -> bool:
        """In float32: 99 in 100 answers equal, every divergence a near-tie, log-likelihoods as close. Else:
        vLLM is as close to float32 as the in-process engine, log-likelihoods but for `SLACK`, and answers but
        for three standard deviations of the difference between two counts of divergences."""
        if self.rounding is not None:
            ours, theirs = (
                self.prompts - equal for equal in (self.rounding.our_equal, self.rounding.vllm_equal)
            )
            as_many = theirs - ours <= 3 * math.sqrt(theirs + ours)
            return as_many and self.rounding.vllm_deviation <= SLACK * self.rounding.our_deviation
        near = all(gap < NEAR for gap in self.gaps) and self.deviation < NEAR
        return near and self.equal >= 0.99 * self.prompts


@dataclass(frozen=True, slots=True, kw_only=True)
class Rounding:
    """How far both engines in a shorter precision are from the in-process engine in float32 on the CPU.

    Args:
        our_equal, vllm_equal: greedy answers that are float32's, of the in-process engine and of vLLM.
        our_deviation, vllm_deviation: largest difference of a continuation's log-likelihood, nats.
    """

    our_equal: int
    our_deviation: float
    vllm_equal: int
    vllm_deviation: float


@dataclass(frozen=True, slots=True)
class Answers:
    """What one engine says to all prompts and questions."""

    written: dict[int, GenerateAnswer]
    scores: dict[int, ScoreAnswer]

    def parted(self, other: "Answers") -> list[int]:
        """The prompts that are answered otherwise."""
        return [i for i, answer in self.written.items() if other.written[i].tokens != answer.tokens]

    def deviation(self, other: "Answers") -> float:
        """Largest difference of a continuation's log-likelihood."""
        return max(
            abs(mine - theirs)
            for i, answer in self.scores.items()
            for mine, theirs in zip(answer.logprobs, other.scores[i].logprobs, strict=True)
        )


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
        )

    @torch.no_grad()
    def gap(self, prompt: tuple[int, ...], ours: tuple[int, ...], theirs: tuple[int, ...]) -> float:
        """How far apart the two likeliest tokens are, by our model in float32, where two answers part."""
        common = next(
            (n for n, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b),
            min(len(ours), len(theirs)),
        )
        tokens = torch.tensor([prompt + ours[:common]], device=self.model.device)
        top = self.model(tokens).logits[0, -1].double().log_softmax(-1).topk(2).values
        return float(top[0] - top[1])


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
) -> Iterator[Row]:
    """Compare students one after another in one running vLLM.

    Args:
        build: saves a student under a folder and returns the checkpoint's folder.
        count: how many prompts; a fifth as many questions are scored.
        arguments: of vLLM, in every regime.
        known: pairs of student and regime that are left out.
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
                    arguments={**ROOM, **_most(regime), **REGIMES[regime], **(arguments or {})},
                    process=process,
                )
                for regime in wanted
            }
            with ThreadPoolExecutor(1) as pool:
                # vLLM loads while the in-process engine answers.
                loaded = pool.submit(lambda first: first.versions, engines[wanted[0]])
                reference = Reference(
                    folder,
                    prompts(count, info.config.vocab_size),
                    questions(count // 5, info.config.vocab_size),
                    dtype,
                )
                loaded.result()
            for regime, engine in engines.items():
                yield reference.compare(student.name, regime, engine)
            del reference, engines
            gc.collect()


def _most(regime: str) -> dict[str, int]:
    return {"max_num_seqs": AT_ONCE.get(regime, 256)} if torch.cuda.is_available() else {}


def read(path: Path) -> list[Row]:
    """The rows of an earlier run."""
    rows = []
    for row in read_jsonl(path):
        rounding = row.get("rounding")
        given = {**row, "gaps": tuple(row["gaps"]), "rounding": rounding and Rounding(**rounding)}
        rows.append(Row(**given))
    return rows


def table(rows: Sequence[Row]) -> str:
    """The rows as a page."""
    regimes = "; ".join(f"{name} {json.dumps({**ROOM, **given})}" for name, given in REGIMES.items())
    lines = [
        "# Students in vLLM against the in-process engine",
        "",
        f"{_processor()}, {date.today():%d %B %Y}. Prompts of 1 to {LONGEST:,} random tokens, asked "
        f"together; up to {WRITTEN} tokens written greedily. A first divergence is a near-tie if the two "
        f"likeliest tokens are less than {NEAR:g} apart. Regimes: {regimes}.",
        "",
        *sorted({f"Versions: {row.versions}." for row in rows}),
        "",
        "| student | regime | dtype | equal | largest gap at a divergence | log-likelihood off by | "
        "distinct tokens of all written | from the prefix cache |",
        "|---|---|---|---:|---:|---:|---:|---:|",
    ]
    rounded = any(row.rounding for row in rows)
    if rounded:
        lines[-2] += " equal to float32: in process, vLLM | off from float32: in process, vLLM |"
        lines[-1] += "---:|---:|"
    for row in rows:
        cells: list[str | int] = [
            row.student,
            row.regime,
            row.dtype,
            f"{row.equal} of {row.prompts}",
            f"{max(row.gaps):.1e}" if row.gaps else "–",
            f"{row.deviation:.1e}",
            f"{row.distinct} of {row.written}",
            row.cached or "–",
        ]
        if rounded:
            near = row.rounding
            cells += [
                f"{near.our_equal}, {near.vllm_equal}" if near else "–",
                f"{near.our_deviation:.1e}, {near.vllm_deviation:.1e}" if near else "–",
            ]
        lines.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join(lines) + "\n"


def _processor() -> str:
    if torch.cuda.is_available():
        return torch.cuda.get_device_name()
    try:
        models = [line for line in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in line]
    except OSError:
        models = []
    name = models[0].split(":")[1].strip() if models else platform.processor() or platform.machine()
    return f"{len(models) or 'some'} cores of {name}"


def main() -> int:
    """Measure what is not measured yet and write the table; 1 if a row does not hold."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True, help="folder for agreement.jsonl and agreement.md")
    parser.add_argument("--teacher", default="pocket", help="default: %(default)s")
    parser.add_argument("--mixer", nargs="+", help="only hybrids of these mixers")
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
        teacher = load_checkpoint(chosen.teacher, dtype=chosen.dtype)
        process = starting.result()
    layers = teacher.model.config.num_hidden_layers
    students = [hybrid(name, layers) for name in chosen.mixer or ()] or every_student(layers)
    part, parts = map(int, chosen.part.split("/"))
    share = -(-len(students) // parts)
    students = students[(part - 1) * share : part * share]
    if chosen.teacher != "pocket":
        students = [Student(f"{teacher.label}: {student.name}", student.mixers) for student in students]
    try:
        with progress(total=len(students) * len(chosen.regime), what="agreement") as bar:
            for row in measure(
                students,
                lambda student, place: save(student, teacher.model, teacher.tokenizer, place),
                process,
                regimes=chosen.regime,
                count=chosen.prompts,
                dtype=chosen.dtype,
                arguments=chosen.arguments,
                known=frozenset((row.student, row.regime) for row in rows if row.dtype == chosen.dtype),
            ):
                append_jsonl(found, [asdict(row)])
                rows.append(row)
                bar.update(1)
    finally:
        process.close()
    write_text(chosen.out / "agreement.md", table(rows))
    print(f"wrote {chosen.out / 'agreement.md'}")
    broken = [row for row in rows if not row.holds]
    for row in broken:
        print(
            f"does not hold: {row.student}, {row.regime}: {row.equal} of {row.prompts}, {row.deviation:.1e}"
        )
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
