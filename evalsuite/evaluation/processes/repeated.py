"""A value that goes to a process again and again: pickled once, and unpickled once by who gets it again."""

import pickle
import uuid
from typing import Any, Generic, TypeVar

Value = TypeVar("Value", covariant=True)


class Repeated(Generic[Value]):
    """Holds a `value` that nobody changes; a copy in another process holds the copy of the value there."""

    def __init__(self, value: Value) -> None:
        self.value = value
        self._packed: tuple[str, bytes] | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        if self._packed is None:
            self._packed = uuid.uuid4().hex, pickle.dumps(self.value, pickle.HIGHEST_PROTOCOL)
        return _received, self._packed


_last: dict[str, Repeated[Any]] = {}
"""What this process has received last, by its name."""


def _received(name: str, packed: bytes) -> Repeated[Any]:
    if name not in _last:
        _last.clear()
        _last[name] = Repeated(pickle.loads(packed))
    return _last[name]
