"""Importers: evaluation logs of other harnesses as run folders, which `compare` and `gate` read."""

from evalsuite.reports.imports import evalscope, every_eval_ever, inspect_log, lm_eval
from evalsuite.reports.imports.importer import IMPORTERS, Importer, KnownBenchmark, find_importer
from evalsuite.reports.imports.run_folder import import_logs

__all__ = [
    "IMPORTERS",
    "Importer",
    "KnownBenchmark",
    "evalscope",
    "every_eval_ever",
    "find_importer",
    "import_logs",
    "inspect_log",
    "lm_eval",
]
