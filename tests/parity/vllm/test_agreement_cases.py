"""Cases and criterion of the vLLM parity study."""

from dataclasses import asdict, replace
from pathlib import Path

import pytest
import torch
from transformers import LlamaConfig

from evalsuite.foundation import append_jsonl
from evalsuite.models import MIXERS
from evalsuite.models.decoder import StudentConfig
from evalsuite.models.inference.requests import GenerateResponse
from evalsuite.models.vllm_plugin.meta_model import build_meta_mixers, max_state_bytes
from tests.parity.vllm.agreement import (
    CACHE_MEMORY,
    GPU_CACHE_MEMORY,
    MAX_LENGTH,
    MAX_NUM_SEQS,
    RECURRENT,
    SERVING_MODES,
    EngineResponses,
    serving_arguments,
)
from tests.parity.vllm.agreement_cases import (
    MAX_PROMPT_LENGTH,
    all_students,
    generate_requests,
    hybrid,
    pure,
    random_tokens,
    score_requests,
    select_students,
    text_spans,
)
from tests.parity.vllm.agreement_report import AgreementRow, Rounding, markdown, read_rows

ROW = AgreementRow(
    student="gla",
    mode="batched",
    dtype="float32",
    num_prompts=200,
    num_equal=198,
    gaps=(2e-4, 9e-4),
    num_scored=40,
    max_logprob_difference=2e-5,
    num_generated=3000,
    num_distinct=90,
    cached_tokens=0,
    versions="vllm 0.32.0",
)


def test_prompts_cover_all_lengths_and_share_prefixes() -> None:
    requests = generate_requests(200, random_tokens(960))
    lengths = [len(request.prompt) for request in requests]
    assert (min(lengths), max(lengths), len(lengths)) == (1, MAX_PROMPT_LENGTH, 200)
    for low, high in ((1, 10), (10, 100), (100, 1001)):
        assert sum(low <= length < high for length in lengths) > 30
    texts = [request.prompt for request in requests]
    shared = sum(texts[n][:128] in {text[:128] for text in texts[:n] if len(text) >= 128} for n in range(200))
    assert shared >= 40
    assert all(0 <= token < 960 for text in texts for token in text)
    assert [request.prompt for request in generate_requests(200, random_tokens(960))] == texts
    assert all(
        len(set(map(len, question.continuations))) <= 2 for question in score_requests(20, random_tokens(960))
    )


def test_all_served_mixers_are_covered_pure_and_with_a_quarter_of_softmax() -> None:
    students = [student.mixers for student in all_students(8)]
    for mixer in (name for name, kind in MIXERS.items() if kind.served_as):
        assert (mixer,) * 8 in students
        if mixer != "softmax":
            assert (mixer, mixer, mixer, "softmax") * 2 in students
    assert any(len(set(mixers)) == 4 for mixers in students)


@pytest.mark.parametrize("gpu", [False, True])
def test_the_longest_prompt_fits_into_the_small_cache(gpu: bool) -> None:
    """vLLM starts only if it does. With sliding windows only, blocks have 16 tokens, and one more is needed,
    because a window may start inside a block; states make all blocks large; otherwise `block_size` applies,
    by default 16 on a GPU and 128 on a CPU."""
    for student in all_students(8):
        arguments = serving_arguments("small cache", student, gpu=gpu)
        blocks = arguments["num_gpu_blocks_override"]
        if set(student.mixers) == {"sliding_window"}:
            assert (blocks - 1) * 16 >= MAX_LENGTH, student.name
        elif not set(student.mixers) & RECURRENT:
            assert blocks * arguments.get("block_size", 16 if gpu else 128) >= MAX_LENGTH, student.name


def test_serving_arguments_on_a_gpu() -> None:
    student = hybrid("gla", 4)
    for mode, given in SERVING_MODES.items():
        arguments = serving_arguments(mode, student, gpu=False)
        assert arguments == {**CACHE_MEMORY, **given}
        most = given.get("max_num_seqs", MAX_NUM_SEQS.get(mode, 256))
        assert serving_arguments(mode, student, gpu=True) == {
            **arguments,
            **GPU_CACHE_MEMORY,
            "max_num_seqs": most,
        }


@pytest.mark.parametrize("mixer", sorted(RECURRENT))
def test_a_state_per_sequence_fits_into_the_cache_on_a_gpu(mixer: str) -> None:
    """For CUDA graphs, vLLM refuses to start otherwise; here 30 layers of SmolLM2-135M's shape."""
    base = LlamaConfig(hidden_size=576, num_hidden_layers=1, num_attention_heads=9, num_key_value_heads=3)
    [layer] = build_meta_mixers(StudentConfig(base=base, mixers=[mixer]))
    arguments = serving_arguments("batched", pure(mixer, 30), gpu=True)
    block = 30 * max_state_bytes([layer], 1, torch.bfloat16)
    assert arguments["kv_cache_memory_bytes"] > arguments["max_num_seqs"] * block


def test_students_can_be_selected() -> None:
    every = all_students(8)
    chosen = select_students(8, pure_mixers=["gla", "kda"], hybrids=["gla"])
    assert [student.mixers for student in chosen] == [
        ("gla",) * 8,
        ("kda",) * 8,
        ("gla", "gla", "gla", "softmax") * 2,
    ]
    # The same names, so that rows of one command are skipped by the other.
    assert all(student in every for student in chosen)
    assert select_students(8, pure_mixers=[], hybrids=[]) == every


def test_agreement_is_99_percent_with_near_ties_only() -> None:
    assert ROW.holds
    assert not replace(ROW, num_equal=197).holds
    assert not replace(ROW, gaps=(2e-3,)).holds
    assert not replace(ROW, max_logprob_difference=1.1e-3).holds
    page = markdown([ROW, replace(ROW, student="kda", gaps=(), num_equal=200, cached_tokens=128)], {})
    assert "| gla | batched | float32 | 198 of 200 | 9.0e-04 | 2.0e-05 | 90 of 3000 | – |" in page
    assert "| kda | batched | float32 | 200 of 200 | – | 2.0e-05 | 90 of 3000 | 128 |" in page
    assert page.count("Versions: vllm 0.32.0.") == 1
    times = [replace(ROW, measured=time) for time in ("2026-11-21T20:18Z", "2026-11-21T19:42Z")]
    assert ", 2026-11-21T19:42Z to 2026-11-21T20:18Z. Prompts" in markdown(times, {})
    assert ", 2026-11-21T19:42Z to 2026-11-21T20:18Z (1 rows undated). Prompts" in markdown([ROW, *times], {})


def test_agreement_in_bfloat16_is_relative_to_the_in_process_error(tmp_path: Path) -> None:
    near = Rounding(
        our_equal=150,
        our_max_logprob_difference=0.1,
        our_divergence_points=50,
        vllm_equal=140,
        vllm_max_logprob_difference=0.19,
        vllm_divergence_points=60,
    )
    row = replace(
        ROW, dtype="bfloat16", num_equal=120, gaps=(0.02,), max_logprob_difference=0.15, rounding=near
    )
    assert row.holds
    assert replace(row, rounding=replace(near, vllm_divergence_points=84)).holds
    assert not replace(row, rounding=replace(near, vllm_divergence_points=85)).holds
    # A divergence without a near-tie is not rounding.
    assert replace(row, gaps=(0.02, 0.19)).holds
    assert not replace(row, gaps=(0.02, 0.21)).holds
    assert not replace(row, rounding=replace(near, vllm_max_logprob_difference=0.21)).holds
    page = markdown([ROW, row], {})
    assert (
        "| 120 of 200 | 2.0e-02 | 1.5e-01 | 90 of 3000 | – | 150, 140 | 50, 60 | 1.0e-01, 1.9e-01 |" in page
    )
    assert "| 90 of 3000 | – | – | – | – |" in page
    append_jsonl(tmp_path / "rows", [asdict(ROW), asdict(row)])
    assert read_rows(tmp_path / "rows") == [ROW, row]


def test_a_divergence_point_is_a_pair_of_tokens() -> None:
    def responses(*texts: tuple[int, ...]) -> EngineResponses:
        return EngineResponses({n: GenerateResponse(text, "", "length") for n, text in enumerate(texts)}, {})

    ours = responses((1, 2, 3), (9, 2), (4, 4), (5,), (6, 6))
    theirs = responses((1, 7, 3), (9, 7), (4, 5), (5,), (6,))
    assert ours.divergent(theirs) == [0, 1, 2, 4]
    # 2 against 7, twice; 4 against 5; and 6 against the end.
    assert ours.num_divergence_points(theirs) == 3


def test_prompts_are_spans_of_a_text() -> None:
    text = list(range(5000))
    for request in generate_requests(40, text_spans(text))[:3]:
        first, last = request.prompt[0], request.prompt[-1]
        assert request.prompt == tuple(range(first, last + 1))
