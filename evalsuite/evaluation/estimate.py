"""`--dry-run`: requests, tokens and expected time of a run, without writing files or loading weights."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from evalsuite.config import PHASES, RunConfig
from evalsuite.evaluation.build import build_cell, shortest
from evalsuite.evaluation.checkpoints import LocalCheckpoint
from evalsuite.evaluation.documents import load_documents
from evalsuite.evaluation.environment import coverage_notices
from evalsuite.evaluation.inference.engines import resolve_device
from evalsuite.evaluation.inference.worker import token_cost
from evalsuite.evaluation.plan import count_documents, make_manifest, resolve_suite
from evalsuite.evaluation.run_paths import cell_documents
from evalsuite.foundation import ConfigError, counted
from evalsuite.models.engines import engine_type
from evalsuite.models.inference.batch_limits import min_tokens_saved
from evalsuite.models.inference.registry import EngineSettings
from evalsuite.models.inference.requests import GenerateRequest, Request, ScoreRequest
from evalsuite.models.inference.torch.loglikelihood import tokens_read
from evalsuite.protocols.tokenization import Encoder
from evalsuite.reports.run import Manifest


@dataclass
class Estimate:
    """Work of a run, per checkpoint; as text by `str`."""

    rows: list[tuple[str, str, int, int, int, int]] = field(default_factory=list)
    """Benchmark, protocol, documents, requests, prompt tokens, maximum number of generated tokens."""
    checkpoints: int = 0
    unread_requests: int = 0
    """Requests of contexts that one of the checkpoints does not read, over all checkpoints."""
    parameters: int = 0
    """Sum over all checkpoints."""
    manifest: Manifest | None = None
    """Of the run: its benchmarks with numbers of documents."""
    time: str = ""
    """Expected duration of inference, in words."""
    partial: Mapping[str, Sequence[int]] = field(default_factory=dict)
    """Benchmarks with incomplete data: documents available, documents published."""
    left_out: Mapping[str, str] = field(default_factory=dict)
    """Benchmarks, or single contexts of them, that are left out, and why."""
    unread: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """Label → further contexts that this checkpoint is not evaluated on, and why."""

    def __str__(self) -> str:
        heads = ("documents", "requests", "prompt", "generated ≤")
        lines = [f"{'benchmark':24} {'protocol':14} " + " ".join(f"{head:>12}" for head in heads)]
        lines += [
            f"{name:24} {protocol:14} {documents:12,} {requests:12,} {prompt:12,} {generated:12,}"
            for name, protocol, documents, requests, prompt, generated in self.rows
        ]
        documents, requests, prompt, generated = (
            sum(column) for column in list(zip(*self.rows, strict=True))[2:]
        )
        lines.append(f"{'each checkpoint':39} {documents:12,} {requests:12,} {prompt:12,} {generated:12,}")
        work = 2 * self.parameters * (prompt + generated)
        requests = self.checkpoints * requests - self.unread_requests
        checkpoints = counted(self.checkpoints, "checkpoint")
        lines.append(f"{checkpoints}: {counted(requests, 'request')}, at most {work:.2g} FLOP")
        lines += [self.time] if self.time else []
        return "\n".join([*lines, *coverage_notices(self.partial, self.left_out, self.unread)])


def estimate_run(config: RunConfig) -> Estimate:
    """Build all requests in memory, count them, and time a few layers of each model. Raises as `evaluate`.

    Raises:
        ConfigError: a configuration of some phases only, too.
    """
    from evalsuite.evaluation.checkpoints import describe_checkpoints, expand_folders

    if config.suite is None or set(config.phases) != set(PHASES):
        raise ConfigError("an estimate (--dry-run) is of a whole run; leave out 'phases' (--…-only)")
    trusted = config.trust_remote_code
    described = describe_checkpoints(
        expand_folders(config.checkpoints), config.teacher, trust_remote_code=trusted
    )
    engine_type(config.engine, config.engine_args, config.max_length)
    resolved = resolve_suite(
        config.suite, described, limit=config.limit, max_length=config.max_length, only=config.batches
    )
    loaded = load_documents(
        resolved, described, config.data, skip_missing=config.skip_missing, strict=config.strict
    )
    resolved, found = resolved.without(loaded.left_out), loaded.documents
    encoder = Encoder(described[0].text_tokenizer)
    result = Estimate(
        checkpoints=len(described),
        parameters=sum(checkpoint.parameters or 0 for checkpoint in described),
        partial=loaded.partial,
        left_out=loaded.left_out,
        unread=loaded.unread,
    )
    all_requests: list[Request] = []
    max_length = shortest(described)
    limits = [each.limit(resolved.max_length) for each in described]
    cells = resolved.cells({name: len(documents) for name, documents in found.items()})
    counts = {
        (cell.benchmark, cell.protocol): count_documents(
            cell_documents(found[cell.benchmark], cell, resolved.suite.seed)
        )
        for cell in cells
    }
    result.manifest = make_manifest(resolved, described, counts)
    for cell in cells:
        request_sets = build_cell(
            resolved,
            cell,
            found[cell.benchmark],
            encoder,
            max_length,
            config.data,
            trust_remote_code=trusted,
        )
        requests = [request for request_set in request_sets for request in cell.requests(request_set)]
        generated = sum(r.max_tokens for r in requests if isinstance(r, GenerateRequest))
        prompt = sum(len(r.prompt) if isinstance(r, GenerateRequest) else token_cost(r) for r in requests)
        result.unread_requests += sum(
            len(cell.requests(request_set))
            for limit in limits
            for request_set in request_sets
            if not limit.reads(request_set.context)
        )
        result.rows.append((cell.benchmark, cell.protocol, cell.documents, len(requests), prompt, generated))
        all_requests += requests
    device, dtype = resolve_device(config.device, config.dtype)
    result.time = _time(described, all_requests, config.engine, device, dtype, trusted)
    return result


def _time(
    checkpoints: Sequence[LocalCheckpoint],
    requests: Sequence[Request],
    engine: str,
    device: str,
    dtype: str,
    trust_remote_code: bool,
) -> str:
    """Return the expected duration of inference, in words."""
    kind = engine_type(engine, {})
    settings = EngineSettings(device=device, dtype=dtype, trust_remote_code=trust_remote_code)
    scores = [request for request in requests if isinstance(request, ScoreRequest)]
    prompts = [request for request in requests if isinstance(request, GenerateRequest)]
    prompt_tokens = sum(len(request.prompt) for request in prompts)
    decode = sum(request.max_tokens for request in prompts)
    prefill_seconds = decode_seconds = 0.0
    for checkpoint in checkpoints:
        min_saved = min_tokens_saved(device, checkpoint.parameters or 1)
        prefill = tokens_read(scores, min_saved) + prompt_tokens
        try:
            rates = kind.token_times(
                checkpoint.config,
                checkpoint.text_tokenizer,
                settings,
                parameters=checkpoint.parameters or 1,
                prompt_tokens=max(1, prefill // len(requests)),
                num_responses=len(prompts),
            )
        except Exception as error:  # The estimate is optional: a run must not fail because of it.
            return f"expected time: unknown, cannot time a few layers of {checkpoint.label} ({error})"
        if rates is None:
            return f"expected time: unknown for engine {engine}"
        prefill_seconds += rates.seconds(prefill, 0)
        decode_seconds += rates.seconds(0, decode)
    parts = [f"{duration(prefill_seconds)} prefill"]
    if decode:
        parts.append(f"at most {duration(decode_seconds)} decoding")
    return (
        f"expected inference time on {device} in {dtype}: {' and '.join(parts)}, extrapolated from a few "
        "layers "
        "of each model; loading, building and scoring are not included"
    )


def duration(seconds: float) -> str:
    """Return a duration with its unit: 90 s, 12 min, 2.5 h."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
