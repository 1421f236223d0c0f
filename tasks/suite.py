"""A suite: a list of benchmarks, with limits, contexts, shots and sampling. One YAML file each."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, PrivateAttr, field_validator, model_validator

from evalsuite.foundation import ConfigError, nearest
from evalsuite.foundation.strict import Strict, load
from evalsuite.tasks.benchmark import Benchmark, ProtocolName, SamplingSpec, load_benchmark

FOLDER = Path(__file__).parent / "suites"


class SamplingOverride(Strict):
    """Sampling that a suite asks of all its benchmarks; what is not given stays as the benchmark says."""

    max_new_tokens: int | None = Field(default=None, ge=1)
    """At most this many; a benchmark that needs fewer keeps its own number."""
    temperature: float | None = Field(default=None, ge=0)
    top_p: float | None = Field(default=None, gt=0, le=1)
    top_k: int | None = Field(default=None, ge=0)


class Entry(Strict):
    """One benchmark of a suite, and what is particular about it here."""

    benchmark: str
    """A name from `evalsuite show benchmarks`, or a YAML file (relative to the suite's)."""
    protocols: tuple[ProtocolName, ...] = ()
    """Empty: all that the benchmark has."""
    contexts: tuple[int, ...] = ()
    """Empty: as the benchmark says."""
    limit: int | None = Field(default=None, ge=1)
    """Documents, per context where there are contexts; None: as the suite says."""
    limits: dict[ProtocolName, Annotated[int, Field(ge=1)]] = Field(default_factory=dict)
    """Fewer documents under one protocol: a seeded sample of those that the other is asked."""
    shots: dict[ProtocolName, int] = Field(default_factory=dict)
    metrics: dict[ProtocolName, str] = Field(default_factory=dict)
    """The metric that tables show, where it is not the benchmark's own choice."""
    sampling: SamplingOverride | None = None
    """Instead of the suite's."""
    prompt: Literal["chat", "literal"] | None = None
    """How its prompts are given, where not as the benchmark says: through the tokenizer's chat template where
    there is one, or as they are. RULER's are `literal`, as for base models; `chat` asks as RULER asks
    models that have a template: what begins the answer then stands in the assistant's turn."""


class Suite(Strict):
    """A list of benchmarks that are asked together."""

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.+-]*$")
    title: str
    limit: int | None = Field(default=None, ge=1)
    """Documents per benchmark: a seeded sample, the same for every checkpoint. None: all."""
    limits: dict[ProtocolName, Annotated[int, Field(ge=1)]] = Field(default_factory=dict)
    """As in an entry, for all benchmarks that do not say otherwise."""
    seed: int = 0
    """Of the samples of documents, of generated documents and of few-shot examples."""
    seeds: tuple[int, ...] = Field(default=(0,), min_length=1)
    """Sampled answers are written once per seed; greedy ones once."""
    sampling: SamplingOverride = SamplingOverride()
    chat: Literal["auto", "never", "always"] = "auto"
    """Whether chat prompts go through the tokenizer's template. `auto`: where there is one; `always`:
    a tokenizer without one is refused."""
    include: tuple[str, ...] = ()
    """Further suites whose benchmarks are asked as well; what this suite lists itself comes first and counts.
    Their limits come along, their sampling and seeds do not."""
    benchmarks: tuple[Entry, ...] = ()
    _file: Path | None = PrivateAttr(default=None)

    @property
    def where(self) -> str:
        """How messages name it: by its file, or by its name if it was not read from one."""
        return f"suite {self.name}" if self._file is None else str(self._file)

    @field_validator("benchmarks", mode="before")
    @classmethod
    def _names_are_entries(cls, value: object) -> object:
        if not isinstance(value, list | tuple):
            return value
        return [{"benchmark": entry} if isinstance(entry, str) else entry for entry in value]

    @model_validator(mode="after")
    def _names_are_unique(self) -> "Suite":
        names = [entry.benchmark for entry in self.benchmarks]
        repeated = sorted({name for name in names if names.count(name) > 1})
        if repeated:
            raise ValueError(f"benchmark '{repeated[0]}' is listed twice")
        if not self.benchmarks and not self.include:
            raise ValueError("give 'benchmarks', suites to 'include', or both")
        return self


def known_suites() -> list[str]:
    """Names of the suites that are built in, sorted."""
    return sorted(path.stem for path in FOLDER.glob("*.yaml"))


def load_suite(name: str | Path) -> Suite:
    """Load a built-in suite by name, or a YAML file by path; what it includes is listed in the result.

    Raises:
        ConfigError: an unknown name (the nearest known one is named), a file that is not a suite, or
            suites that include each other.
    """
    return _expanded(name, ())


def _expanded(name: str | Path, above: tuple[str, ...]) -> Suite:
    if str(name) in above:
        raise ConfigError(f"suite {name} includes itself ({' → '.join((*above, str(name)))})")
    suite = _read(name)
    entries = {entry.benchmark: entry for entry in suite.benchmarks}
    for other in suite.include:
        included = _expanded(other, (*above, str(name)))
        for entry in included.benchmarks:
            limit = entry.limit if entry.limit is not None else included.limit
            limits = included.limits | entry.limits
            entries.setdefault(entry.benchmark, entry.model_copy(update={"limit": limit, "limits": limits}))
    return suite.model_copy(update={"include": (), "benchmarks": tuple(entries.values())})


def _read(name: str | Path) -> Suite:
    if str(name).endswith((".yaml", ".yml")):
        return _of_file(Path(name))
    path = FOLDER / f"{name}.yaml"
    if "/" in str(name) or not path.is_file():
        raise ConfigError(f"unknown suite '{name}'{nearest(str(name), known_suites())}")
    suite = _of_file(path)
    if suite.name != name:
        raise ConfigError(f"{path}: 'name' = {suite.name!r}; the file is called {name}")
    return suite


def _of_file(path: Path) -> Suite:
    suite = load(path, Suite)
    suite._file = path
    return suite


def resolve(suite: Suite, *, near: Path | None = None) -> list[tuple[Entry, Benchmark]]:
    """Load a suite's benchmarks and apply what the suite says, so that nothing is left to be defaulted.

    Returns:
        Pairs of an entry whose protocols, contexts, limit and shots are all filled in, and its benchmark.

    Raises:
        ConfigError: an unknown benchmark, a protocol or contexts that a benchmark does not have.
    """
    return [_resolved(suite, entry, _loaded(suite, entry, near)) for entry in suite.benchmarks]


def _loaded(suite: Suite, entry: Entry, near: Path | None) -> Benchmark:
    try:
        return load_benchmark(entry.benchmark, near=near)
    except ConfigError as error:
        raise ConfigError(f"{suite.where}: benchmarks: {error}") from error


def _resolved(suite: Suite, entry: Entry, benchmark: Benchmark) -> tuple[Entry, Benchmark]:
    where = f"{suite.where}: benchmarks: {benchmark.name}"
    if entry.prompt is not None and benchmark.generation is None:
        raise ConfigError(f"{where}: 'prompt' = {entry.prompt}: it is ranked, not written; take this key out")
    for key in ("protocols", "limits", "shots", "metrics"):
        for protocol in getattr(entry, key):
            if protocol not in benchmark.protocols:
                raise ConfigError(
                    f"{where}: '{key}' = {protocol}: it has no {protocol} protocol; "
                    f"ask for {' or '.join(benchmark.protocols)}"
                )
    if entry.contexts and not benchmark.contexts:
        raise ConfigError(f"{where}: 'contexts': it takes no contexts; take this key out")
    metrics: dict[ProtocolName, str] = {
        protocol: getattr(benchmark, protocol).metric for protocol in benchmark.protocols
    }
    metrics |= entry.metrics
    shots = {protocol: getattr(benchmark, protocol).shots for protocol in benchmark.protocols} | entry.shots
    protocols = entry.protocols or benchmark.protocols
    limit, limits = _limits(suite, entry, benchmark, protocols)
    filled = Entry(
        benchmark=benchmark.name,
        protocols=protocols,
        contexts=entry.contexts or benchmark.contexts,
        limit=limit,
        limits=limits,
        shots=shots,
        metrics=metrics,
        sampling=entry.sampling,
        prompt=entry.prompt,
    )
    return filled, _changed(benchmark, metrics, entry.prompt)


def _limits(
    suite: Suite, entry: Entry, benchmark: Benchmark, protocols: Sequence[ProtocolName]
) -> tuple[int | None, dict[ProtocolName, int]]:
    """Documents that are gathered, and the protocols that are asked fewer of them.

    A limit of the entry counts for more than limits of the suite, and one per protocol for more than one
    for both. Where documents are generated per context, limits per protocol have no meaning of their own.
    """
    both = entry.limit if entry.limit is not None else suite.limit
    apart = entry.limits if entry.limit is not None else suite.limits | entry.limits
    each = {protocol: apart.get(protocol, both) for protocol in protocols}
    known = [limit for limit in each.values() if limit is not None]
    most = max(known) if len(known) == len(each) else None
    fewer = {name: limit for name, limit in each.items() if limit is not None and limit != most}
    if fewer and benchmark.generated is not None:
        raise ConfigError(
            f"{suite.where}: benchmarks: {benchmark.name}: 'limits': it generates its documents; give one "
            "'limit' for both protocols"
        )
    return most, fewer


def _changed(benchmark: Benchmark, metrics: dict[ProtocolName, str], prompt: str | None) -> Benchmark:
    """The benchmark as a suite asks it."""
    changed: dict[str, object] = {}
    if benchmark.loglikelihood is not None:
        changed["loglikelihood"] = benchmark.loglikelihood.with_metric(metrics["loglikelihood"])
    if benchmark.generation is not None:
        own: dict[str, object] = {"metric": metrics["generation"]}
        own |= {"prompt": prompt} if prompt is not None else {}
        changed["generation"] = benchmark.generation.model_copy(update=own)
    return benchmark.model_copy(update=changed)


def sampling_of(suite: Suite, entry: Entry, benchmark: Benchmark) -> SamplingSpec:
    """Return the sampling of a benchmark's generation under a suite."""
    assert benchmark.generation is not None
    own = benchmark.generation.sampling
    given = entry.sampling if entry.sampling is not None else suite.sampling
    asked = {key: value for key, value in given.model_dump().items() if value is not None}
    if "max_new_tokens" in asked:
        asked["max_new_tokens"] = min(asked["max_new_tokens"], own.max_new_tokens)
    return own.model_copy(update=asked)
