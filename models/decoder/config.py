"""Student configuration: the teacher's config, one mixer per layer, and mixer options."""

from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import fields
from functools import cache
from pathlib import Path
from typing import Any

from transformers import CONFIG_MAPPING, AutoConfig, PreTrainedConfig
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from evalsuite.foundation import CheckpointError, ConfigError, nearest, write_text
from evalsuite.models.decoder.families import family_of, is_supported
from evalsuite.models.mixers import MIXERS, StateKind, parse_options

SCHEMA = 2
"""Version of the config fields and parameter names. Schema 1 had other names of mixer parameters."""

MODULE = "modeling_evalsuite_student"
"""A module in a student's folder, which transformers imports if it loads the folder with
`trust_remote_code=True`. It imports evalsuite, which must be installed."""
SOURCE = '''"""A student of evalsuite: install evalsuite, and load this folder with trust_remote_code=True."""

from evalsuite.models.student import StudentConfig, StudentForCausalLM, StudentModel

__all__ = ["StudentConfig", "StudentForCausalLM", "StudentModel"]
'''
AUTO_MAP = {
    "AutoConfig": f"{MODULE}.StudentConfig",
    "AutoModel": f"{MODULE}.StudentModel",
    "AutoModelForCausalLM": f"{MODULE}.StudentForCausalLM",
}


@cache
def teacher_fields(model_type: str) -> frozenset[str]:
    """Fields of a teacher's config, without those of every config."""
    own = frozenset(each.name for each in fields(CONFIG_MAPPING[model_type]))
    return own - {each.name for each in fields(PreTrainedConfig)}


class StudentConfig(PreTrainedConfig):
    """`teacher` is the teacher's config as a dictionary; `mixers` has one mixer name per layer.

    `softmax_heads` has the query heads that stay softmax in recurrent layers, by layer, and `mixer_packages`
    names the package of each mixer of another package; both are absent where there are none.

    Fields of the teacher's config (`vocab_size`, `pad_token_id`, `rope_parameters`, …) are read from `base`,
    its config object, and written to it: the value that is set is the one that is built and saved.
    `layer_types` and `sliding_window` follow from the mixers.
    """

    model_type = "evalsuite_student"
    is_teacher: bool = False
    """Whether it is the config of a teacher (`of_teacher`), which is saved as transformers' own."""

    def __init__(
        self,
        teacher: dict[str, Any] | None = None,
        mixers: list[str] | None = None,
        mixer_options: dict[str, dict[str, Any]] | None = None,
        schema: int = SCHEMA,
        mixer_packages: dict[str, str] | None = None,
        softmax_heads: Mapping[int, Sequence[int]] | None = None,
        **kwargs: Any,
    ) -> None:
        if schema != SCHEMA:
            problem = (
                f"is newer than this evalsuite supports ({SCHEMA}); update evalsuite"
                if isinstance(schema, int) and schema > SCHEMA
                else f"is not supported: since schema {SCHEMA} mixer parameters have other names; "
                "make the student again with `evalsuite distill` and its recipe"
            )
            raise CheckpointError(f"config.json of a student: schema {schema} {problem}")
        # transformers builds an empty config to determine the defaults.
        base = base_config(teacher) if teacher else None
        known = frozenset() if base is None else teacher_fields(base.model_type)
        changed = {name: kwargs.pop(name) for name in known & kwargs.keys()}
        super().__init__(**kwargs)
        self._given = deepcopy(teacher or {})
        self.mixers = list(mixers or [])
        self.mixer_options = {name: dict(values) for name, values in (mixer_options or {}).items()}
        self.schema = schema
        if mixer_packages:
            self.mixer_packages = dict(mixer_packages)
        if softmax_heads:
            # JSON has no numbers as keys.
            self.softmax_heads = {int(layer): list(heads) for layer, heads in softmax_heads.items()}
        if base is not None:
            self.base = base
            for name, value in changed.items():
                setattr(base, name, value)
            self._check()

    @classmethod
    def of_teacher(cls, base: PreTrainedConfig) -> "StudentConfig":
        """A teacher's config as that of a decoder whose mixers are all `softmax`.

        Raises:
            ConfigError: an unsupported architecture.
        """
        config = cls(base.to_dict(), ["softmax"] * base.num_hidden_layers)
        config.base, config.is_teacher, config.dtype = base, True, base.dtype
        config._attn_implementation, config.name_or_path = base._attn_implementation, base.name_or_path
        return config

    def _check(self) -> None:
        layers = self.base.num_hidden_layers
        if len(self.mixers) != layers:
            raise ConfigError(f"config.json of a student: {len(self.mixers)} mixers for {layers} layers")
        packages: dict[str, str] = getattr(self, "mixer_packages", {})
        for layer, name in enumerate(self.mixers):
            if name not in MIXERS and name in packages:
                raise ConfigError(
                    f"layer {layer}: mixer '{name}' is defined by {packages[name]}, which is not installed "
                    "here; install it"
                )
            MIXERS.get_or_raise(name, f"layer {layer}")
            if MIXERS.origin(name) != "evalsuite" and name not in packages:
                self.mixer_packages = packages = {**packages, name: MIXERS.origin(name)}
        if unused := next((name for name in self.mixer_options if name not in self._kinds), None):
            raise ConfigError(
                f"options for mixer '{unused}', which no layer uses{nearest(unused, self._kinds)}"
            )
        self._options()
        for layer, heads in self.softmax_heads.items():
            if not 0 <= layer < layers:
                raise ConfigError(f"softmax_heads: there are layers 0 to {layers - 1}, not {layer}")
            if not heads:
                raise ConfigError(f"softmax_heads: layer {layer} has none; leave it out")

    def _options(self) -> dict[str, Any]:
        """Mixer → its options."""
        return {
            name: parse_options(MIXERS[name].Options, self.mixer_options.get(name, {}), name)
            for name in self._kinds
        }

    @property
    def _kinds(self) -> dict[str, None]:
        """The mixers that layers or parts of them have."""
        return dict.fromkeys([*self.mixers, *(["softmax"] if self.softmax_heads else [])])

    @property
    def plugins(self) -> str:
        """The installed packages that define its mixers, with versions; empty if all are ours."""
        return ", ".join(sorted({MIXERS.origin(name) for name in self.mixers} - {"evalsuite"}))

    @property
    def windows(self) -> dict[str, int]:
        """Mixer → its window in tokens, that of a sliding window or next to a recurrence."""
        return {name: size for name, each in self._options().items() if (size := getattr(each, "window", 0))}

    @property
    def is_recurrent(self) -> bool:
        """Whether no layer has positions: neither softmax attention nor a rotary embedding."""
        return all(
            MIXERS[name].state_kind == StateKind.RECURRENT
            and not (getattr(each, "rotary", False) or getattr(each, "window", 0))
            for name, each in self._options().items()
        )

    @property
    def teacher(self) -> dict[str, Any]:
        """The teacher's config as it was given, with the fields of `base` that were changed since."""
        if not self._given:
            return {}
        given, current = vars(base_config(self._given)), vars(self.base)
        names = teacher_fields(self.base.model_type)
        return self._given | {
            name: deepcopy(current[name]) for name in sorted(names) if current[name] != given[name]
        }

    def __getattr__(self, name: str) -> Any:
        # Called only for attributes that the student does not have itself.
        if name == "softmax_heads":
            return {}
        base = self.__dict__.get("base")
        if base is not None and name == "layer_types":
            return [kind for kind, _ in self._attention()]
        if base is not None and name == "sliding_window":
            windows = {window for _, window in self._attention()}
            return windows.pop() if len(windows) == 1 else None
        if base is not None and name in teacher_fields(base.model_type):
            return getattr(base, name)
        raise AttributeError(f"{type(self).__name__} has no attribute '{name}'")

    def __setattr__(self, name: str, value: Any) -> None:
        base = self.__dict__.get("base")
        if base is not None and name in teacher_fields(base.model_type):
            setattr(base, name, value)
        else:
            super().__setattr__(name, value)

    def save_pretrained(self, save_directory: Any, push_to_hub: bool = False, **kwargs: Any) -> None:
        """Save config.json; of a student with the module by which transformers loads it from evalsuite."""
        if self.is_teacher:
            self.base.architectures = [MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[self.base.model_type]]
            self.base.dtype = self.dtype
            self.base.save_pretrained(save_directory, push_to_hub, **kwargs)
            return
        folder = Path(save_directory)
        folder.mkdir(parents=True, exist_ok=True)
        write_text(folder / f"{MODULE}.py", SOURCE)
        self.auto_map = AUTO_MAP
        super().save_pretrained(save_directory, push_to_hub, **kwargs)

    @classmethod
    def register_for_auto_class(cls, auto_class: Any = "AutoConfig") -> None:
        """Do nothing: transformers would copy our source files into every folder saved afterwards."""

    def validate(self) -> None:
        """Check the fields of `base` by its own `layer_types`: by a student's, transformers takes rotary
        settings per kind of layer for those of one kind, and completes them."""
        if (base := self.__dict__.get("base")) is not None:
            base.validate()

    def to_dict(self) -> dict[str, Any]:
        """The fields to save: those of a teacher's own config, or a student's with `base` as `teacher`."""
        if self.is_teacher:
            return self.base.to_dict()
        values: dict[str, Any] = super().to_dict()
        values.pop("base", None)
        values.pop("_given", None)
        return values | {"teacher": self.teacher}

    def window(self, layer: int) -> int | None:
        """Sliding window of the teacher's layer (Mistral, some Qwen2); None for full attention."""
        width: int | None = getattr(self.base, "sliding_window", None)
        types: list[str] | None = getattr(self.base, "layer_types", None)
        return width if types is None or types[layer] == "sliding_attention" else None

    def _attention(self) -> Iterator[tuple[str, int | None]]:
        """transformers' name of what each layer remembers, and the window of a sliding one."""
        own = self.windows
        for layer, name in enumerate(self.mixers):
            name = "softmax" if layer in self.softmax_heads else name
            window = min(filter(None, (own.get(name), self.window(layer))), default=None)
            if StateKind.RECURRENT in MIXERS[name].state_kind:
                yield "linear_attention", None
            else:
                yield "sliding_attention" if window else "full_attention", window


def decoder_config(config: PreTrainedConfig) -> PreTrainedConfig:
    """A teacher's config of a supported family as a `StudentConfig`; others unchanged."""
    return StudentConfig.of_teacher(config) if is_supported(config) else config


def base_config(teacher: dict[str, Any]) -> PreTrainedConfig:
    """The teacher's config object from its dictionary.

    Raises:
        ConfigError: an unsupported architecture.
    """
    family_of(teacher.get("model_type", ""))
    # Nested settings would be shared with, and changed by, the config that is made of them.
    return AutoConfig.for_model(**deepcopy(teacher))
