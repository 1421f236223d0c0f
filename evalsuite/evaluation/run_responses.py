"""The responses of a run, with the rounding of the engines that computed them."""

from pathlib import Path

from evalsuite.evaluation.environment import read_environment
from evalsuite.evaluation.run_paths import responses_folder
from evalsuite.models.inference.response_cache import ResponseCache
from evalsuite.models.inference.settling import rounding


def open_responses(run: Path) -> ResponseCache:
    """Return the responses of a run. Raises as `ResponseCache`."""
    engines = read_environment(run).get("engines", {})
    tolerances = {each["fingerprint"]: rounding(each) for each in engines.values()}
    return ResponseCache(responses_folder(run), tolerances)
