"""Damages of a file, for tests that hold every loader to one rule: read it as it was, or refuse it by name.

`DAMAGES` holds functions that change a file in place. `HARMLESS` names those after which it says the same.
"""

import gzip
import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

Damage = Callable[[Path], None]


def _content(change: Callable[[bytes], bytes]) -> Damage:
    def apply(path: Path) -> None:
        path.write_bytes(change(path.read_bytes()))

    return apply


def _cut(share: float) -> Damage:
    return _content(lambda data: data[: int(len(data) * share)])


def _flip(share: float) -> Damage:
    def change(data: bytes) -> bytes:
        at = min(int(len(data) * share), len(data) - 1)
        return data[:at] + bytes([data[at] ^ 0x80]) + data[at + 1 :]

    return _content(change)


def _other_name(name: Callable[[str], str]) -> Damage:
    def apply(path: Path) -> None:
        target = path.with_name(name(path.name))
        target.parent.mkdir(parents=True, exist_ok=True)
        path.rename(target)

    return apply


def _compressed(path: Path) -> None:
    path.with_name(path.name + ".gz").write_bytes(gzip.compress(path.read_bytes()))
    path.unlink()


def _dangling(path: Path) -> None:
    path.unlink()
    path.symlink_to(path.with_name("no-such-file"))


def _folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def _moved_down(path: Path) -> None:
    target = path.parent / "moved" / "three" / "down" / path.name
    target.parent.mkdir(parents=True)
    shutil.move(path, target)


DAMAGES: Mapping[str, Damage] = {
    "empty": _content(lambda data: b""),
    "blank": _content(lambda data: b"\n\n"),
    "NUL": _content(lambda data: b"\0" * 200),
    "NUL at its end": _content(lambda data: data[: len(data) // 2] + b"\0" * (len(data) - len(data) // 2)),
    "garbage": _content(lambda data: bytes(range(256))),
    "HTML": _content(lambda data: b"<!doctype html><title>404</title>"),
    "LFS pointer": _content(
        lambda data: b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 7\n"
    ),
    "cut after a byte": _content(lambda data: data[:1]),
    "cut at a quarter": _cut(0.25),
    "cut in half": _cut(0.5),
    "cut at nine tenths": _cut(0.9),
    "last bytes cut": _content(lambda data: data.rstrip()[:-1]),
    "byte flipped early": _flip(0.01),
    "byte flipped in the middle": _flip(0.5),
    "byte flipped late": _flip(0.99),
    "twice": _content(lambda data: data + data),
    "BOM": _content(lambda data: b"\xef\xbb\xbf" + data),
    "UTF-16": _content(lambda data: data.decode(errors="replace").encode("utf-16")),
    "number": _content(lambda data: b"7"),
    "null": _content(lambda data: b"null"),
    "list": _content(lambda data: b"[1, 2]"),
    "empty object": _content(lambda data: b"{}"),
    "other object": _content(lambda data: b'{"unheard": {"of": 1}}'),
    "deep": _content(lambda data: b"[" * 5_000),
    "deep objects": _content(lambda data: b'{"a": ' * 5_000),
    "long number": _content(lambda data: b'{"a": ' + b"9" * 6_000 + b"}"),
    "gzip under its name": _content(gzip.compress),
    "gzip": _compressed,
    "renamed": _other_name(lambda name: name + ".bak"),
    "renamed as a copy": _other_name(lambda name: f"Copy of {name}"),
    "missing": lambda path: path.unlink(),
    "dangling link": _dangling,
    "folder": _folder,
    "moved down": _moved_down,
}
"""Damage by name: each changes the file at a path, or what lies there."""

Change = Callable[[Any], Any]


def first_number(value: Any, new: Any) -> Any:
    """Copy a JSON value with its first number, in depth, replaced."""
    found = False

    def walk(each: Any) -> Any:
        nonlocal found
        if isinstance(each, int | float) and not isinstance(each, bool) and not found:
            found = True
            return new
        if isinstance(each, dict):
            return {key: walk(inner) for key, inner in each.items()}
        return [walk(inner) for inner in each] if isinstance(each, list) else each

    return walk(value)


def _json(change: Change, **options: Any) -> Damage:
    """Rewrite a JSON file, or each line of a JSON-lines file."""

    def apply(path: Path) -> None:
        lines = path.read_text().splitlines() if path.suffix == ".jsonl" else [path.read_text()]
        path.write_text("\n".join(json.dumps(change(json.loads(line)), **options) for line in lines) + "\n")

    return apply


def _repeated_keys(path: Path) -> None:
    """Write the first key of each object twice, with another value before."""
    lines = path.read_text().splitlines() if path.suffix == ".jsonl" else [path.read_text()]
    written = []
    for line in lines:
        first = next(iter(json.loads(line)))
        written.append("{" + json.dumps(first) + ": 0, " + line.strip().removeprefix("{"))
    path.write_text("\n".join(written) + "\n")


JSON_DAMAGES: Mapping[str, Damage] = {
    "sorted keys": _json(lambda value: value, sort_keys=True),
    "reversed keys": _json(lambda value: dict(reversed(value.items())) if isinstance(value, dict) else value),
    "escaped": _json(lambda value: value, ensure_ascii=True),
    "separators": _json(lambda value: value, separators=(" ,", " : ")),
    "repeated keys": _repeated_keys,
    "in a list": _json(lambda value: [value]),
    "in an object": _json(lambda value: {"data": value}),
    "NaN": _json(lambda value: first_number(value, float("nan"))),
    "infinity": _json(lambda value: first_number(value, float("inf"))),
    "huge number": _json(lambda value: first_number(value, 10**400)),
    "negative number": _json(lambda value: first_number(value, -1)),
    "number as text": _json(lambda value: first_number(value, "1")),
    "number as null": _json(lambda value: first_number(value, None)),
}
"""Damage of JSON objects, and of JSON lines, by name."""

HARMLESS = frozenset({"sorted keys", "reversed keys", "escaped", "separators"})
"""What changes no value: a loader reads such a file as before."""
