"""Precision settings of a checkpoint: `PATH:weights=int8:state=bf16` names a variant of PATH.

Importing this module is cheap.
"""

import re
from dataclasses import asdict, dataclass
from pathlib import Path

from evalsuite.foundation import CheckpointError, content_hash, nearest

KINDS = {"weights": ("int8", "fp8"), "state": ("bf16", "fp8", "int8")}
"""Setting → its values (see `evalsuite.models.ops.quantization`)."""
_SETTINGS = re.compile(r"(?P<path>.+?)(?P<settings>(?::\w+=[^:/\\]*)+)")


@dataclass(frozen=True, slots=True)
class Precision:
    """To what a checkpoint's weights and recurrent states are rounded; None: as they are.

    It is false if nothing is rounded.
    """

    weights: str | None = None
    state: str | None = None

    def __bool__(self) -> bool:
        return bool(self.stated)

    def __str__(self) -> str:
        """Such as `weights=int8:state=bf16`."""
        return ":".join(f"{name}={kind}" for name, kind in self.stated.items())

    @property
    def stated(self) -> dict[str, str]:
        """Setting → value of those that are set, in a fixed order."""
        return {name: kind for name, kind in asdict(self).items() if kind is not None}

    def label(self, name: str) -> str:
        """Label of the variant of a checkpoint of this name: `kda (int8 weights, bf16 state)`."""
        settings = ", ".join(f"{kind} {part}" for part, kind in self.stated.items())
        return f"{name} ({settings})" if settings else name

    def weights_id(self, weights_id: str) -> str:
        """Identifier of the variant of a checkpoint with this `weights_id`."""
        return content_hash({"weights": weights_id, "precision": self.stated}) if self else weights_id


EXACT = Precision()
"""Nothing is rounded."""


def split_precision(source: str) -> tuple[str, Precision]:
    """Split a checkpoint's name from its settings.

    Raises:
        CheckpointError: an unknown, repeated or invalid setting; or both the name as it stands and the name
            without the settings are files here.
    """
    found = _SETTINGS.fullmatch(source)
    if found is None:
        return source, EXACT
    if _exists(source):
        if _exists(found["path"]):
            raise CheckpointError(
                f"{source}: fits a file of this name and {found['path']} with settings; rename one of them"
            )
        return source, EXACT
    settings: dict[str, str] = {}
    for setting in found["settings"][1:].split(":"):
        name, _, kind = setting.partition("=")
        if name not in KINDS:
            raise CheckpointError(f"{source}: unknown setting '{name}'{nearest(name, KINDS)}")
        if kind not in KINDS[name]:
            raise CheckpointError(f"{source}: {name} = '{kind}': must be one of {', '.join(KINDS[name])}")
        if name in settings:
            raise CheckpointError(f"{source}: {name} is set twice")
        settings[name] = kind
    return found["path"], Precision(**settings)


def _exists(path: str) -> bool:
    try:
        return Path(path).expanduser().exists()
    except (OSError, RuntimeError, ValueError):
        return False
