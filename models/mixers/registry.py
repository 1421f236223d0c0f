"""The registry of mixers, to which other packages add by the entry-point group `evalsuite.mixers`.

@MIXERS.register("gla")
class GLA(RecurrentMixer): ...
"""

import dataclasses

from evalsuite.foundation.registry import ClassRegistry
from evalsuite.models.mixers.interface import Mixer, StateKind


def _validate(kind: type[Mixer]) -> type[Mixer]:
    if not (isinstance(kind, type) and issubclass(kind, Mixer)):
        raise TypeError("it must be a class derived from evalsuite.models.mixers.Mixer")
    options = getattr(kind, "Options", None)
    for attribute, what, fits in (
        ("display_name", "a string", isinstance(getattr(kind, "display_name", None), str)),
        ("Options", "a dataclass", isinstance(options, type) and dataclasses.is_dataclass(options)),
        ("state_kind", "a StateKind", isinstance(getattr(kind, "state_kind", None), StateKind)),
    ):
        if not fits:
            raise TypeError(f"{kind.__name__}.{attribute} must be {what}")
    return kind


MIXERS: ClassRegistry[Mixer] = ClassRegistry("mixer", group="evalsuite.mixers", validate=_validate)
