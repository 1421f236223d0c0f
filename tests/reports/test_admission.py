"""Admission of benchmarks: the rule on simulated score rows, its edges, and its tables."""

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from evalsuite.cli import main
from evalsuite.foundation import ConfigError, DataError
from evalsuite.protocols.scorers.squad import squad
from evalsuite.reports.admission import (
    COLUMNS,
    AdmissionDecision,
    AdmissionRule,
    _best_constant,
    _texts,
    admit,
    decide,
    load_rule,
)
from tests.reports.conftest import SyntheticBenchmark, SyntheticCheckpoint, make_run

METRICS = {"loglikelihood": "acc", "generation": "accuracy"}


def rows(
    protocol: str,
    values: Sequence[float],
    targets: Sequence[Any],
    *,
    named: int | None = None,
    chance: float = 0.25,
    clusters: int = 0,
    first: int = 0,
    outcome: str = "ok",
) -> list[dict[str, Any]]:
    """One row per document; the first `named` responses name an answer."""
    found = []
    for number, (value, target) in enumerate(zip(values, targets, strict=True)):
        names = named is None or number < named
        detail = (
            {"gold": target} if protocol == "loglikelihood" else {"target": target, "extracted": "x" * names}
        )
        found.append(
            {
                "protocol": protocol,
                "doc_id": f"{first + number:05d}",
                "values": {METRICS[protocol]: value},
                "chance": chance,
                "cluster": f"c{number % clusters}" if clusters else None,
                "outcome": outcome if names else "extraction_failed",
                "detail": detail,
            }
        )
    return found


def right(share: float, count: int = 1000) -> list[float]:
    """Scores of which a share is right, spread over the documents."""
    return [float(int((number + 1) * share + 1e-9) > int(number * share + 1e-9)) for number in range(count)]


def decision(
    score: float = 0.6,
    generation: Sequence[dict[str, Any]] | None = None,
    rule: AdmissionRule | None = None,
    **how: Any,
) -> AdmissionDecision:
    """A benchmark with four choices, admitted unless `generation` or the options stand against it."""
    count = how.pop("count", 1000)
    options = [number % 4 for number in range(count)]
    texts = [f"answer {number % 4}" for number in range(count)]
    found = {
        "loglikelihood": rows("loglikelihood", right(0.6, count), options),
        "generation": generation or rows("generation", right(score, count), texts, **how),
    }
    return decide("quiz", "Quiz", found, METRICS, rule or AdmissionRule())


def test_a_teacher_that_can_is_admitted_under_both_protocols() -> None:
    found = decision()
    assert found.is_admitted
    assert [each.protocol for each in found.protocols] == ["loglikelihood", "generation"]
    assert [each.constant for each in found.protocols] == [0.25, 0.25]
    assert found.protocols[1].score == pytest.approx(0.6)
    assert 30 < 100 * found.protocols[1].lead.low < 100 * found.protocols[1].lead.point == pytest.approx(35)


@pytest.mark.parametrize(("count", "admitted"), [(499, False), (500, True)])
def test_at_least_500_documents_have_both_protocols(count: int, admitted: bool) -> None:
    found = decision(count=count)
    assert found.is_admitted is admitted
    if not admitted:
        assert found.why == "499 documents have both protocols (at least 500 needed)"


def test_only_common_documents_count() -> None:
    shifted = rows("generation", right(0.6), [f"answer {number % 4}" for number in range(1000)], first=501)
    assert decision(generation=shifted).why == "499 documents have both protocols (at least 500 needed)"
    shifted = rows("generation", right(0.6), [f"answer {number % 4}" for number in range(1000)], first=400)
    assert {each.documents for each in decision(generation=shifted).protocols} == {600}


@pytest.mark.parametrize(("score", "admitted"), [(0.34, False), (0.35, True)])
def test_ten_points_above_the_constant_answer(score: float, admitted: bool) -> None:
    found = decision(score)
    assert found.is_admitted is admitted
    if not admitted:
        assert found.why == (
            "generation: the teacher is 9.0 points above the best constant answer (25.0 %) "
            "(at least 10 needed)"
        )


def test_ten_points_without_a_proven_lead_are_not_enough() -> None:
    # Four passages: their documents are right or wrong together.
    values = [float(number % 4 < 2) for number in range(1000)]
    texts = [f"answer {number % 7}" for number in range(1000)]
    found = decision(generation=rows("generation", values, texts, clusters=4))
    assert (
        "generation: the teacher is not above the best constant answer (25.0 %) by its interval" in found.why
    )


def test_the_most_frequent_answer_is_the_constant_one_however_it_is_written() -> None:
    texts = ["Yes." if number % 3 == 0 else "yes" if number % 3 == 1 else "no" for number in range(999)]
    generation = rows("generation", right(0.7, 999), texts)
    found = decide(
        "q",
        "Q",
        {"loglikelihood": rows("loglikelihood", right(0.7, 999), [0] * 999), "generation": generation},
        METRICS,
        AdmissionRule(),
    )
    assert [each.constant for each in found.protocols] == pytest.approx([1.0, 2 / 3])
    assert not found.is_admitted
    assert found.why.startswith("log-likelihood: the teacher is not above the best constant answer (100.0 %)")


@pytest.mark.parametrize(("named", "admitted"), [(899, False), (900, True)])
def test_an_answer_is_named_on_nine_documents_of_ten(named: int, admitted: bool) -> None:
    found = decision(named=named)
    assert found.is_admitted is admitted
    if not admitted:
        assert (
            found.why
            == "generation: the teacher names an answer on 89.9 % of the documents (at least 90 % needed)"
        )


def test_errors_count_as_wrong_and_name_nothing() -> None:
    found = decision(outcome="error")
    assert found.protocols[1].score == 0
    assert found.protocols[1].named == 0


def test_a_fractional_score_is_compared_with_the_f1_of_a_constant_answer() -> None:
    values = [0.5, 0.8] * 500
    texts = ["the red house" if number % 2 else "house" for number in range(1000)]
    generation = rows("generation", values, texts, chance=0)
    # "house" has F1 2/3 against "red house", which is as much the other way round.
    assert decision(generation=generation).protocols[1].constant == pytest.approx((1 + 2 / 3) / 2)


def test_without_choices_the_right_texts_count_under_log_likelihood() -> None:
    texts = ["him" if number % 5 == 0 else f"word{number}" for number in range(1000)]
    logliks = rows("loglikelihood", right(0.4), [None] * 1000, chance=0)
    generation = rows("generation", right(0.35), texts, chance=0)
    found = decide("l", "L", {"loglikelihood": logliks, "generation": generation}, METRICS, AdmissionRule())
    assert [each.constant for each in found.protocols] == pytest.approx([0.2, 0.2])
    assert found.is_admitted


def test_rows_without_right_answers_are_refused() -> None:
    generation = rows("generation", right(0.6), [[]] * 1000)
    with pytest.raises(
        DataError, match="document 00000 under generation has no right answer in its 'detail'"
    ):
        decision(generation=generation)


def test_a_benchmark_with_one_protocol_or_a_perplexity_is_listed_with_its_reason() -> None:
    logliks = rows("loglikelihood", right(0.6), [0] * 1000)
    rule = AdmissionRule()
    assert decide("q", "Q", {"loglikelihood": logliks}, METRICS, rule).why == "no scores under generation"
    generation = rows("generation", right(0.6), ["a"] * 1000)
    both = {"loglikelihood": logliks, "generation": generation}
    found = decide("q", "Q", both, METRICS | {"loglikelihood": "perplexity"}, rule)
    assert found.why == "its metric under log-likelihood is a perplexity, which no answer can have"


def test_a_rule_is_read_strictly(tmp_path: Path) -> None:
    path = tmp_path / "rule.yaml"
    path.write_text("min_points: 5\n")
    assert load_rule(path) == AdmissionRule(min_points=5)
    path.write_text("min_point: 5\n")
    with pytest.raises(ConfigError, match="unknown key 'min_point'; did you mean 'min_points'"):
        load_rule(path)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    benchmarks = [
        SyntheticBenchmark("easy", "Easy", "knowledge", documents=600),
        SyntheticBenchmark("hard", "Hard", "knowledge", documents=600),
        SyntheticBenchmark("short", "Short", "knowledge", documents=100),
    ]
    able = SyntheticCheckpoint("able", lambda name, *_: 0.25 if name == "hard" else 0.8, role="teacher")
    return make_run(tmp_path / "run", benchmarks, [able, SyntheticCheckpoint("weak", lambda *_: 0.25)])


def test_the_command_writes_what_is_admitted_and_why_others_are_not(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    assert main(["admit", str(run), "--out", str(tmp_path / "out")]) == 0
    printed = capsys.readouterr().out
    assert "easy: admitted" in printed
    assert "short: 100 documents have both protocols" in printed
    with open(tmp_path / "out/admission.csv") as file:
        table = list(csv.DictReader(file))
    assert tuple(table[0]) == COLUMNS
    assert {(row["benchmark"], row["admitted"]) for row in table} == {
        ("easy", "True"),
        ("hard", "False"),
        ("short", "False"),
    }
    markdown = (tmp_path / "out/admission.md").read_text()
    assert markdown.startswith("1 of 3 benchmarks are admitted")
    assert "| Short |" in markdown


def test_the_rule_is_applied_to_the_named_checkpoint(run: Path) -> None:
    assert not any(each.is_admitted for each in admit(run, "weak", AdmissionRule()))
    with pytest.raises(
        ConfigError, match=r"no run has a checkpoint 'abel' .--teacher, .*; did you mean 'able'"
    ):
        admit(run, "abel", AdmissionRule())


def test_a_single_choice_is_no_constant_answer() -> None:
    scored = rows("loglikelihood", right(0.4), [0] * 1000, chance=0)
    for row in scored:
        row["detail"]["logprobs"] = [-1.0]
    written = rows("generation", right(0.4), [f"word{number}" for number in range(1000)], chance=0)
    found = decide("b", "B", {"loglikelihood": scored, "generation": written}, METRICS, AdmissionRule())
    assert found.is_admitted
    assert [each.constant for each in found.protocols] == [0.001, 0.001]


def test_the_best_constant_is_scored_as_the_scorer_scores_it() -> None:
    texts = ("black-and-yellow", "and", "the and")
    rows = [{"detail": {"target": text}} for text in texts]
    expected = [squad({"answers": {"text": [text]}}, "and").values["f1"] for text in texts]
    assert (
        _best_constant([_texts(row) for row in rows], is_binary=False).tolist() == expected == [0.0, 1.0, 1.0]
    )
