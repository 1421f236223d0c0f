"""What is measured of small models on a CPU: bytes agree with the config, synthetic caches with real ones."""

from pathlib import Path

import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel

from evalsuite.foundation import ConfigError, DataError
from evalsuite.foundation.efficiency import FILE, Spread, read_measurements
from evalsuite.models.benchmark.estimate import Rates, estimate
from evalsuite.models.benchmark.gpu import Gpu
from evalsuite.models.benchmark.points import Point, save_measurement
from evalsuite.models.benchmark.random_models import RandomModel, build, random_models
from evalsuite.models.benchmark.subject import teacher_of
from evalsuite.models.benchmark.timing import step_between, time_steps
from evalsuite.models.checkpoints.load import Checkpoint
from evalsuite.models.inference.torch.benchmark import SHORT_TOKENS, TorchBenchmark, synthetic_batch
from evalsuite.models.inference.torch.model_runner import ModelRunner
from evalsuite.models.inference.transformers.benchmark import GenerateBenchmark

MIXERS = ["gated_deltanet", "kda+softmax/2", "sliding_window"]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, RandomModel]:
    """Teacher and students of a tiny shape."""
    folder = tmp_path_factory.mktemp("tiny")
    (folder / "config.json").write_text(
        '{"model_type": "llama", "hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 2, '
        '"num_attention_heads": 2, "num_key_value_heads": 1, "vocab_size": 50, '
        '"max_position_embeddings": 128}'
    )
    made = random_models(str(folder), MIXERS)
    return {each.label.split(", ")[1]: each for each in made}


def benchmark_of(model: RandomModel) -> TorchBenchmark:
    checkpoint = build(model, device="cpu", dtype="float32")
    return TorchBenchmark(ModelRunner(checkpoint.model), checkpoint, random_weights=True)


@pytest.mark.parametrize("name", ["teacher", *MIXERS])
def test_a_request_is_measured(models: dict[str, RandomModel], name: str) -> None:
    benchmark = benchmark_of(models[name])
    found = benchmark.measure(Point(kind="request", context=70, batch=2, repeats=2))
    assert found.status == "ok"
    assert found.ttft_ms is not None
    assert found.step_ms is not None
    assert found.ttft_ms.repeats == 2
    assert found.ttft_ms.low <= found.ttft_ms.median <= found.ttft_ms.high
    assert found.random_weights
    assert (found.engine, found.dtype, found.peak_bytes, found.joules) == ("torch", "float32", None, None)
    assert found.teacher == (None if name == "teacher" else models["teacher"].weights_id)
    # transformers keeps one token of a window more than is read.
    assert found.cache_bytes == pytest.approx(found.expected_cache_bytes, rel=0.02)
    assert found.decode_tokens_per_second == 2000 / found.step_ms.median
    assert found.prefill_tokens_per_second == 2 * 70 * 1000 / found.ttft_ms.median


def test_the_teachers_cache_is_its_keys_and_values(models: dict[str, RandomModel]) -> None:
    found = benchmark_of(models["teacher"]).measure(Point(kind="request", context=64, repeats=1))
    layers, kv_heads, width, float32 = 2, 1, 16, 4
    assert found.cache_bytes == found.expected_cache_bytes == 64 * layers * 2 * kv_heads * width * float32
    assert found.decode_bytes == found.parameters * 4 + found.cache_bytes


@pytest.mark.parametrize("name", ["teacher", *MIXERS])
def test_a_synthetic_cache_has_the_size_of_a_real_one(models: dict[str, RandomModel], name: str) -> None:
    benchmark = benchmark_of(models[name])
    real = benchmark.measure(Point(kind="request", context=150, repeats=1))
    made = benchmark.measure(Point(kind="decode", context=150, batch=3))
    assert made.cache_bytes == real.cache_bytes
    assert made.detail == "synthetic cache"
    assert made.ttft_ms is None
    assert made.step_ms is not None
    assert made.batch == 3


def test_a_synthetic_cache_repeats_real_states(models: dict[str, RandomModel]) -> None:
    runner = benchmark_of(models["kda+softmax/2"]).runner
    batch = synthetic_batch(runner, num_seqs=2, context=150)
    recurrent, softmax = batch.cache.layers
    assert softmax.keys is not None
    keys = softmax.keys
    assert torch.equal(keys[0, :, :SHORT_TOKENS], keys[1, :, SHORT_TOKENS : 2 * SHORT_TOKENS])
    assert keys[:, :, :150].abs().sum(-1).min() > 0
    assert not keys[:, :, 150:].any()
    assert batch.position.tolist() == [150, 150]
    states = recurrent.recurrent["recurrent"]
    assert states[0].abs().sum() > 0
    assert torch.equal(states[0], states[1])
    # What follows depends on these states, and stays finite.
    with torch.inference_mode():
        batch.step(2, batch.cache.capacity)
    assert not batch.non_finite.any()
    assert batch.position.tolist() == [151, 151]


def test_transformers_generate_is_measured(models: dict[str, RandomModel]) -> None:
    benchmark = GenerateBenchmark(build(models["gated_deltanet"], device="cpu", dtype="float32"))
    found = benchmark.measure(Point(kind="request", context=20, repeats=1))
    assert (found.engine, found.status) == ("transformers", "ok")
    assert found.ttft_ms is not None
    with pytest.raises(ConfigError, match="takes no synthetic caches"):
        benchmark.measure(Point(kind="decode", context=20))


def test_a_table_of_positions_ends() -> None:
    config = GPT2Config(
        n_embd=16, n_layer=1, n_head=2, n_positions=128, vocab_size=40, bos_token_id=0, eos_token_id=0
    )
    model = GPT2LMHeadModel(config).eval()
    benchmark = TorchBenchmark(ModelRunner(model), Checkpoint("gpt2", "", model, None, "2" * 16))
    assert benchmark.measure(Point(kind="request", context=64, repeats=1)).status == "ok"
    with pytest.raises(ConfigError, match=r"gpt2: 164 positions: its positions end at 128"):
        benchmark.measure(Point(kind="request", context=100))


def test_rotary_positions_have_no_end(models: dict[str, RandomModel]) -> None:
    found = benchmark_of(models["teacher"]).measure(Point(kind="request", context=300, repeats=1))
    assert found.status == "ok"
    assert found.out_of_distribution


def test_records_replace_each_other(models: dict[str, RandomModel], tmp_path: Path) -> None:
    subject = benchmark_of(models["teacher"]).subject
    first = subject.row(Point(kind="request", context=8), ttft_ms=Spread.of([1.0, 3.0]))
    second = subject.row(Point(kind="request", context=8), ttft_ms=Spread.of([2.0]))
    other = subject.row(Point(kind="decode", context=8), "out_of_memory", "full")
    for each in (first, other, second):
        save_measurement(tmp_path, each)
    assert read_measurements(tmp_path) == [other, second]
    assert first.ttft_ms == Spread(median=2.0, low=1.0, high=3.0, repeats=2)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"schema": 1}', "line 1: schema 1, this evalsuite reads 2; delete"),
        ('{"schema": 2}', "line 1: .*label"),
        ("[2]", "line 1: expected an object"),
    ],
)
def test_other_schemas_are_refused(tmp_path: Path, line: str, message: str) -> None:
    (tmp_path / FILE).write_text(line + "\n")
    with pytest.raises(DataError, match=message):
        read_measurements(tmp_path)


def test_estimates_follow_flops_and_bytes(models: dict[str, RandomModel]) -> None:
    subject = benchmark_of(models["teacher"]).subject
    rates = Rates(flops=1e6, bytes=1e6)
    short, long = (
        estimate(subject, Point(kind="request", context=c, repeats=1), rates) for c in (1000, 4000)
    )
    flops = [subject.prefill_flops(context) for context in (1000, 4000)]
    assert flops[0] is not None
    assert flops[1] is not None
    cache = subject.cost.cache(subject.dtype)
    assert cache is not None
    prefill = 2 * (4000 * flops[1] - 1000 * flops[0]) / 0.35e6
    decode = 24 * 2 * (cache.at(4064) - cache.at(1064)) / 0.35e6
    assert long.seconds - short.seconds == pytest.approx(prefill + decode)
    cached = 3000 * cache.per_token
    assert long.memory_bytes - short.memory_bytes == 2 * cached + 12 * 3000 * 32 * 4
    batch = estimate(subject, Point(kind="decode", context=1000, batch=9), rates)
    assert batch.memory_bytes == subject.weight_bytes() + 9 * cache.at(1064)


def test_steps_are_the_difference_of_two_times() -> None:
    first, whole = Spread(10.0, 9.0, 12.0, 3), Spread(26.0, 25.0, 30.0, 3)
    assert step_between(first, whole, 16) == Spread(1.0, 13 / 16, 21 / 16, 3)
    assert step_between(first, first, 16) is None


def test_steps_are_timed_at_least_and_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[int] = []
    found = time_steps(lambda: ran.append(1), least=2, most=7, device=torch.device("cpu"))
    assert found.repeats == len(ran) == 7


def test_a_cpu_has_no_readings() -> None:
    gpu = Gpu(torch.device("cpu"))
    assert gpu.millijoules() is None
    assert gpu.other_processes() is None


def test_a_teacher_is_read_from_the_lineage() -> None:
    def of(lineage: dict[str, object]) -> str | None:
        checkpoint = Checkpoint("a", "", None, None, "0" * 16, lineage)  # type: ignore[arg-type]
        return teacher_of(checkpoint)

    assert of({"teacher": {"weights_id": "a" * 16}}) == "a" * 16
    assert of({"teacher": "b" * 16}) == "b" * 16
    assert of({}) is None


def test_measurements_survive_a_round_trip(models: dict[str, RandomModel], tmp_path: Path) -> None:
    made = benchmark_of(models["teacher"]).measure(Point(kind="request", context=16, repeats=1))
    save_measurement(tmp_path, made)
    assert read_measurements(tmp_path) == [made]
