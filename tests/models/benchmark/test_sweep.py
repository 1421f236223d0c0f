"""The sweep: points that run out of memory are recorded, and nothing is measured twice."""

from typing import Any

import pytest
import torch
from transformers import LlamaConfig

from evalsuite.foundation import ConfigError
from evalsuite.foundation.efficiency import EfficiencyRow, Spread
from evalsuite.models.benchmark.points import Point
from evalsuite.models.benchmark.subject import Benchmark, Subject
from evalsuite.models.benchmark.sweep import Sweep, run_sweep

CONFIG = LlamaConfig(
    hidden_size=32,
    intermediate_size=32,
    num_hidden_layers=2,
    num_attention_heads=2,
    num_key_value_heads=1,
    vocab_size=50,
    max_position_embeddings=4096,
)


class Limited(Benchmark):
    """Holds `capacity` cached tokens, and takes one millisecond for each."""

    kinds = frozenset({"request", "decode"})

    def __init__(self, capacity: int, *, expected: int | None = None) -> None:
        self.capacity, self.expected = capacity, expected
        self.requested: list[tuple[str, int, int]] = []
        self.released = 0
        self.subject = Subject(
            label="limited",
            weights_id="1" * 16,
            teacher=None,
            engine="torch",
            versions="",
            device="GPU",
            dtype=torch.float32,
            config=CONFIG,
        )

    def measure(self, point: Point) -> EfficiencyRow:
        self.requested.append((point.kind, point.context, point.batch))
        if point.context * point.batch > self.capacity:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB\nmore")
        if point.context == 3000:
            raise ConfigError("no such position")
        if point.context == 3001:
            raise RuntimeError("invalid argument")
        time = Spread.of([float(point.context * point.batch)])
        return self.subject.row(point, step_ms=time, ttft_ms=time if point.kind == "request" else None)

    def most_sequences(self, context: int) -> int:
        return self.expected or max(1, self.capacity // context)

    def release(self) -> None:
        self.released += 1


def sweep_of(
    benchmark: Benchmark, sweep: Sweep, stored: dict[Any, EfficiencyRow] | None = None
) -> list[EfficiencyRow]:
    return list(run_sweep(benchmark, sweep, {} if stored is None else stored, lambda _: None))


def test_memory_that_ends_is_recorded_and_the_sweep_goes_on() -> None:
    benchmark = Limited(3500)
    found = sweep_of(benchmark, Sweep(contexts=(1000, 4000, 2000, 3000, 3001), peak_contexts=()))
    status = {each.context: each.status for each in found}
    assert status == {1000: "ok", 2000: "ok", 3000: "unsupported", 3001: "failed", 4000: "out_of_memory"}
    lost = found[-1]
    assert lost.detail == "CUDA out of memory. Tried to allocate 2.00 GiB"
    assert lost.ttft_ms is lost.step_ms is lost.decode_tokens_per_second is None
    assert [each.context for each in found] == sorted(status)
    assert benchmark.released == len(found)


def test_long_contexts_are_repeated_once() -> None:
    points = Sweep(contexts=(65536, 32768, 512), repeats=4, batches=(2, 1)).requests()
    assert [(each.context, each.batch, each.repeats) for each in points] == [
        (512, 1, 4),
        (512, 2, 4),
        (32768, 1, 4),
        (32768, 2, 4),
        (65536, 1, 1),
        (65536, 2, 1),
    ]


def test_batches_double_until_memory_ends() -> None:
    benchmark = Limited(100_000)
    found = sweep_of(benchmark, Sweep(contexts=(1000,), peak_contexts=(1000,)))
    tried = [(each.batch, each.status) for each in found if each.kind == "decode"]
    # 100 sequences fit: from a sixteenth of them on, and once between the last two.
    full = "out_of_memory"
    assert tried == [
        (1, "ok"),
        (4, "ok"),
        (8, "ok"),
        (16, "ok"),
        (32, "ok"),
        (64, "ok"),
        (128, full),
        (96, "ok"),
    ]


def test_batches_shrink_where_the_first_does_not_fit() -> None:
    benchmark = Limited(3000, expected=256)
    found = sweep_of(benchmark, Sweep(contexts=(1000,), peak_contexts=(1000,)))
    tried = {each.batch: each.status for each in found if each.kind == "decode"}
    assert tried == {1: "ok", 16: "out_of_memory", 8: "out_of_memory", 4: "out_of_memory", 2: "ok", 3: "ok"}


def test_a_limit_ends_the_batches() -> None:
    benchmark = Limited(100_000)
    found = sweep_of(benchmark, Sweep(contexts=(1000,), peak_contexts=(1000,), most_sequences=8))
    assert [each.batch for each in found if each.kind == "decode"] == [1, 1, 2, 4, 8]
    assert benchmark.requested.count(("decode", 1000, 1)) == 1


def test_a_context_that_never_fits_ends() -> None:
    benchmark = Limited(10)
    found = sweep_of(benchmark, Sweep(contexts=(1000,), peak_contexts=(1000,)))
    assert {each.status for each in found} == {"out_of_memory"}


def test_stored_measurements_are_not_repeated() -> None:
    stored: dict[Any, EfficiencyRow] = {}
    sweep = Sweep(contexts=(1000, 4000), peak_contexts=(1000,))
    first = sweep_of(Limited(100_000), sweep, stored)
    again = Limited(100_000)
    assert sweep_of(again, sweep, stored) == first
    assert again.requested == []
    del stored[first[1].key]
    sweep_of(again, sweep, stored)
    assert again.requested == [("request", 4000, 1)]


@pytest.mark.parametrize("wrong", [{"context": 0}, {"batch": 0}, {"repeats": 0}])
def test_sizes_below_one_are_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(ConfigError, match="each must be at least 1"):
        Point(kind="request", **{"context": 1, **wrong})


def test_contexts_beyond_the_positions_are_marked() -> None:
    found = sweep_of(Limited(10**6), Sweep(contexts=(4096, 8192), peak_contexts=()))
    assert [each.out_of_distribution for each in found] == [False, True]
