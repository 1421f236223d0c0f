"""The responses of a run, with the rounding of the engines that computed them."""

from pathlib import Path

from evalsuite.evaluation.run_paths import responses_folder
from evalsuite.foundation import DataError
from evalsuite.models.inference.response_cache import ResponseCache
from evalsuite.models.inference.settling import rounding
from evalsuite.reports.run import environment_path, read_environment


def open_responses(run: Path) -> ResponseCache:
    """Return the responses of a run.

    Raises:
        DataError: a log of no engine of the run; and as `ResponseCache`.
    """
    engines = read_environment(run).get("engines", {})
    tolerances = {each["fingerprint"]: rounding(each) for each in engines.values()}
    for log in sorted(responses_folder(run).glob("*.jsonl")):
        if log.name.split(".")[0] not in tolerances:
            raise DataError(
                f"{log}: {environment_path(run)} names no engine with this fingerprint; restore that file, "
                "or remove the log"
            )
    return ResponseCache(responses_folder(run), tolerances)
