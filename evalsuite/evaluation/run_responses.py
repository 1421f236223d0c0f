"""The responses of a run, with the rounding of the engines that computed them."""

from pathlib import Path

from evalsuite.evaluation.run_paths import responses_folder
from evalsuite.foundation import DataError
from evalsuite.models.inference.response_cache import ResponseCache
from evalsuite.models.inference.settling import rounding
from evalsuite.reports.run import Manifest, manifest_path


def open_responses(run: Path, manifest: Manifest) -> ResponseCache:
    """Return the responses of a run with this manifest.

    Raises:
        DataError: a log of no engine of the run; and as `ResponseCache`.
    """
    tolerances = {each.fingerprint: rounding(each.versions) for each in manifest.engines.values()}
    for log in sorted(responses_folder(run).glob("*.jsonl")):
        if log.name.split(".")[0] not in tolerances:
            raise DataError(
                f"{log}: {manifest_path(run)} names no engine with this fingerprint; restore that file, "
                "or remove the log"
            )
    return ResponseCache(responses_folder(run), tolerances)
