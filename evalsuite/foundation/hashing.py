"""Content hashes that are equal on every machine."""

import hashlib
import json
from pathlib import Path
from typing import Any


def canonical_json(value: Any) -> str:
    """Return JSON with sorted keys and no spaces. NaN is refused."""
    return json.dumps(value, sort_keys=True, ensure_ascii=False, separators=(",", ":"), allow_nan=False)


def content_hash(value: Any, length: int = 16) -> str:
    """Return the first `length` hex digits of the SHA-256 of the canonical JSON of `value`."""
    return hashlib.sha256(canonical_json(value).encode()).hexdigest()[:length]


def file_hash(path: Path) -> str:
    """Return the SHA-256 of a file in hex, reading it in chunks."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
