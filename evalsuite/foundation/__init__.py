"""Leaf package that every room may import; it depends on no other room and on no heavy package.

Errors with exit codes, atomic files, content hashes, strict YAML and the progress bar.
"""

from evalsuite.foundation.counts import counted
from evalsuite.foundation.errors import (
    CheckpointError,
    ConfigError,
    DataError,
    EvalsuiteError,
    MissingDependencyError,
    RunFolderError,
    nearest,
)
from evalsuite.foundation.files import (
    append_jsonl,
    is_temporary,
    locked,
    parse_json,
    read_json,
    read_jsonl,
    write_bytes,
    write_csv,
    write_json,
    write_jsonl,
    write_text,
)
from evalsuite.foundation.hashing import canonical_json, content_hash, file_hash
from evalsuite.foundation.progress import progress
from evalsuite.foundation.terminal import printable

__all__ = [
    "CheckpointError",
    "ConfigError",
    "DataError",
    "EvalsuiteError",
    "MissingDependencyError",
    "RunFolderError",
    "append_jsonl",
    "canonical_json",
    "content_hash",
    "counted",
    "file_hash",
    "is_temporary",
    "locked",
    "nearest",
    "parse_json",
    "printable",
    "progress",
    "read_json",
    "read_jsonl",
    "write_bytes",
    "write_csv",
    "write_json",
    "write_jsonl",
    "write_text",
]
