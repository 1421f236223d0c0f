"""Validation of a shard: every file, field, type and length, before any of it is merged."""

import lzma
import re
import tarfile
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal, Self, TypeVar

from pydantic import AfterValidator, ConfigDict, Field, model_validator

from evalsuite.evaluation.loss_curves import read_curve
from evalsuite.evaluation.run_paths import cells_of, read_requests, responses_folder
from evalsuite.evaluation.shards.export import MANIFEST, stated
from evalsuite.foundation import ConfigError, DataError, parse_json
from evalsuite.foundation.strict import Strict, parse
from evalsuite.models.inference.requests import ScoreRequest
from evalsuite.reports.records.loss_curves import loss_curve_path
from evalsuite.reports.run import (
    FILE,
    Checkpoint,
    DivergedStudent,
    Engine,
    Manifest,
    environment_path,
    is_run_folder,
    manifest_path,
    parse_manifest,
)

MAX_NAME = 200
"""Characters of a label."""
MAX_LOGPROB = 1e-2
"""A sum of log-probabilities is not above 0, up to rounding."""
MIN_LOGPROB = -3.5e38
"""They are summed in float32."""
TORN = b'{"key"'
"""Start of a line that a killed process did not complete."""
MEMBERS = re.compile(r"(run|environment|manifest)\.json|(responses|training)/[^/\0]+\.jsonl")
"""Files of an archive."""

Limits = tuple[int, ...]
"""Of a score request, the length of each continuation; of a generation, (maximum of new tokens,)."""
Demands = Mapping[str, Mapping[tuple[Any, ...], Limits]]
"""Verb → (request hash, sampling, seed) → what the request demands, for one tokenizer."""


class _ShardPart(Strict):
    """One JSON value of a shard; no type is converted into another."""

    model_config = ConfigDict(strict=True)


def _is_name(name: str) -> str:
    if len(name) > MAX_NAME:
        raise ValueError(f"must have at most {MAX_NAME} characters")
    if not name.isprintable() or "\\" in name or any(part in ("", ".", "..") for part in name.split("/")):
        raise ValueError("must have no control characters, and be no path out of its folder")
    return name


def _is_unicode(text: str) -> str:
    text.encode()  # Raises UnicodeEncodeError, a ValueError, for half of a surrogate pair.
    return text


Name = Annotated[str, AfterValidator(_is_name)]
"""A label, or the id of weights."""
Identifier = Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{1,128}$")]
Text = Annotated[str, Field(max_length=4096), AfterValidator(_is_unicode)]
Count = Annotated[int, Field(ge=0)]


class _InferenceFacts(_ShardPart):
    label: Name
    responses: Count
    seconds: Annotated[float, Field(ge=0)]
    protocols: list[Text]


class _Machine(_ShardPart):
    """What responded."""

    accelerators: list[Text] | None = None
    """Names of its GPUs."""
    packages: dict[str, Text] | None = None
    """Package → version."""
    python: Text | None = None
    """Version of Python."""
    platform: Text | None = None
    """As `platform.platform()` states it."""


class _Environment(_Machine):
    model_config = ConfigDict(extra="ignore")  # Facts of the other machine that are not merged.

    inference: list[_InferenceFacts] = Field(default_factory=list)
    inference_hosts: list[_Machine] = Field(default_factory=list)
    kernels: dict[str, Text] = Field(default_factory=dict)
    backend: list[str] | None = None


class _Score(_ShardPart):
    logprobs: list[Annotated[float, Field(ge=MIN_LOGPROB, le=MAX_LOGPROB)]]
    greedy: list[bool]
    lengths: list[Count]
    error: Text | None = None

    @model_validator(mode="after")
    def _error_has_no_numbers(self) -> Self:
        if self.error is not None and (self.logprobs or self.greedy or self.lengths):
            raise ValueError("a response with an 'error' has no log-probabilities")
        return self

    def mismatch(self, limits: Limits) -> str | None:
        """Return how the response differs from what its request demands; None if it fits."""
        if self.error is not None:
            return None
        for name in ("logprobs", "greedy", "lengths"):
            if len(getattr(self, name)) != len(limits):
                return (
                    f"'response.{name}' has {len(getattr(self, name))} entries, the request has "
                    f"{len(limits)} continuations"
                )
        if tuple(self.lengths) != limits:
            return f"'response.lengths' = {self.lengths}: the continuations have {list(limits)} tokens"
        return None


class _Generation(_ShardPart):
    tokens: list[Annotated[int, Field(ge=0, lt=2**31)]]
    text: Annotated[str, AfterValidator(_is_unicode)]
    finish_reason: Literal["stop", "eos", "length", "error"]
    error: Text | None = None

    @model_validator(mode="after")
    def _error_has_a_reason(self) -> Self:
        if (self.error is not None) != (self.finish_reason == "error"):
            raise ValueError("'error' belongs to 'finish_reason' error, and only there")
        return self

    def mismatch(self, limits: Limits) -> str | None:
        """Return how the response differs from what its request demands; None if it fits."""
        (most,) = limits
        if len(self.tokens) > most:
            return f"'response.tokens' has {len(self.tokens)} tokens, the request allows {most}"
        return None


class _ScoreRow(_ShardPart):
    key: Annotated[list[str | int], Field(min_length=3, max_length=3)]
    response: _Score


class _GenerationRow(_ShardPart):
    key: Annotated[list[str | int], Field(min_length=3, max_length=3)]
    response: _Generation


ROWS: dict[str, type[_ScoreRow] | type[_GenerationRow]] = {"score": _ScoreRow, "generate": _GenerationRow}
"""Verb of a response log → schema of its lines."""
Part = TypeVar("Part", bound=_ShardPart)


@dataclass(frozen=True, kw_only=True)
class Shard:
    """The contents of a shard that is sound."""

    name: str
    environment: dict[str, Any]
    """Facts of the other machine that are merged."""
    engines: dict[str, Engine]
    """By weights_id."""
    checkpoints: tuple[Checkpoint, ...]
    """Those with responses."""
    diverged: tuple[DivergedStudent, ...]
    curves: dict[str, bytes] = field(default_factory=dict)
    """weights_id → loss curve."""
    responses: dict[str, dict[str, list[dict[str, Any]]]] = field(default_factory=dict)
    """weights_id → name of the response log → rows."""


@contextmanager
def open_shard(shard: Path) -> Iterator[Path]:
    """Yield the shard's folder, unpacked if it is a file. Raises DataError if it is not a shard."""
    if shard.is_dir():
        yield shard
        return
    with tempfile.TemporaryDirectory(prefix="evalsuite-shard-") as folder:
        try:
            with tarfile.open(shard, "r:xz") as archive:
                for member in archive:
                    if not (member.isfile() and MEMBERS.fullmatch(member.name)):
                        raise DataError(
                            f"{shard}: {member.name!r} does not belong in a shard; export it again"
                        )
                    archive.extract(member, folder, filter="data")
        except (OSError, EOFError, ValueError, lzma.LZMAError, tarfile.TarError) as error:
            raise DataError(f"{shard}: not a shard of a run ({error})") from error
        yield Path(folder)


def read_shard(
    folder: Path, name: str, run: Path, manifest: Manifest, demands: Callable[[str], Demands]
) -> Shard:
    """Read a shard, and validate all of it against the requests of a run.

    Args:
        folder: the shard, unpacked.
        name: its name in errors.
        run, manifest: the run that it is merged into, and its manifest.
        demands: `request_demands` of that run.

    Raises:
        DataError: an invalid file; the message names file and field.
    """
    stated = _read_manifest(folder, name, manifest)
    environment = _read(environment_path(folder), folder, name, _Environment)
    checkpoints = tuple(each for each in stated.checkpoints if each.weights_id in stated.engines)
    refs = {each.weights_id: each for each in (*checkpoints, *manifest.checkpoints)}
    curves, responses = {}, {}
    for weights_id, engine in stated.engines.items():
        if weights_id not in refs:
            raise DataError(f"{name}: has responses of {weights_id}, which is no checkpoint of {run}")
        responses[weights_id] = {
            path.name: _rows(
                path,
                f"{name}: {path.relative_to(folder)}",
                demands(refs[weights_id].tokenizer),
                run,
                killed=not (folder / MANIFEST).is_file(),
            )
            for path in sorted(responses_folder(folder).glob(f"{engine.fingerprint}.*"))
        }
    read = {log for logs in responses.values() for log in logs}
    for path in sorted(responses_folder(folder).glob("*.jsonl")):
        if path.name not in read:
            raise DataError(f"{name}: {path.relative_to(folder)}: of no engine in {FILE}")
    for each in checkpoints:
        path = loss_curve_path(folder, each.label)
        if path.is_file():
            curves[each.weights_id] = read_curve(
                path,
                f"{name}: {path.relative_to(folder)}",
                "unpack the shard (a folder can be merged as well)",
            )
    # Last, so that what is wrong with a field is named by the field.
    _check_manifest(folder, name)
    return Shard(
        name=name,
        environment=environment.model_dump(exclude_unset=True),
        engines=stated.engines,
        checkpoints=checkpoints,
        diverged=stated.diverged,
        curves=curves,
        responses=responses,
    )


def _read(path: Path, folder: Path, name: str, kind: type[Part]) -> Part:
    """Read and validate one JSON object."""
    source = f"{name}: {path.relative_to(folder)}"
    return _parse(_json(path, source) if path.is_file() else {}, kind, source)


def _json(path: Path, source: str) -> Any:
    """Read one JSON value; errors name the shard, not the folder that it was unpacked into."""
    try:
        return parse_json(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise DataError(f"{source}: not JSON ({error})") from error


def _check_manifest(folder: Path, name: str) -> None:
    """Compare every file with what the export stated of it; a run folder states nothing."""
    path = folder / MANIFEST
    if not path.is_file():
        return
    entries = _json(path, f"{name}: {MANIFEST}")
    if not isinstance(entries, dict):
        raise DataError(f"{name}: {MANIFEST}: expected an object, found {type(entries).__name__}")
    found = {str(each.relative_to(folder)): each for each in folder.rglob("*") if each.is_file()}
    for member in sorted({*entries, *found} - {MANIFEST}):
        if member not in found:
            raise DataError(f"{name}: {member}: missing; export or copy the shard again")
        if MEMBERS.fullmatch(member) and stated(found[member].read_bytes()) != entries.get(member):
            raise DataError(
                f"{name}: {member}: not as it was exported (see {MANIFEST}); export or copy the shard again"
            )


def _parse(value: Any, kind: type[Part], source: str) -> Part:
    if not isinstance(value, dict):
        raise DataError(f"{source}: expected an object, found {type(value).__name__}")
    try:
        return parse(value, kind, source)
    except ConfigError as error:
        raise DataError(str(error)) from None


def _read_manifest(folder: Path, name: str, manifest: Manifest) -> Manifest:
    """Read the manifest of a shard, and validate it against that of the run."""
    source = f"{name}: {FILE}"
    if not manifest_path(folder).is_file():
        if is_run_folder(folder):
            raise DataError(f"{source}: missing; convert the folder with `evalsuite convert {name}`")
        raise DataError(f"{name}: not a shard (no {FILE} that names an engine)")
    value = _json(manifest_path(folder), source)
    if not isinstance(value, dict):
        raise DataError(f"{source}: expected an object, found {type(value).__name__}")
    found = parse_manifest(value, source)
    if not found.engines:
        raise DataError(f"{source}: not of a shard (it names no engine)")
    for label in [each.label for each in found.checkpoints] + [each.label for each in found.diverged]:
        _refuse_name(label, f"{source}: 'label'")
    tokenizers = {each.tokenizer for each in manifest.checkpoints}
    for each in found.checkpoints:
        if each.weights_id in found.engines and each.tokenizer not in tokenizers:
            raise DataError(
                f"{source}: 'tokenizer' = {each.tokenizer!r} of {each.label}: the run has no requests for "
                "it; build them first with --build-only"
            )
    return found


def _refuse_name(name: str, where: str) -> None:
    try:
        _is_name(name)
    except ValueError as error:
        raise DataError(f"{where} = {name!r}: {error}") from None


def request_demands(run: Path, manifest: Manifest, tokenizer: str) -> Demands:
    """Return what the requests of one tokenizer demand; all of them are read."""
    found: dict[str, dict[tuple[Any, ...], Limits]] = {verb: {} for verb in ROWS}
    for cell in cells_of(manifest):
        for request_set in read_requests(run, tokenizer, cell):
            for request in cell.requests(request_set):
                verb, *key = request.key()
                found[verb][tuple(key)] = (
                    tuple(map(len, request.continuations))
                    if isinstance(request, ScoreRequest)
                    else (request.max_tokens,)
                )
    return found


def _lines(path: Path, source: str, killed: bool) -> list[bytes]:
    """Return the lines of a response log.

    Args:
        path: of the log.
        source: its name in errors.
        killed: it is that of a run, whose last line a killed process may have left incomplete.
    """
    try:
        *lines, rest = path.read_bytes().split(b"\n")
    except OSError as error:
        raise DataError(f"{source}: cannot be read ({error.strerror or error})") from error
    if rest and not (killed and (rest.startswith(TORN) or TORN.startswith(rest))):
        raise DataError(
            f"{source}, line {len(lines) + 1}: ends within a line; export or copy the shard again"
        )
    if not (lines or killed):
        raise DataError(f"{source}: empty; export or copy the shard again")
    return lines


def _rows(
    path: Path,
    source: str,
    requests: Demands,
    run: Path,
    *,
    killed: bool,
) -> list[dict[str, Any]]:
    """Read the responses of one response log, and compare each with its request."""
    verb = path.name.split(".")[-2] if path.name.count(".") == 2 and path.suffix == ".jsonl" else ""
    if verb not in ROWS:
        raise DataError(f"{source}: not a log of {' or '.join(ROWS)} responses")
    rows = []
    for number, line in enumerate(_lines(path, source, killed), 1):
        where = f"{source}, line {number}"
        try:
            row = parse_json(line)
        except (ValueError, RecursionError) as error:
            raise DataError(f"{where}: not JSON ({error})") from error
        parsed = _parse(row, ROWS[verb], where)
        limits = requests[verb].get(tuple(parsed.key))
        if limits is None:
            raise DataError(f"{where}: 'key' = {parsed.key}: no request of {run}")
        mismatch = parsed.response.mismatch(limits)
        if mismatch is not None:
            raise DataError(f"{where}: {mismatch}")
        rows.append(row)
    return rows
