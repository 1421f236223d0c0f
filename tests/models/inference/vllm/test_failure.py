"""Causes of failures, from logs as vLLM 0.26 writes them."""

from evalsuite.models.inference.vllm.failure import describe_failure

ERROR = "RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}"
TRACEBACK = "Traceback (most recent call last):"


def record(process: str, level: str, *texts: str, source: str = "core.py:1330") -> str:
    """Lines of one log record, separated as vLLM does."""
    prefix = f"({process}) {level} 11-23 02:04:37 [{source}] "
    return "\r\n".join(prefix + text for text in texts) + "\n"


def printed(process: str, *texts: str) -> str:
    return "".join(f"({process}) {text}\n" for text in texts)


CORE, WORKER, OTHER = "EngineCore pid=31", "Worker_TP0 pid=40", "Worker_TP1 pid=41"
CORE_FAILS = record(
    CORE,
    "ERROR",
    "EngineCore failed to start.",
    TRACEBACK,
    '  File "core.py", line 9, in run',
    "Exception: failed",
) + printed(
    CORE, "Process EngineCore:", TRACEBACK, '  File "process.py", line 314, in run', "Exception: failed"
)


def test_the_first_exception_is_the_cause() -> None:
    """A worker's exception comes before that of the engine core, which waits for it."""
    log = (
        "INFO 11-23 02:04:30 [model.py:623] Resolved architecture: StudentForCausalLM\n"
        + "".join(record(WORKER, "INFO", f"step {number}") for number in range(9))
        + printed(WORKER, "\rLoading:   0%|", "\rLoading: 100%|")
        + record(
            WORKER,
            "ERROR",
            "WorkerProc failed to start.",
            TRACEBACK,
            '  File "worker.py", line 868, in main',
            "    worker = Worker()",
            "             ^^^^^^^^",
            '  File "sharding.py", line 102, in load',
            "    raise CheckpointError(",
            "CheckpointError: layer 0: missing weights",
        )
        + CORE_FAILS
    )
    assert describe_failure(log, ERROR).splitlines() == [
        f"CheckpointError: layer 0: missing weights ({WORKER})",
        "  step 6",
        "  step 7",
        "  step 8",
        "  WorkerProc failed to start.",
        '  File "sharding.py", line 102, in load',
    ]


def test_tracebacks_of_two_workers_may_be_interleaved() -> None:
    pairs = zip(
        printed(WORKER, TRACEBACK, '  File "a.py", line 1', "ValueError: a").splitlines(True),
        printed(OTHER, TRACEBACK, '  File "b.py", line 2', "ValueError: b").splitlines(True),
        strict=True,
    )
    cause = describe_failure("".join(map("".join, pairs)), ERROR)
    assert cause == f'ValueError: a ({WORKER})\n  File "a.py", line 1'


def test_a_handled_exception_is_no_cause() -> None:
    log = record(CORE, "WARNING", "no kernel", TRACEBACK, '  File "kernel.py", line 1', "ImportError: kernel")
    assert describe_failure(log + CORE_FAILS, ERROR).startswith(f"Exception: failed ({CORE})\n")
    assert describe_failure(log, ERROR).startswith(f"{ERROR}\n  no kernel")


def test_a_crash_without_an_exception_shows_the_end_of_the_log() -> None:
    log = "".join(record(CORE, "INFO", f"step {number}") for number in range(9)) + "Segmentation fault"
    assert describe_failure(log, ERROR).splitlines() == [
        ERROR,
        "  step 6",
        "  step 7",
        "  step 8",
        "  Segmentation fault",
    ]
    assert describe_failure("", ERROR) == ERROR


def test_long_messages_and_lines_are_cut() -> None:
    message = [f"  frame {number}" for number in range(30)]
    log = record(CORE, "INFO", "config " + "x" * 5000) + record(
        CORE, "ERROR", TRACEBACK, '  File "compile.py", line 1', "InductorError: failed:", *message
    )
    cause = describe_failure(log, ERROR).splitlines()
    assert cause[0] == "InductorError: failed:"
    assert cause[1:4] == [*message[:2], f"{message[2]} ({CORE})"]
    assert len(cause[4]) < 300
    assert cause[5:] == ['  File "compile.py", line 1']


def test_a_message_ends_with_its_record() -> None:
    log = record(CORE, "ERROR", TRACEBACK, '  File "a.py", line 1', "ValueError: a")
    log += record(CORE, "ERROR", "a worker died", source="executor.py:9")
    assert describe_failure(log, ERROR) == f'ValueError: a ({CORE})\n  File "a.py", line 1'


def test_colors_are_removed() -> None:
    log = f"\x1b[0;36m({CORE})\x1b[0;0m {TRACEBACK}\n\x1b[0;36m({CORE})\x1b[0;0m ValueError: a\n"
    assert describe_failure(log, ERROR) == f"ValueError: a ({CORE})"
