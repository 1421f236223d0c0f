"""The registry of inference engines; other packages add theirs by the entry-point group `evalsuite.engines`.

@ENGINES.register("my_engine")
class MyEngine(EngineType): ...
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from evalsuite.foundation import ConfigError
from evalsuite.foundation.registry import ClassRegistry
from evalsuite.models.inference.base import Engine

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

    from evalsuite.models.benchmark.subject import Benchmark


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSettings:
    """How an engine is to run a checkpoint."""

    device: str
    """A torch device, such as cpu or cuda:1; without meaning to an engine that chooses its devices."""
    dtype: str
    """float32, bfloat16 or float16."""
    label: str | None = None
    """Name of the checkpoint in reports; None derives one from its path."""
    trust_remote_code: bool = False
    max_length: int | None = None
    """Positions to read where the config states fewer; None: as stated. Only for an engine that
    `extends_positions`."""
    arguments: Mapping[str, Any] = field(default_factory=dict)
    """The engine's own arguments (`--engine-args`); empty unless it has an `arguments_help`."""

    @property
    def loading(self) -> dict[str, Any]:
        """Arguments of `load_checkpoint`, for an engine that loads the model itself."""
        return {
            "dtype": self.dtype,
            "device": self.device,
            "label": self.label,
            "trust_remote_code": self.trust_remote_code,
            "shares_tokenizer": True,
        }


@dataclass(frozen=True, slots=True)
class TokenTimes:
    """Seconds per token in large batches: prefill, and decode (of up to `num_seqs` sequences at a time)."""

    prefill: float
    decode: float
    num_seqs: int

    def seconds(self, prefill_tokens: int, decode_tokens: int) -> float:
        """Time for this number of tokens."""
        return prefill_tokens * self.prefill + decode_tokens * self.decode


class EngineType(ABC):
    """What evaluation and command line ask of a kind of engine; its instances are `Engine`s."""

    name: ClassVar[str]
    """The name it is registered under, by which `--engine` chooses it."""
    display_name: ClassVar[str]
    """Name in text, e.g. "vLLM"."""
    arguments_help: ClassVar[str] = ""
    """What its own arguments are, e.g. "arguments of vllm.LLM"; empty: it has none."""
    chooses_devices: ClassVar[bool] = False
    """Whether it chooses among the visible devices itself; `--device` is then refused."""
    opens_unloaded: ClassVar[bool] = False
    """Whether `open` only checks the checkpoint, which is loaded on first use. A run then opens all of its
    checkpoints before it begins, so that one that cannot be served is refused at once."""
    extends_positions: ClassVar[bool] = False
    """Whether it reads more positions than a config states (`EngineSettings.max_length`), and says so in its
    fingerprint."""
    rounds: ClassVar[bool] = False
    """Whether it runs checkpoints whose weights or states are rounded (`Precision`)."""

    @classmethod
    @abstractmethod
    def open(cls, path: str, settings: EngineSettings) -> Engine:
        """Make the engine of a checkpoint.

        Args:
            path: hub id, folder, GGUF file or `pocket`.
            settings: how it is to run.

        Raises:
            CheckpointError: a checkpoint that cannot be loaded.
            ConfigError: a checkpoint or an argument that this engine does not support.
            MissingDependencyError: a package that this engine needs is not installed.
        """

    @classmethod
    def gpus(cls, arguments: Mapping[str, Any]) -> int:
        """Return how many GPUs one checkpoint takes with these arguments, if it runs on GPUs."""
        return 1

    @classmethod
    def token_times(
        cls,
        config: "PreTrainedConfig",
        tokenizer: Any,
        settings: EngineSettings,
        *,
        parameters: int,
        prompt_tokens: int,
        num_responses: int,
    ) -> TokenTimes | None:
        """Estimate its speed before a run, for `--dry-run`; None if that is not possible.

        Args:
            config, tokenizer: of the model.
            settings: how it is to run.
            parameters: number of parameters.
            prompt_tokens: typical prompt length.
            num_responses: number of generations.
        """
        return None

    notice: str = ""
    """What the records of a run say about it, such as why it runs in place of the engine that was chosen."""

    @property
    @abstractmethod
    def label(self) -> str:
        """Name of its checkpoint in reports."""

    def benchmark(self) -> "Benchmark":
        """What measures the checkpoint's speed and memory in this engine, for `evalsuite bench`.

        Raises:
            ConfigError: this engine has no benchmark.
        """
        raise ConfigError(f"engine {self.name} has no benchmark; choose another --engine")


def _validate(kind: type[EngineType]) -> type[EngineType]:
    if not (isinstance(kind, type) and issubclass(kind, EngineType)):
        raise TypeError("it must be a class derived from evalsuite.models.inference.EngineType")
    if not isinstance(getattr(kind, "display_name", None), str):
        raise TypeError(f"{kind.__name__}.display_name must be a string")
    missing = [name for name in ("score", "generate", "close") if not callable(getattr(kind, name, None))]
    if "open" not in {name for each in kind.__mro__ if each is not EngineType for name in vars(each)}:
        missing.append("open")
    if missing:
        raise TypeError(f"{kind.__name__} lacks {', '.join(missing)}")
    return kind


ENGINES: ClassRegistry[EngineType] = ClassRegistry("engine", group="evalsuite.engines", validate=_validate)
"""Name → engine; `evalsuite.models.engines.ENGINES` has evalsuite's own, too."""
