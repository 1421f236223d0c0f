"""What vLLM's log says about a failure.

vLLM runs its engine core in a process of its own, and with tensor parallelism each worker too. The exception
that reaches the caller then only says that a process failed; the cause is a traceback in the log.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

CONTEXT = 4
"""Log lines shown."""
MAX_WIDTH = 240
"""Characters of a shown line; vLLM logs its whole configuration in one."""
MAX_MESSAGE_LINES = 4
"""Lines of an exception's message; those of compilers have pages."""

_LINE = re.compile(
    r"(?:\((?P<process>[^()]+ pid=\d+)\) )?"
    r"(?:(?P<level>[A-Z]+) \d\d-\d\d \d\d:\d\d:\d\d \[(?P<source>[^\]]*)\] ?)?(?P<text>.*)"
)
"""A line of vLLM's log: the process, unless it is the parent; the record's level and place; the text."""
_COLOR = re.compile("\x1b\\[[0-9;]*m")
_TRACEBACK = "Traceback (most recent call last):"


@dataclass(frozen=True, slots=True)
class LogLine:
    """A line of vLLM's log; `level` and `source` are empty for what a process printed itself."""

    process: str
    level: str
    source: str
    text: str


def describe_failure(log: str, error: str) -> str:
    """Describe a failure in a few lines: the cause, its place, and the log before it.

    The cause is the first exception that a process did not handle; later ones follow from it. If there is
    none, as after a crash in native code, it is `error`, and the end of the log is shown.

    Args:
        log: the process' log since the model began to load.
        error: the exception that reached the caller.
    """
    lines = list(_read_lines(log))
    start = next((i for i, line in enumerate(lines) if _begins_unhandled(line)), None)
    if start is None:
        return _join(error, lines[-CONTEXT:])
    process = lines[start].process
    before = [line for line in lines[:start] if line.process == process]
    place, message = _read_traceback([line for line in lines[start + 1 :] if line.process == process])
    where = f" ({process})" if process else ""
    return _join(f"{message or error}{where}", [*before[-CONTEXT:], LogLine(process, "", "", place)])


def _read_lines(log: str) -> Iterator[LogLine]:
    for line in _COLOR.sub("", log).split("\n"):
        # Progress bars return to the start of their line, and thereby lose their prefix here.
        match = _LINE.fullmatch(line.rstrip("\r").rpartition("\r")[2])
        assert match is not None
        if match["text"].strip():
            yield LogLine(*(part or "" for part in match.groups()))


def _begins_unhandled(line: LogLine) -> bool:
    return line.text == _TRACEBACK and line.level in {"", "ERROR", "CRITICAL"}


def _read_traceback(lines: Sequence[LogLine]) -> tuple[str, str]:
    """Return the innermost place of a traceback, and its exception with the message."""
    place, source = "", lines[0].source if lines else ""
    message: list[str] = []
    for line in lines:
        indented = line.text.startswith(" ")
        if not message and indented:
            place = line.text.strip() if line.text.startswith('  File "') else place
        elif line.source != source or line.text == _TRACEBACK or len(message) == MAX_MESSAGE_LINES:
            break
        else:
            message.append(line.text)
    return place, "\n".join(message)


def _join(summary: str, lines: Sequence[LogLine]) -> str:
    shown = (line.text if len(line.text) <= MAX_WIDTH else f"{line.text[:MAX_WIDTH]}…" for line in lines)
    return "\n".join([summary, *(f"  {text}" for text in shown if text)])
