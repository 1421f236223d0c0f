"""Options and arguments of earlier versions, refused with the word that replaces them."""

from collections.abc import Sequence

OPTIONS: dict[str, dict[str, str]] = {
    "run": {
        "--render-only": "--build-only",
        "--answer-only": "--infer-only",
        "--judge-only": "--score-only",
        "--pack": "--export-shard",
        "--add": "--merge-shards",
    },
    "compare": {"--published": "--redact", "--answers": "--export-samples", "--least": "--min-coverage"},
}
"""Command → retired option → its replacement."""
ARGUMENTS: dict[str, dict[str, str]] = {
    "bench": {name: f"make bench-{name}" for name in ("engine", "mixers", "distill")},
}
"""Command → retired first argument → the command that replaces it."""


def refusal(argv: Sequence[str]) -> str | None:
    """Return why a command line of an earlier version is refused; None if it is not.

    Args:
        argv: the command and its arguments.
    """
    if not argv:
        return None
    command, rest = argv[0], argv[1:]
    for token in rest:
        option = token.partition("=")[0]
        if option in OPTIONS.get(command, {}):
            return f"{option} is now {OPTIONS[command][option]}"
    if rest and rest[0] in ARGUMENTS.get(command, {}):
        return f"'{command} {rest[0]}' is now '{ARGUMENTS[command][rest[0]]}', in a checkout of evalsuite"
    return None
