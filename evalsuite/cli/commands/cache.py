"""`evalsuite cache`: the responses that runs share."""

import argparse

from evalsuite.foundation.parser import command


def add(commands: argparse._SubParsersAction) -> None:
    """Add the command."""
    parser = command(
        commands,
        "cache",
        help="show or clear the responses that runs in different folders share",
        example="  evalsuite cache\n  evalsuite cache --prune 30\n  evalsuite cache --clear",
    )
    what = parser.add_mutually_exclusive_group()
    what.add_argument(
        "--prune",
        type=float,
        metavar="DAYS",
        help="remove responses of models that no run used for DAYS days",
    )
    what.add_argument("--clear", action="store_true", help="remove all responses; runs keep their own")
    parser.set_defaults(call=run)


def run(arguments: argparse.Namespace) -> int:
    """Print where the cache lies and what is in it, after removing what is to be removed."""
    from evalsuite.evaluation.run_paths import shared_folder
    from evalsuite.foundation import ConfigError
    from evalsuite.models.inference.shared_responses import SharedResponses

    if arguments.prune is not None and not arguments.prune >= 0:
        raise ConfigError(f"--prune {arguments.prune:g}: a number of days, at least 0")
    folder = shared_folder()
    if folder is None:
        print("there is no cache: EVALSUITE_CACHE is empty")
        return 0
    shared = SharedResponses(folder)
    if arguments.clear or arguments.prune is not None:
        removed = shared.remove(unused_days=arguments.prune or 0.0)
        print(f"removed {_size(sum(log.bytes for log in removed))} of responses")
    logs = shared.logs()
    models = {log.path.name.split(".")[0] for log in logs}
    print(f"{folder}: {_size(sum(log.bytes for log in logs))} of responses, {len(models)} fingerprints")
    return 0


def _size(count: int) -> str:
    return f"{count / 2**20:,.1f} MiB"
