"""Files of measured kernel configurations: one per device, shipped with the package or made by `--autotune`.

{"schema": 1, "device": "NVIDIA H200", "versions": {"triton": "3.7.1", …},
 "kernels": {"chunk_fwd_kernel_o": [{"key": {"K": 64, …, "dtypes": ["bfloat16", …]},
                                     "config": {"BK": 64, "num_warps": 4, "num_stages": 3}, "ms": 0.11}]}}
"""

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from evalsuite.foundation import ConfigError, parse_json, write_text

SCHEMA = 1
FOLDER = Path(__file__).parent
"""The measurements that are shipped, `<device>.json`."""
COUNTS = ("B", "H", "HV", "NB", "T")
"""Arguments that count programs (batch, heads, tokens) and do not change the work of one."""


def device_file(device: str) -> Path | None:
    """The shipped measurements for a device, by the name that CUDA gives it; None if there are none."""
    path = FOLDER / (re.sub(r"[^a-z0-9]+", "_", device.lower()).strip("_") + ".json")
    return path if path.is_file() else None


@dataclass
class MeasuredConfigs:
    """Measured configurations of one device.

    Args:
        versions: package → version with which they were measured.
        kernels: function name → entries with `key`, `config` and `ms` (None: not recorded).
    """

    device: str
    versions: dict[str, str]
    kernels: dict[str, list[dict[str, Any]]] = field(default_factory=dict)

    @classmethod
    def load(cls, path: Path) -> "MeasuredConfigs":
        """Read a file.

        Raises:
            ConfigError: it is missing, not JSON, of another schema, or an entry is malformed.
        """
        what = f"kernel configurations {path}"
        way_out = "make one with `evalsuite distill … --autotune FILE`"
        try:
            value = parse_json(path.read_bytes())
        except FileNotFoundError:
            raise ConfigError(f"{what}: no such file; {way_out}") from None
        except (OSError, RecursionError, ValueError) as error:
            raise ConfigError(f"{what}: not readable as JSON ({error}); {way_out}") from None
        if not isinstance(value, dict) or value.get("schema") != SCHEMA:
            found = value.get("schema") if isinstance(value, dict) else type(value).__name__
            raise ConfigError(f"{what}: schema is {found}, not {SCHEMA}; {way_out}")
        kernels = value.get("kernels")
        if not isinstance(kernels, dict):
            raise ConfigError(f"{what}: 'kernels' is missing; {way_out}")
        for kernel, entries in kernels.items():
            for number, entry in enumerate(entries if isinstance(entries, list) else [None]):
                if not _is_entry(entry):
                    raise ConfigError(
                        f"{what}: kernels.{kernel}[{number}] needs a 'key' with 'dtypes' and a "
                        f"'config' with 'num_warps' and 'num_stages', not {json.dumps(entry)}; {way_out}"
                    )
        return cls(str(value.get("device", "")), dict(value.get("versions", {})), kernels)

    def save(self, path: Path) -> None:
        """Write the file, one entry per line."""
        lines = []
        for kernel in sorted(self.kernels):
            entries = ",\n".join("   " + json.dumps(entry) for entry in self.kernels[kernel])
            lines.append(f"  {json.dumps(kernel)}: [\n{entries}\n  ]")
        head = json.dumps({"schema": SCHEMA, "device": self.device, "versions": self.versions}, indent=1)
        write_text(path, head.removesuffix("\n}") + ',\n "kernels": {\n' + ",\n".join(lines) + "\n }\n}\n")

    def has(self, kernel: str, key: Mapping[str, Any]) -> bool:
        """Whether exactly this key was measured."""
        return any(entry["key"] == key for entry in self.kernels.get(kernel, []))

    def add(self, kernel: str, key: Mapping[str, Any], config: Mapping[str, Any], ms: float | None) -> None:
        """Add a measurement, in milliseconds."""
        rounded = None if ms is None else float(f"{ms:.4g}")
        self.kernels.setdefault(kernel, []).append({"key": dict(key), "config": dict(config), "ms": rounded})

    def find(self, kernel: str, key: Mapping[str, Any]) -> Iterator[tuple[dict[str, Any], float]]:
        """Configurations of the entries whose key differs in numbers only, nearest first.

        With each, the distance of its shape in octaves; 0 for the same class: all but `COUNTS` are equal.
        """
        near = []
        for entry in self.kernels.get(kernel, []):
            distance = _distance(entry["key"], key)
            if distance is not None:
                near.append((*distance, entry["config"]))
        for shape, _, config in sorted(near, key=lambda each: each[:2]):
            yield config, shape


def _is_entry(entry: Any) -> bool:
    if not isinstance(entry, dict) or not isinstance(entry.get("key"), dict):
        return False
    config = entry.get("config")
    launch = {"num_warps", "num_stages"}
    return "dtypes" in entry["key"] and isinstance(config, dict) and launch <= config.keys()


def _distance(measured: Mapping[str, Any], wanted: Mapping[str, Any]) -> tuple[float, float] | None:
    """Octaves between two keys, of the shape class and of the counts; None if they differ in kind."""
    if measured.keys() != wanted.keys():
        return None
    shape = counts = 0.0
    for name, value in wanted.items():
        other = measured[name]
        if value == other:
            continue
        if name == "IS_VARLEN" or (name == "dtypes" and _computed(value) == _computed(other)):
            # Packed sequences come with indices of theirs; the work of a program is the same.
            counts += 1
        elif not _is_size(value) or not _is_size(other):
            return None
        elif name in COUNTS:
            counts += abs(math.log2(value / other))
        else:
            shape += abs(math.log2(value / other))
    return shape, counts


def _computed(dtypes: Sequence[str]) -> list[str]:
    """Dtypes of the tensors that are not indices."""
    return [dtype for dtype in dtypes if not dtype.startswith("int")]


def _is_size(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0
