"""Configurations of `run`, `compare` and `gate`, shared by the command line and Python; `run` also by YAML.

    RunConfig(suite="quick", teacher="./teacher", checkpoints=["./student"], out="runs/first")

Plain dataclasses that check themselves: a GPU host runs inference without pydantic. Files are validated with
pydantic (`read_run_config`), so that an unknown key is refused with the nearest known one.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from evalsuite.foundation import ConfigError, nearest
from evalsuite.foundation.taxonomy import PROTOCOLS

if TYPE_CHECKING:
    from evalsuite.reports.gate.policy import Policy
    from evalsuite.reports.records.run_selection import RunSelection

Phase = Literal["build", "infer", "score"]
PHASES: tuple[Phase, ...] = ("build", "infer", "score")
DTYPES = ("auto", "float32", "bfloat16", "float16")


def _read_by(*phases: Phase, flag: str = "", alone: bool = False) -> dict[str, Any]:
    """Return the metadata of a setting.

    Args:
        phases: phases that read it; a setting without them belongs to the call, whatever its phases.
        flag: option of the command line, where it is not the field's name.
        alone: it requires that only these phases are run.
    """
    return {"phases": phases, "flag": flag, "alone": alone}


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """Configuration of one evaluation: what is evaluated, how, and which of its phases.

    A setting that the chosen phases do not read is refused, unless it has its default value.

    Raises:
        ConfigError: a value or a combination of settings that has no meaning.
    """

    __pydantic_config__: ClassVar[dict[str, Any]] = {"extra": "forbid"}

    out: Path | str
    """Run folder; a repeated run resumes."""
    suite: Path | str | None = field(default=None, metadata=_read_by(*PHASES))
    """Suites, benchmarks and YAML files of either, joined by commas, with options after colons (see
    `evalsuite run --help`). Required to build requests; without the build phase it may be left out, and is
    otherwise checked against the run folder."""
    checkpoints: Sequence[str] = field(default=(), metadata=_read_by("build", "infer", flag="--checkpoint"))
    """Hub ids, folders (of one checkpoint or of many), GGUF files or ``pocket``, with settings after a colon
    (``./kda:weights=int8:state=bf16``) for quantized variants. The infer phase alone takes all checkpoints of
    the run folder if none is given."""
    teacher: str | None = field(default=None, metadata=_read_by("build", "infer"))
    """The checkpoint that the others are compared with; it is evaluated as well."""
    limit: int | None = field(default=None, metadata=_read_by("build", "score"))
    """Documents per benchmark, a seeded sample, instead of the suite's own limits."""
    max_length: int | None = field(default=None, metadata=_read_by("build"))
    """Let checkpoints read contexts of up to this many tokens where their configs state fewer positions;
    what lies beyond those is marked out of distribution. Only for positional schemes that reach it."""
    skip_missing: bool = field(default=False, metadata=_read_by("build"))
    """Leave out benchmarks without data or consent to execute code, by name, instead of refusing them."""
    strict: bool = field(default=False, metadata=_read_by("build"))
    """Refuse contexts that a checkpoint does not support, instead of leaving them out by name."""
    data: Path | str | None = field(default=None, metadata=_read_by("build"))
    """Frozen data as written by `evalsuite prepare`; None: EVALSUITE_DATA, else the hub."""
    engine: str = field(default="torch", metadata=_read_by("infer"))
    """Inference engine."""
    engine_args: Mapping[str, Any] = field(default_factory=dict, metadata=_read_by("infer"))
    """Arguments of the engine, such as those of `vllm.LLM`."""
    executor: str = field(default="local", metadata=_read_by("infer"))
    """What carries out inference; a name from `evalsuite show executors`."""
    executor_args: Mapping[str, Any] = field(default_factory=dict, metadata=_read_by("infer"))
    """Arguments of the executor, such as the address of a Ray cluster."""
    cache: bool = field(default=True, metadata=_read_by("infer", flag="--no-cache"))
    """Reuse responses that runs in other folders have computed with the same fingerprint, and share those of
    this one (`evalsuite cache`)."""
    device: str = field(default="auto", metadata=_read_by("infer"))
    """``cpu``, ``cuda``, ``cuda:1`` or ``auto``."""
    dtype: str = field(default="auto", metadata=_read_by("infer"))
    """``auto`` is float32 on a CPU and bfloat16 on CUDA."""
    trust_remote_code: bool = field(default=False, metadata=_read_by(*PHASES))
    """Run Python code that comes with a checkpoint, or with a task file outside lm-eval."""
    phases: Sequence[Phase] = PHASES
    """Phases of this call, for runs that are split across machines."""
    protocols: Sequence[str] = field(default=(), metadata=_read_by("infer", flag="--protocol", alone=True))
    """Run inference for these protocols only, e.g. in two processes on one GPU."""
    benchmarks: Sequence[str] = field(default=(), metadata=_read_by(*PHASES))
    """Only these benchmarks of the suite or run, in this order; names joined by commas form one batch of
    inference."""
    export_shard: Path | str | None = field(default=None, metadata=_read_by("infer", alone=True))
    """File (.tar.xz) for responses and loss curves; written also when inference is interrupted."""
    merge_shards: Sequence[Path | str] = field(default=(), metadata=_read_by("score", alone=True))
    """Shards or run folders of other machines, merged before scoring."""
    workers: int | Literal["auto"] | None = field(default=None, metadata=_read_by("build", "score"))
    """Processes that build and score; ``auto`` takes one per processor if there is enough work. None is
    ``auto`` on the command line and 1 in Python, where more need an ``if __name__ == "__main__":`` guard in
    the script."""
    track: str | None = field(default=None, metadata=_read_by("score"))
    """Experiment tracker that the scores are also logged to: ``tensorboard`` or ``trackio``."""
    quiet: bool = False
    """No progress bars."""

    def __post_init__(self) -> None:
        """Normalize sequences and check the settings."""
        _normalize(self, "checkpoints", "phases", "protocols", "benchmarks", "merge_shards")
        self._check_values()
        self._check_combinations()

    def _check_values(self) -> None:
        for name, known in (("phases", PHASES), ("protocols", PROTOCOLS)):
            for value in getattr(self, name):
                if value not in known:
                    raise ConfigError(f"'{name}': unknown {name[:-1]} '{value}'{nearest(value, known)}")
        if not self.phases:
            raise ConfigError(f"'phases' is empty; give some of {', '.join(PHASES)}")
        if self.dtype not in DTYPES:
            raise ConfigError(f"'dtype' = {self.dtype!r}{nearest(self.dtype, DTYPES)}")
        for name in ("limit", "max_length", "workers"):
            value = getattr(self, name)
            if isinstance(value, int) and not 1 <= value < 2**63:
                raise ConfigError(f"'{name}' = {value}: must be at least 1 and fit in 64 bits")

    def _check_combinations(self) -> None:
        if "build" in self.phases:
            if self.suite is None:
                raise ConfigError("no suite given: name one from `evalsuite show suites`, or a YAML file")
            if not self.checkpoints and self.teacher is None:
                raise ConfigError("no checkpoints given: pass --checkpoint and/or --teacher")
        if self.strict and self.skip_missing:
            raise ConfigError("--strict leaves nothing out, --skip-missing does: pass either")
        for setting in fields(self):
            if getattr(self, setting.name) != _default(setting):
                self._check_phases(setting)

    def _check_phases(self, setting: "Field[Any]") -> None:
        readers = setting.metadata.get("phases", ())
        if readers and setting.metadata["alone"] and not set(self.phases) <= set(readers):
            flags = " or ".join(f"--{name}-only" for name in readers)
            alone = " or ".join(f"[{name}]" for name in readers)
            raise ConfigError(f"'{setting.name}' ({flag_of(setting)}) requires {flags} (phases: {alone})")
        if not _is_read(setting, self.phases):
            raise ConfigError(
                f"'{setting.name}' ({flag_of(setting)}) has no effect without the {' or '.join(readers)} "
                "phase; leave it out"
            )

    @property
    def batches(self) -> list[list[str]]:
        """Names of `benchmarks`, batch by batch."""
        return [names.split(",") for names in self.benchmarks]

    def record(self, phase: Phase) -> dict[str, Any]:
        """Return, as JSON, the settings that a phase reads; `environment.json` keeps them."""
        return {
            each.name: _as_json(getattr(self, each.name))
            for each in fields(self)
            if phase in each.metadata.get("phases", ())
        }


@dataclass(frozen=True, kw_only=True)
class _Selected:
    """What of the runs `compare` and `gate` look at."""

    teacher: str | None = None
    """Label, weights_id or path of the only teacher; None: the teachers of the plans."""
    checkpoints: Sequence[str] = ()
    """Labels, weights_ids or paths of the only students, each compared with its teacher; empty: all."""
    same: Sequence[str] = ()
    """What is one checkpoint: `LABEL`, the same weights under several engines, dtypes, devices or versions;
    `LABEL=NAME,NAME`, one model that several harnesses evaluated."""
    min_coverage: float | None = None
    """Admit partial cells with at least this fraction of the planned documents; None: as the policy states,
    else 1."""
    errors: Literal["wrong", "exclude"] | None = None
    """Responses that are errors count as wrong, or their documents are excluded; None: as the policy states,
    else wrong."""

    @property
    def selection(self) -> "RunSelection":
        """These settings as the reports take them. Raises ConfigError for a value out of range."""
        from evalsuite.reports.records.run_selection import RunSelection

        return RunSelection(
            self.teacher, tuple(self.checkpoints), self.min_coverage, self.errors, same=tuple(self.same)
        )


@dataclass(frozen=True, kw_only=True)
class CompareConfig(_Selected):
    """Configuration of one report: runs, or checkpoints that are evaluated first.

    Raises:
        ConfigError: a combination of settings that has no meaning.
    """

    inputs: Sequence[Path | str]
    """Run folders; or checkpoints, which are evaluated on `suite` into ``OUT/run``. With checkpoints,
    `teacher` is a path."""
    out: Path | str
    """Folder for the report."""
    policy: Path | str | None = None
    """Gate policy; the report shows its verdict."""
    questions: bool = False
    """Show document texts in the sample browser, from the documents in the run folders."""
    redact: bool = False
    """Omit question texts and absolute paths, for a page that is published."""
    samples: bool = field(default=True, metadata={"flag": "--no-samples"})
    """Write the samples that the page loads on demand (``OUT/samples/*.js``)."""
    export_samples: bool = False
    """Also write the run folder ``OUT/samples``: scores and responses by document id, without questions."""
    data: Path | str | None = None
    """Frozen data: source of question texts, and of documents for checkpoints."""
    printed: Path | str | None = None
    """CSV of scores from elsewhere, which stand next to ours in the papers' tables."""
    suite: Path | str | None = None
    """Checkpoints only: the suite, as in `RunConfig`, like the settings below."""
    limit: int | None = None
    device: str = "auto"
    dtype: str = "auto"
    trust_remote_code: bool = False
    quiet: bool = False

    def __post_init__(self) -> None:
        """Normalize sequences and check the settings."""
        _normalize(self, "inputs", "checkpoints")
        if self.redact and self.questions:
            raise ConfigError("--redact omits question texts: pass either it or --questions")
        if not self.inputs:
            raise ConfigError("nothing to compare: give run folders or checkpoints")
        _ = self.selection
        runs = self.runs
        checkpoints = [each for each in self.inputs if Path(each) not in runs]
        if runs and checkpoints:
            raise ConfigError(
                f"{checkpoints[0]}: not a run folder (no run.json); pass either run folders or checkpoints"
            )
        if runs:
            self._check_runs()
        elif self.suite is None:
            raise ConfigError(
                f"{checkpoints[0]}: not a run folder (no run.json); to evaluate a checkpoint, pass --suite"
            )

    @property
    def runs(self) -> list[Path]:
        """The inputs that are run folders; empty if checkpoints are to be evaluated."""
        from evalsuite.reports.run import is_run_folder

        return [Path(each) for each in self.inputs if is_run_folder(Path(each))]

    def _check_runs(self) -> None:
        for name in ("suite", "limit", "device", "dtype", "trust_remote_code"):
            if getattr(self, name) != self.__dataclass_fields__[name].default:
                flag = flag_of(self.__dataclass_fields__[name])
                raise ConfigError(
                    f"'{name}' ({flag}) has no effect on run folders, which are evaluated already; leave it "
                    f"out, or pass it to `evalsuite run`"
                )
        if self.redact and self.data is not None:
            raise ConfigError("--redact omits question texts, the only use of --data here: pass either")

    def run_config(self) -> RunConfig:
        """Return the configuration of the run that evaluates the checkpoints."""
        return RunConfig(
            suite=self.suite,
            checkpoints=tuple(map(str, self.inputs)),
            out=Path(self.out) / "run",
            teacher=self.teacher,
            data=self.data,
            limit=self.limit,
            device=self.device,
            dtype=self.dtype,
            trust_remote_code=self.trust_remote_code,
            quiet=self.quiet,
        )


@dataclass(frozen=True, kw_only=True)
class GateConfig(_Selected):
    """Configuration of one gate: finished runs and a policy, or the most common rules without a file.

    Raises:
        ConfigError: neither or both of policy and rules are given.
    """

    runs: Sequence[Path | str]
    """Run folders; or one folder that `compare` wrote, or its report.json, on whose intervals alone rules are
    decided."""
    policy: "Path | str | Policy | None" = None
    """The rules; a file or a `Policy`."""
    min_recovery: float | None = None
    """Minimum recovery, as a fraction of the teacher, e.g. 0.9."""
    min_agreement: float | None = None
    """Minimum share of documents with the teacher's choice or extracted answer, e.g. 0.8."""
    min_retained: float | None = None
    """Minimum share of the teacher's right answers that stay right, e.g. 0.85."""
    max_kl: float | None = None
    """Maximum KL(teacher ‖ student) at the right answers, in nats per token, e.g. 0.3."""
    max_gap: float | None = None
    """Maximum gap between the protocols, in points, e.g. 5."""
    bounds: Mapping[str, float | None] = field(default_factory=dict)
    """Thresholds of measures of other packages, by the name of their option, e.g. `{"min_lead": 10}`; on the
    command line, these options."""
    benchmarks: Sequence[str] = field(default=(), metadata={"flag": "--benchmark"})
    """Only these benchmarks; the verdict names the others. Empty: as the policy states, else all."""
    over: Literal["documents", "runs"] | None = None
    """Decide on the checkpoint itself, or on its recipe over training runs; None: as the policy states, else
    over training runs where the spread between them is known."""
    run_spread: float | None = None
    """Standard deviation of the score between training runs of a recipe, in points; None: as the policy
    states, else that between the seeds in the runs."""
    out: Path | str | None = None
    """Folder for junit.xml, gate.md and gate.json; None: nothing is written."""

    def __post_init__(self) -> None:
        """Normalize sequences and check the settings."""
        _normalize(self, "runs", "checkpoints", "benchmarks")
        if not self.runs:
            raise ConfigError("no runs given: name run folders")
        if (self.policy is not None) == any(bound is not None for bound in self._bounds.values()):
            options = [f"--{name.replace('_', '-')}" for name in self._bounds]
            raise ConfigError(f"pass either --policy FILE, or {' and/or '.join(options)}")
        _ = self.selection
        if self.report is not None:
            self._check_report()

    @property
    def report(self) -> Path | None:
        """The report.json to gate instead of runs."""
        from evalsuite.reports.run import report_file

        found = [file for each in self.runs if (file := report_file(Path(each))) is not None]
        if found and len(self.runs) > 1:
            raise ConfigError(f"{found[0]}: a report is gated alone; give one report, or run folders")
        return found[0] if found else None

    def _check_report(self) -> None:
        """Raise ConfigError for a setting that selects documents, which a report does not have."""
        for name in ("teacher", "same", "min_coverage", "errors", "benchmarks", "run_spread"):
            if getattr(self, name) not in (None, (), []):
                flag = flag_of(self.__dataclass_fields__[name])
                raise ConfigError(
                    f"{flag} selects documents, which a report does not have: pass it to `evalsuite "
                    "compare`, or gate the run"
                )

    @property
    def _bounds(self) -> dict[str, float | None]:
        names = ("min_recovery", "min_agreement", "min_retained", "max_kl", "max_gap")
        return {name: getattr(self, name) for name in names} | dict(self.bounds)

    def load_policy(self) -> "Policy":
        """Return the policy. Raises ConfigError for an invalid file or rule."""
        from evalsuite.reports import load_policy, policy_from_options

        if self.policy is None:
            policy = policy_from_options(**self._bounds)
        else:
            policy = load_policy(Path(self.policy)) if isinstance(self.policy, str | Path) else self.policy
        return policy.with_options(benchmarks=self.benchmarks, over=self.over, run_spread=self.run_spread)


def _normalize(config: Any, *names: str) -> None:
    """Turn sequences into tuples. Raises ConfigError for a string, which is a sequence of letters."""
    for name in names:
        value = getattr(config, name)
        if isinstance(value, str | Path):
            raise ConfigError(f"'{name}' = {str(value)!r}: give a list, [{str(value)!r}]")
        object.__setattr__(config, name, tuple(value))


def read_run_config(path: Path | str, **flags: Any) -> RunConfig:
    """Read a YAML file; settings given as keywords take precedence.

    The file describes a whole run. With `phases` among the keywords, what only other phases read is left out,
    so that one file serves every machine of a run that is split.

    Raises:
        ConfigError: the file cannot be read; an unknown key (with the nearest), a value or a combination
            that has no meaning.
    """
    from evalsuite.foundation.strict import parse_dataclass
    from evalsuite.foundation.strict_yaml import read_yaml

    values = read_yaml(Path(path))
    phases = flags.get("phases") or values.get("phases", PHASES)
    unread = {each.name for each in fields(RunConfig) if not _is_read(each, phases)}
    settings = {key: value for key, value in values.items() if key not in unread}
    return parse_dataclass(settings | flags, RunConfig, str(path))


def flag_of(setting: "Field[Any]") -> str:
    """Return the command-line option of a field."""
    return str(setting.metadata.get("flag") or "--" + setting.name.replace("_", "-"))


def _is_read(setting: "Field[Any]", phases: Sequence[str]) -> bool:
    readers = setting.metadata.get("phases", ())
    return not readers or bool(set(readers) & set(phases))


def _default(setting: "Field[Any]") -> Any:
    return setting.default if setting.default_factory is MISSING else setting.default_factory()


_SECRET = re.compile(r"token|key|secret|passw|credential|auth", re.IGNORECASE)
_PLAIN = re.compile(r"tokens|tokenizer|token_ids?$", re.IGNORECASE)
"""Names of arguments that `_SECRET` would match, such as `max_num_batched_tokens`."""
_PASSWORD = re.compile(r"(?<=://)[^/@\s]+(?=@)")
"""User and password in a URL."""
HIDDEN = "(not recorded)"


def _is_secret(name: str, value: Any) -> bool:
    """Whether an argument is text, or a list, whose name is that of a secret."""
    named = _SECRET.search(name) is not None and _PLAIN.search(name) is None
    return named and not (value is None or isinstance(value, Mapping | int | float))


def _as_json(value: Any) -> Any:
    """Return a setting as JSON; secrets in the arguments of an engine or executor are left out."""
    if isinstance(value, Mapping):
        return {
            str(key): HIDDEN if _is_secret(str(key), inner) else _as_json(inner)
            for key, inner in value.items()
        }
    if isinstance(value, tuple | list):
        return [_as_json(inner) for inner in value]
    return _PASSWORD.sub(HIDDEN, str(value)) if isinstance(value, str | Path) else value
