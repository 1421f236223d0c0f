"""Responses that runs in different folders share: one log per fingerprint and verb, as in a run folder.

A fingerprint covers weights, dtype, engine and versions, so that no response of another model or kernel is
ever served. The logs are a cache: a line that cannot be read is skipped, and of two responses to one request
the first counts. Errors are not stored.
"""

import json
import os
import re
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from evalsuite.foundation import append_jsonl
from evalsuite.models.inference.requests import Response
from evalsuite.models.inference.response_cache import Key, response_from_dict

_LOG = re.compile(r"[0-9a-f]{16}\.(score|generate)\.jsonl")


@dataclass(frozen=True, slots=True)
class SharedLog:
    """One log of the cache."""

    path: Path
    bytes: int
    used: float
    """When it was last read or written, in seconds since the epoch."""


class SharedResponses:
    """The shared responses in one folder, which is created with the first response."""

    def __init__(self, folder: Path) -> None:
        self.folder = Path(folder)
        self._known: dict[str, set[Key]] = {}

    def known(self, fingerprint: str, keys: Collection[Key]) -> dict[Key, Response]:
        """Return the shared responses of a fingerprint among those to `keys`."""
        wanted, found = set(keys), dict[Key, Response]()
        for verb in {key[0] for key in wanted}:
            path = self._path(fingerprint, verb)
            for key, value in _lines(path, verb):
                if key in wanted and key not in found:
                    with suppress(KeyError, TypeError, ValueError):
                        response = response_from_dict(verb, value)
                        if not response.error:
                            found[key] = response
            with suppress(OSError):
                os.utime(path)
        return found

    def add(self, fingerprint: str, responses: Sequence[tuple[Key, Response]]) -> None:
        """Append responses that this object has not added yet.

        Raises:
            RunFolderError: the folder cannot be written.
        """
        known = self._known.setdefault(fingerprint, set())
        for verb in ("score", "generate"):
            new = [
                (key, response)
                for key, response in responses
                if key[0] == verb and key not in known and not response.error
            ]
            append_jsonl(
                self._path(fingerprint, verb),
                [{"key": key[1:], "response": response.to_dict()} for key, response in new],
            )
            known.update(key for key, _ in new)

    def logs(self) -> list[SharedLog]:
        """Return the logs, the one that was used last first."""
        found = []
        for path in self.folder.glob("*.jsonl"):
            with suppress(OSError):
                if _LOG.fullmatch(path.name):
                    stat = path.stat()
                    found.append(SharedLog(path, stat.st_size, stat.st_mtime))
        return sorted(found, key=lambda log: -log.used)

    def remove(self, *, unused_days: float = 0.0) -> list[SharedLog]:
        """Remove logs that were not used for some days, and return them. Raises OSError."""
        limit = time.time() - unused_days * 86400
        removed = [log for log in self.logs() if log.used <= limit]
        for log in removed:
            log.path.unlink(missing_ok=True)
        return removed

    def _path(self, fingerprint: str, verb: str) -> Path:
        return self.folder / f"{fingerprint}.{verb}.jsonl"


def _lines(path: Path, verb: str) -> Iterator[tuple[Key, dict[str, object]]]:
    """Yield key and response of every line that has them."""
    try:
        with open(path, "rb") as file:
            for line in file:
                with suppress(ValueError, TypeError, KeyError, RecursionError):
                    row = json.loads(line)
                    hashed, sampling, seed = row["key"]
                    yield (verb, hashed, sampling, seed), row["response"]
    except OSError:
        return
