"""Parity of vLLM with the in-process engine: the same requests to both, for all kinds of students.

    python -m tests.parity.vllm.agreement --out FOLDER

needs EVALSUITE_VLLM_PYTHON. Rows are appended as they are measured; repeat the command to measure the
missing ones. `--teacher FOLDER --mixer gated_deltanet` builds a hybrid of another teacher; `--student FOLDER`
compares a trained student, with prompts from a text if `--text FILE` is given.

In bfloat16 (`--dtype bfloat16`) two correct engines diverge at every near-tie, so both are compared with the
in-process engine in float32 on the CPU.

Exit codes: 0 all rows hold, 1 one does not, 64 or more an error.
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

from evalsuite.cli.exit_codes import guarded
from evalsuite.foundation import append_jsonl, progress, write_text
from evalsuite.foundation.parser import Parser
from evalsuite.models import MIXERS
from evalsuite.models.checkpoints.load import describe_checkpoint, load_checkpoint
from evalsuite.models.inference.requests import GenerateRequest, GenerateResponse, ScoreRequest, ScoreResponse
from evalsuite.models.inference.torch.engine import TorchEngine
from evalsuite.models.inference.vllm.engine import VllmEngine
from evalsuite.models.inference.vllm.process import VllmProcess, find_python
from tests.parity.vllm.agreement_cases import (
    MAX_PROMPT_LENGTH,
    NUM_GENERATED,
    StudentCase,
    TokenSource,
    generate_requests,
    random_tokens,
    save_student,
    score_requests,
    select_students,
    text_spans,
)
from tests.parity.vllm.agreement_report import AgreementRow, Rounding, markdown, read_rows

MAX_LENGTH = MAX_PROMPT_LENGTH + NUM_GENERATED + 8

SERVING_MODES: dict[str, dict[str, Any]] = {
    "batched": {},
    "chunked prefill": {"max_num_batched_tokens": 64, "max_num_seqs": 32},
    "prefix caching": {"enable_prefix_caching": True},
    "small cache": {"num_gpu_blocks_override": 40},
}
"""vLLM's arguments by serving mode. 40 blocks hold a handful of sequences; the others wait for slots."""

MAX_NUM_SEQS = {"small cache": 32}
"""Concurrent sequences on a GPU, else 256: CUDA graphs need a block of state for each."""

RECURRENT = frozenset(name for name, kind in MIXERS.items() if kind.served_as == "recurrence")

SLIDING_WINDOW_BLOCKS = 80
"""Blocks of the small cache for students of sliding windows only. vLLM makes their blocks 16 tokens (0.32 on
a CPU: 32) whatever `block_size` says, and starts only if the 65 blocks of the longest prompt fit."""

CACHE_MEMORY = {"kv_cache_memory_bytes": 1 << 30}
"""Cache size in the other modes; by default vLLM would reserve half of the machine's memory."""

GPU_CACHE_MEMORY = {"kv_cache_memory_bytes": 4 << 30}
"""The same on a GPU, where vLLM starts only if a block of state for each concurrent sequence fits: 256 of a
pure student of SmolLM2-135M's shape take 1.1 to 2.4 GiB."""


@dataclass(frozen=True, slots=True)
class EngineResponses:
    """One engine's responses to all requests."""

    generated: dict[int, GenerateResponse]
    scores: dict[int, ScoreResponse]

    def divergent(self, other: "EngineResponses") -> list[int]:
        """Prompts whose responses differ."""
        return [i for i, response in self.generated.items() if other.generated[i].tokens != response.tokens]

    def num_divergence_points(self, other: "EngineResponses") -> int:
        """Number of distinct pairs of tokens at which responses diverge."""
        pairs = ((self.generated[i].tokens, other.generated[i].tokens) for i in self.divergent(other))
        return len({(a[n : n + 1], b[n : n + 1]) for a, b in pairs for n in [_common_prefix_length(a, b)]})

    def max_logprob_difference(self, other: "EngineResponses") -> float:
        """Largest difference of a continuation's log-likelihood."""
        return max(
            abs(a - b)
            for i, response in self.scores.items()
            for a, b in zip(response.logprobs, other.scores[i].logprobs, strict=True)
        )


def _common_prefix_length(a: Sequence[int], b: Sequence[int]) -> int:
    return next((n for n, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


class Reference:
    """Responses of the in-process engine, and the comparison of vLLM with them."""

    def __init__(
        self, folder: Path, prompts: Sequence[GenerateRequest], scored: Sequence[ScoreRequest], dtype: str
    ) -> None:
        self.prompts, self.scored, self.dtype = prompts, scored, dtype
        model, self.ours = self._respond(folder, dtype, "cuda" if torch.cuda.is_available() else "cpu")
        self.exact = None
        if dtype != "float32":
            model, self.exact = self._respond(folder, "float32", "cpu")
        self.model = model
        self._gaps: dict[tuple[int, ...], float] = {}

    def _respond(self, folder: Path, dtype: str, device: str) -> tuple[PreTrainedModel, EngineResponses]:
        checkpoint = load_checkpoint(folder, dtype=dtype, device=device)
        engine = TorchEngine(checkpoint, max_length=MAX_LENGTH - 1)
        responses = EngineResponses(dict(engine.generate(self.prompts)), dict(engine.score(self.scored)))
        return checkpoint.model, responses

    def compare(self, student: str, mode: str, vllm: VllmEngine) -> AgreementRow:
        """Send vLLM the same requests; with prefix caching twice, and the second responses count."""
        generated = dict(vllm.generate(self.prompts))
        if vllm.arguments.get("enable_prefix_caching"):
            generated = dict(vllm.generate(self.prompts))
        theirs = EngineResponses(generated, dict(vllm.score(self.scored)))
        divergent = self.ours.divergent(theirs)
        tokens = [token for response in self.ours.generated.values() for token in response.tokens]
        versions = {
            **vllm.versions,
            "our torch": torch.__version__,
            "our transformers": transformers.__version__,
        }
        rounding = None
        if self.exact is not None:
            rounding = Rounding(
                our_equal=len(self.prompts) - len(self.exact.divergent(self.ours)),
                our_max_logprob_difference=self.exact.max_logprob_difference(self.ours),
                vllm_equal=len(self.prompts) - len(self.exact.divergent(theirs)),
                vllm_max_logprob_difference=self.exact.max_logprob_difference(theirs),
                our_divergence_points=self.exact.num_divergence_points(self.ours),
                vllm_divergence_points=self.exact.num_divergence_points(theirs),
            )
        return AgreementRow(
            student=student,
            mode=mode,
            dtype=self.dtype,
            num_prompts=len(self.prompts),
            num_equal=len(self.prompts) - len(divergent),
            gaps=tuple(
                self.gap(self.prompts[i].prompt, self.ours.generated[i].tokens, generated[i].tokens)
                for i in divergent
            ),
            num_scored=len(self.scored),
            max_logprob_difference=self.ours.max_logprob_difference(theirs),
            num_generated=len(tokens),
            num_distinct=len(set(tokens)),
            cached_tokens=vllm.cached_tokens,
            versions=", ".join(f"{name} {version}" for name, version in versions.items()),
            rounding=rounding,
            measured=f"{datetime.now(UTC):%Y-%m-%dT%H:%MZ}",
        )

    @torch.no_grad()
    def gap(self, prompt: tuple[int, ...], ours: tuple[int, ...], theirs: tuple[int, ...]) -> float:
        """Gap of the two most likely tokens at the divergence, log-probability by our model in float32."""
        text = prompt + ours[: _common_prefix_length(ours, theirs)]
        if text not in self._gaps:
            tokens = torch.tensor([text], device=self.model.device)
            top = self.model(tokens).logits[0, -1].double().log_softmax(-1).topk(2).values
            self._gaps[text] = float(top[0] - top[1])
        return self._gaps[text]


def measure(
    students: Sequence[StudentCase],
    build: Callable[[StudentCase, Path], Path],
    process: VllmProcess,
    *,
    modes: Sequence[str],
    count: int,
    dtype: str = "float32",
    arguments: dict[str, Any] | None = None,
    skip: frozenset[tuple[str, str]] = frozenset(),
    source: TokenSource | None = None,
) -> Iterator[AgreementRow]:
    """Compare students one after another in one vLLM process.

    Args:
        students: the students to compare.
        build: saves a student under a folder and returns the checkpoint's folder.
        process: a running vLLM.
        modes: serving modes.
        count: number of prompts; a fifth as many contexts are scored.
        dtype: of both engines.
        arguments: additional arguments of vLLM in all modes.
        skip: pairs of student and mode to leave out.
        source: source of prompts and contexts; None for random tokens.
    """
    for student in students:
        remaining = [mode for mode in modes if (student.name, mode) not in skip]
        if not remaining:
            continue
        with tempfile.TemporaryDirectory() as temporary:
            folder = build(student, Path(temporary))
            info = describe_checkpoint(folder)
            engines = {
                mode: VllmEngine(
                    info,
                    dtype=dtype,
                    max_length=MAX_LENGTH,
                    arguments={
                        **serving_arguments(mode, student, gpu=torch.cuda.is_available()),
                        **(arguments or {}),
                    },
                    process=process,
                )
                for mode in remaining
            }
            with ThreadPoolExecutor(1) as pool:
                # vLLM loads while the in-process engine computes.
                loaded = pool.submit(lambda first: first.versions, engines[remaining[0]])
                tokens = source or random_tokens(info.config.vocab_size)
                reference = Reference(
                    folder,
                    generate_requests(count, tokens),
                    score_requests(max(1, count // 5), tokens),
                    dtype,
                )
                loaded.result()
            for mode, engine in engines.items():
                yield reference.compare(student.name, mode, engine)
            del reference, engines
            gc.collect()


def serving_arguments(mode: str, student: StudentCase, *, gpu: bool) -> dict[str, Any]:
    """vLLM's arguments for a student in a serving mode."""
    arguments: dict[str, Any] = dict(GPU_CACHE_MEMORY if gpu else CACHE_MEMORY)
    if gpu:
        arguments["max_num_seqs"] = MAX_NUM_SEQS.get(mode, 256)
        if not set(student.mixers) & RECURRENT:
            # Without a state that determines their size, blocks have 16 tokens, and no prompt fits into 40.
            arguments["block_size"] = 128
    arguments |= SERVING_MODES[mode]
    if mode == "small cache" and set(student.mixers) == {"sliding_window"}:
        arguments["num_gpu_blocks_override"] = SLIDING_WINDOW_BLOCKS
    return arguments


def main() -> int:
    """Measure the missing rows and write the table; 1 if a row does not hold."""
    parser = Parser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder for agreement.jsonl and agreement.md")
    parser.add_argument("--teacher", default="pocket", help="default: %(default)s")
    mixers: dict[str, Any] = {"nargs": "+", "choices": MIXERS, "metavar": "MIXER", "default": []}
    parser.add_argument("--mixer", **mixers, help="only hybrids of these mixers")
    parser.add_argument("--pure", **mixers, help="only pure students of these mixers")
    parser.add_argument("--student", help="folder of a trained student to compare")
    parser.add_argument("--name", help="the trained student's name in the table; default: its label")
    parser.add_argument("--text", type=Path, help="text to take prompts from; default: random tokens")
    parser.add_argument(
        "--part", default="1/1", metavar="K/N", help="only the Kth of N parts of the students"
    )
    parser.add_argument("--mode", nargs="+", choices=SERVING_MODES, default=list(SERVING_MODES))
    parser.add_argument("--prompts", type=int, default=200, help="default: %(default)s")
    parser.add_argument("--dtype", default="float32", help="default: %(default)s")
    parser.add_argument("--arguments", type=json.loads, default={}, help="additional vLLM arguments, as JSON")
    options = parser.parse_args()
    path = options.out / "agreement.jsonl"
    rows = read_rows(path) if path.exists() else []
    with ThreadPoolExecutor(1) as pool:
        starting = pool.submit(VllmProcess, find_python(), students=True)
        teacher = load_checkpoint(options.student or options.teacher, dtype=options.dtype)
        process = starting.result()
    layers = teacher.model.config.num_hidden_layers
    students = select_students(layers, pure_mixers=options.pure, hybrids=options.mixer)
    part, parts = map(int, options.part.split("/"))
    size = -(-len(students) // parts)
    students = students[(part - 1) * size : part * size]
    if options.student:
        students = [StudentCase(options.name or teacher.label, tuple(teacher.model.config.mixers))]
    elif options.teacher != "pocket":
        students = [StudentCase(f"{teacher.label}: {student.name}", student.mixers) for student in students]
    source = text_spans(teacher.tokenizer(options.text.read_text()).input_ids) if options.text else None

    def build(student: StudentCase, folder: Path) -> Path:
        if options.student:
            return Path(options.student)
        return save_student(student, teacher.model, teacher.tokenizer, folder)

    try:
        with progress(total=len(students) * len(options.mode), what="agreement") as bar:
            for row in measure(
                students,
                build,
                process,
                modes=options.mode,
                count=options.prompts,
                dtype=options.dtype,
                arguments=options.arguments,
                skip=frozenset((row.student, row.mode) for row in rows if row.dtype == options.dtype),
                source=source,
            ):
                append_jsonl(path, [asdict(row)])
                rows.append(row)
                bar.update(1)
    finally:
        process.close()
    memory = GPU_CACHE_MEMORY if torch.cuda.is_available() else CACHE_MEMORY
    modes = {name: {**memory, **arguments} for name, arguments in SERVING_MODES.items()}
    write_text(options.out / "agreement.md", markdown(rows, modes))
    print(f"wrote {options.out / 'agreement.md'}")
    failed = [row for row in rows if not row.holds]
    for row in failed:
        print(
            f"does not hold: {row.student}, {row.mode}: {row.num_equal} of {row.num_prompts} equal, "
            f"log-likelihoods differ by up to {row.max_logprob_difference:.1e}"
        )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(guarded("agreement", main, resumable=False))
