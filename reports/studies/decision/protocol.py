"""The committed protocol, validated: students, ways, contrasts, power."""

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, model_validator

from evalsuite.foundation import nearest
from evalsuite.foundation.strict import Distinct, Seed, Strict, load

PATH = Path(__file__).with_name("protocol.yaml")


class Teacher(Strict):
    """One teacher, the recipe of its students, and the family of each."""

    title: str
    recipe: str
    role: str
    students: dict[str, str] = Field(min_length=1)
    """Student of the recipe → family."""
    untrained: dict[str, dict[str, int]] = Field(default_factory=dict)
    """Name → options of `sliding_window` in every layer of the teacher's own weights."""


class Way(Strict):
    """One way to ask for a needle: the column of the score rows that answers."""

    means: str
    benchmark: str
    """Name of the benchmark, of `{task}` and `{half}`."""
    protocol: str
    metric: str
    chance: float = Field(ge=0, lt=1)


class Needles(Strict):
    """Tasks and contexts, each a cell with every way on the same documents."""

    tasks: list[str] = Field(min_length=1)
    contexts: list[int] = Field(min_length=1)
    documents: int = Field(ge=1)
    halves: dict[str, str]
    """Half → suffix of its benchmarks."""


class Task(Strict):
    """A short task under log-likelihood."""

    metric: str
    chance: float = Field(ge=0, lt=1)


class ShortTasks(Strict):
    """Tasks that exist plain and behind unrelated text."""

    suffix: str
    """Of the benchmarks with text before their prompts."""
    tasks: dict[str, Task] = Field(min_length=1)


class Question(Strict):
    """A contrast: what is lost by the first way and not by the second."""

    of: Literal["needles", "short_tasks", "completion_tasks"]
    ways: tuple[str, str]
    question: str


class Power(Strict):
    """What the minimum detectable effect is computed from."""

    run_sd: float = Field(gt=0)
    """Standard deviation of a contrast between runs of one student, in points."""
    alpha: float = Field(gt=0, lt=1)
    tests: int = Field(ge=1)
    beta: float = Field(gt=0, lt=1)


class Protocol(Strict):
    """What `protocol.yaml` fixes; its prose is for readers."""

    question: str
    teachers: dict[str, Teacher] = Field(min_length=1)
    seeds: Annotated[list[Seed], Distinct] = Field(min_length=2)
    ways: dict[str, Way]
    needles: Needles
    suite: str
    """YAML of the requests, from the root of the repository."""
    short_tasks: ShortTasks
    completion_tasks: dict[str, dict[str, str]]
    """Benchmark → protocol → metric."""
    contrasts: dict[str, Question] = Field(min_length=1)
    unit: str
    families: str
    admission: str
    floors_and_ceilings: str
    halves: str
    exclusions: str
    stop: str
    power: Power
    decision: str
    claims: dict[str, str]
    amendments: list[str]

    @model_validator(mode="after")
    def _ways_are_known(self) -> "Protocol":
        for name, contrast in self.contrasts.items():
            for way in contrast.ways:
                if contrast.of == "needles" and way not in self.ways:
                    raise ValueError(f"contrasts.{name}.ways: unknown way '{way}'{nearest(way, self.ways)}")
        return self


def control(name: str) -> str:
    """Label of an untrained checkpoint of a teacher, of which only the shares are shown."""
    return f"untrained-{name}"


def load_protocol(path: Path = PATH) -> Protocol:
    """Return the protocol of a YAML file.

    Raises:
        ConfigError: a key that is unknown or a value that is no protocol's.
    """
    return load(path, Protocol)
