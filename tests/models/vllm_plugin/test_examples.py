"""What the agreement is measured on, and what counts as agreement."""

from dataclasses import replace

from evalsuite.models import MIXERS
from evalsuite.models.vllm_plugin.agreement import Row, table
from evalsuite.models.vllm_plugin.examples import LONGEST, every_student, prompts, questions

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
    asked = prompts(200, 960)
    lengths = [len(request.prompt) for request in asked]
    assert (min(lengths), max(lengths), len(lengths)) == (1, LONGEST, 200)
    for low, high in ((1, 10), (10, 100), (100, 1001)):
        assert sum(low <= length < high for length in lengths) > 30
    texts = [request.prompt for request in asked]
    shared = sum(texts[n][:128] in {text[:128] for text in texts[:n] if len(text) >= 128} for n in range(200))
    assert shared >= 40
    assert all(0 <= token < 960 for text in texts for token in text)
    assert [request.prompt for request in prompts(200, 960)] == texts
    assert all(len(set(map(len, question.continuations))) <= 2 for question in questions(20, 960))


def test_every_mixer_is_there_pure_and_with_a_quarter_of_softmax() -> None:
    students = [student.mixers for student in every_student(8)]
    for mixer in MIXERS:
        assert (mixer,) * 8 in students
        if mixer != "softmax":
            assert (mixer, mixer, mixer, "softmax") * 2 in students
    assert any(len(set(mixers)) == 4 for mixers in students)


def test_agreement_is_99_in_100_with_near_ties_only() -> None:
    assert ROW.holds
    assert not replace(ROW, equal=197).holds
    assert not replace(ROW, gaps=(2e-3,)).holds
    assert not replace(ROW, deviation=1.1e-3).holds
    page = table([ROW, replace(ROW, student="kda", gaps=(), equal=200, cached=128)])
    assert "| gla | all at once | float32 | 198 of 200 | 9.0e-04 | 2.0e-05 | 90 of 3000 | – |" in page
    assert "| kda | all at once | float32 | 200 of 200 | – | 2.0e-05 | 90 of 3000 | 128 |" in page
    assert page.count("Versions: vllm 0.32.0.") == 1
