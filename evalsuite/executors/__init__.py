"""Executors: where the jobs of a run are carried out.

An executor hands jobs to workers, which may live in other processes or on other machines. What a worker
sends arrives in the process that called `map`, which alone writes the run folder; results come back as jobs
end.
"""

from evalsuite.executors.base import EXECUTORS, Channel, Executor, Job, Worker, open_executor
from evalsuite.executors.local import LocalExecutor
from evalsuite.executors.ray import RayExecutor
from evalsuite.executors.slurm import SlurmExecutor

__all__ = [
    "EXECUTORS",
    "Channel",
    "Executor",
    "Job",
    "LocalExecutor",
    "RayExecutor",
    "SlurmExecutor",
    "Worker",
    "open_executor",
]
"""The interface of executors, and their registry."""
