"""Executors: where the jobs of a run are carried out.

An executor maps a function over jobs, as `concurrent.futures` does. Function and jobs can be pickled, so that
an executor may send them to another process or machine; results come back in the order of the jobs.
"""

from evalsuite.executors.base import EXECUTORS, Executor, Progress
from evalsuite.executors.local import LocalExecutor

__all__ = ["EXECUTORS", "Executor", "LocalExecutor", "Progress"]
