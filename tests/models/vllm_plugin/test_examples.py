"""What the agreement is measured on, and what counts as agreement."""

from dataclasses import asdict, replace
from pathlib import Path

import pytest

from evalsuite.foundation import append_jsonl
from evalsuite.models import MIXERS
from evalsuite.models.engine.requests import GenerateAnswer
from evalsuite.models.vllm_plugin.agreement import (
    AT_ONCE,
    MAX_LENGTH,
    RECURRENT,
    REGIMES,
    ROOM,
    Answers,
    served,
)
from evalsuite.models.vllm_plugin.examples import (
    LONGEST,
    chosen_students,
    every_student,
    hybrid,
    noise,
    prompts,
    prose,
    questions,
)
from evalsuite.models.vllm_plugin.rows import Rounding, Row, read, table

ROW = Row(
    student="gla",
    regime="all at once",
    dtype="float32",
    prompts=200,
    equal=198,
    gaps=(2e-4, 9e-4),
    questions=40,
    deviation=2e-5,
    written=3000,
    distinct=90,
    cached=0,
    versions="vllm 0.32.0",
)


def test_prompts_have_every_length_and_shared_beginnings() -> None:
    asked = prompts(200, noise(960))
    lengths = [len(request.prompt) for request in asked]
    assert (min(lengths), max(lengths), len(lengths)) == (1, LONGEST, 200)
    for low, high in ((1, 10), (10, 100), (100, 1001)):
        assert sum(low <= length < high for length in lengths) > 30
    texts = [request.prompt for request in asked]
    shared = sum(texts[n][:128] in {text[:128] for text in texts[:n] if len(text) >= 128} for n in range(200))
    assert shared >= 40
    assert all(0 <= token < 960 for text in texts for token in text)
    assert [request.prompt for request in prompts(200, noise(960))] == texts
    assert all(len(set(map(len, question.continuations))) <= 2 for question in questions(20, noise(960)))


def test_every_mixer_is_there_pure_and_with_a_quarter_of_softmax() -> None:
    students = [student.mixers for student in every_student(8)]
    for mixer in MIXERS:
        assert (mixer,) * 8 in students
        if mixer != "softmax":
            assert (mixer, mixer, mixer, "softmax") * 2 in students
    assert any(len(set(mixers)) == 4 for mixers in students)


@pytest.mark.parametrize("gpu", [False, True])
def test_the_longest_prompt_fits_into_the_little_cache(gpu: bool) -> None:
    """vLLM starts only if it does. Where all layers have a sliding window, blocks are of 16 tokens, and one
    more is wanted, as a window may begin inside of one; states make all blocks large; else they are as told,
    by default of 16 on a GPU and 128 on a CPU."""
    for student in every_student(8):
        told = served("little cache", student, gpu=gpu)
        blocks = told["num_gpu_blocks_override"]
        if set(student.mixers) == {"sliding_window"}:
            assert (blocks - 1) * 16 >= MAX_LENGTH, student.name
        elif not set(student.mixers) & RECURRENT:
            assert blocks * told.get("block_size", 16 if gpu else 128) >= MAX_LENGTH, student.name


def test_a_regime_is_what_it_says_on_a_gpu_too() -> None:
    student = hybrid("gla", 4)
    for regime, given in REGIMES.items():
        told = served(regime, student, gpu=False)
        assert told == {**ROOM, **given}
        most = given.get("max_num_seqs", AT_ONCE.get(regime, 256))
        assert served(regime, student, gpu=True) == {**told, "max_num_seqs": most}


def test_pure_students_and_hybrids_can_be_asked_alone() -> None:
    every = every_student(8)
    chosen = chosen_students(8, alone=["gla", "kda"], hybrids=["gla"])
    assert [student.mixers for student in chosen] == [
        ("gla",) * 8,
        ("kda",) * 8,
        ("gla", "gla", "gla", "softmax") * 2,
    ]
    # The same students: a row that one command wrote is known to the other.
    assert all(student in every for student in chosen)
    assert chosen_students(8, alone=[], hybrids=[]) == every


def test_agreement_is_99_in_100_with_near_ties_only() -> None:
    assert ROW.holds
    assert not replace(ROW, equal=197).holds
    assert not replace(ROW, gaps=(2e-3,)).holds
    assert not replace(ROW, deviation=1.1e-3).holds
    page = table([ROW, replace(ROW, student="kda", gaps=(), equal=200, cached=128)], {})
    assert "| gla | all at once | float32 | 198 of 200 | 9.0e-04 | 2.0e-05 | 90 of 3000 | – |" in page
    assert "| kda | all at once | float32 | 200 of 200 | – | 2.0e-05 | 90 of 3000 | 128 |" in page
    assert page.count("Versions: vllm 0.32.0.") == 1
    times = [replace(ROW, measured=time) for time in ("2026-11-21T20:18Z", "2026-11-21T19:42Z")]
    assert ", 2026-11-21T19:42Z to 2026-11-21T20:18Z. Prompts" in table(times, {})
    assert ", 2026-11-21T19:42Z to 2026-11-21T20:18Z (of 1 rows not known). Prompts" in table(
        [ROW, *times], {}
    )


def test_in_bfloat16_vllm_may_be_as_far_from_float32_as_the_engine_in_process(tmp_path: Path) -> None:
    near = Rounding(
        our_equal=150, our_deviation=0.1, our_places=50, vllm_equal=140, vllm_deviation=0.19, vllm_places=60
    )
    row = replace(ROW, dtype="bfloat16", equal=120, gaps=(0.02,), deviation=0.15, rounding=near)
    assert row.holds
    assert replace(row, rounding=replace(near, vllm_places=84)).holds
    assert not replace(row, rounding=replace(near, vllm_places=85)).holds
    # A single answer that parts where nothing was near is no rounding.
    assert replace(row, gaps=(0.02, 0.19)).holds
    assert not replace(row, gaps=(0.02, 0.21)).holds
    assert not replace(row, rounding=replace(near, vllm_deviation=0.21)).holds
    page = table([ROW, row], {})
    assert (
        "| 120 of 200 | 2.0e-02 | 1.5e-01 | 90 of 3000 | – | 150, 140 | 50, 60 | 1.0e-01, 1.9e-01 |" in page
    )
    assert "| 90 of 3000 | – | – | – | – |" in page
    append_jsonl(tmp_path / "rows", [asdict(ROW), asdict(row)])
    assert read(tmp_path / "rows") == [ROW, row]


def test_a_place_is_a_pair_of_tokens() -> None:
    def answers(*texts: tuple[int, ...]) -> Answers:
        return Answers({n: GenerateAnswer(text, "", "length") for n, text in enumerate(texts)}, {})

    ours = answers((1, 2, 3), (9, 2), (4, 4), (5,), (6, 6))
    theirs = answers((1, 7, 3), (9, 7), (4, 5), (5,), (6,))
    assert ours.parted(theirs) == [0, 1, 2, 4]
    # 2 where the other says 7, twice; 4 for 5; and 6 for the end.
    assert ours.places(theirs) == 3


def test_prompts_are_cut_from_prose() -> None:
    text = list(range(5000))
    for request in prompts(40, prose(text))[:3]:
        first, last = request.prompt[0], request.prompt[-1]
        assert request.prompt == tuple(range(first, last + 1))
