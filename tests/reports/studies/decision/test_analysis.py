"""Findings of the deciding study on a synthetic run whose shares are known, and the page."""

import csv
import json
import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from evalsuite.foundation import DataError, EvalsuiteError
from evalsuite.reports.formatting import signed
from evalsuite.reports.studies.decision.__main__ import main
from evalsuite.reports.studies.decision.analysis import Findings, analyse, claim, corrected
from evalsuite.reports.studies.decision.analysis import Row as Contrast
from evalsuite.reports.studies.decision.effects import Effect, Run
from evalsuite.reports.studies.decision.exploration import Variant
from evalsuite.reports.studies.decision.noise import read_choices
from evalsuite.reports.studies.decision.objections import Study, objections
from evalsuite.reports.studies.decision.page import write_page
from evalsuite.reports.studies.decision.protocol import Protocol, load_protocol
from tests.reports.conftest import SyntheticBenchmark, SyntheticCheckpoint, make_run
from tests.reports.score_edits import Row, all_rows, edit_rows
from tests.reports.studies.decision.ids import with_common_ids

TEACHER = 0.9
GENERATED, INSIDE = 0.45, 0.77
STUDENTS = {"kda": "pure", "gated_deltanet": "pure", "sliding_window": "window"}


def small_protocol() -> Protocol:
    """The committed protocol, with one context, two seeds, few tasks, and the metric of synthetic runs."""
    values = load_protocol().model_dump()
    for way in values["ways"].values():
        way["metric"] = "acc"
    values["seeds"] = [0, 1]
    values["needles"]["contexts"] = [512]
    for teacher in values["teachers"].values():
        teacher["students"] = STUDENTS
    values["short_tasks"]["tasks"] = {"piqa": {"metric": "acc", "chance": 0.25}}
    values["completion_tasks"] = {
        name: {"loglikelihood": "acc", "generation": "acc"} for name in ("boolq_fewshot", "sciq_fewshot")
    }
    return Protocol.model_validate(values)


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> SimpleNamespace:
    """A scored run of one teacher, without one of its students' runs."""
    protocol = small_protocol()
    needles = sorted(
        {
            way.benchmark.format(task=task, half=half)
            for task in protocol.needles.tasks
            for way in protocol.ways.values()
            for half in protocol.needles.halves.values()
        }
    )

    def truth(benchmark: str, name: str, context: int | None) -> float:
        if benchmark.startswith("needle"):
            return GENERATED if name == "generation" else INSIDE
        return 0.5 if benchmark == "piqa_padded" else 0.8

    labels = [f"{student}-seed{seed}" for student in STUDENTS for seed in (0, 1)]
    labels.remove("sliding_window-seed1")
    run = make_run(
        tmp_path_factory.mktemp("decision") / "run",
        [
            *(SyntheticBenchmark(name, name, "recall", 60, 0.25, contexts=(512,)) for name in needles),
            SyntheticBenchmark("piqa", "PIQA", "knowledge", 60),
            SyntheticBenchmark("piqa_padded", "PIQA, padded", "knowledge", 60),
            SyntheticBenchmark("boolq_fewshot", "BoolQ", "knowledge", 500),
            SyntheticBenchmark("sciq_fewshot", "SciQ", "knowledge", 60),
        ],
        [
            SyntheticCheckpoint("t", lambda b, p, c: TEACHER, "teacher"),
            *(SyntheticCheckpoint(label, truth) for label in (*labels, "untrained-windows")),
        ],
    )
    for name in (*needles, "piqa", "piqa_padded"):
        for each in ("loglikelihood", "generation"):
            edit_rows(run, name, each, with_common_ids())
    return SimpleNamespace(run=run, protocol=protocol, labels=labels)


@pytest.fixture(scope="module")
def found(study: SimpleNamespace) -> Findings:
    return analyse(study.run, study.protocol, "smollm2")


def row_of(found: Findings, family: str, contrast: str) -> Contrast:
    [row] = [each for each in found.rows if (each.family, each.contrast) == (family, contrast)]
    return row


def test_a_contrast_is_that_of_the_stored_scores(study: SimpleNamespace, found: Findings) -> None:
    """By other code: means of score rows, share by share."""
    shares: dict[str, list[float]] = {}
    for way, name in (("generated", "generation"), ("inside", "loglikelihood")):
        for task in study.protocol.needles.tasks:
            rows = all_rows(study.run, f"{task}_inside", name)
            mean = {
                label: np.mean([row["values"]["acc"] for row in rows if row["checkpoint"] == label])
                for label in ("t", *study.labels)
            }
            chance = study.protocol.ways[way].chance
            for label in study.labels:
                if not label.startswith("sliding"):
                    shares.setdefault(way, []).append(100 * (mean[label] - chance) / (mean["t"] - chance))
    row = row_of(found, "pure", "protocol")
    assert row.effect is not None
    assert row.effect.estimate == pytest.approx(np.mean(shares["inside"]) - np.mean(shares["generated"]))
    assert row.effect.low > 0
    assert (row.effect.df, row.effect.runs, len(row.effect.cells)) == (2, 4, 2)
    assert row.between is not None
    assert row.detectable is not None
    assert row.detectable > 0


def test_what_is_missing_or_not_counted_is_named(found: Findings) -> None:
    assert found.missing == (Run("sliding_window", 1),)
    window = row_of(found, "window", "protocol")
    assert window.effect is None
    assert window.why == "a spread between runs needs a student with two runs"
    assert found.unmeasured == {"sciq_fewshot": "60 documents have both protocols (at least 500 needed)"}
    assert {lead.cell for lead in found.leads if lead.of == "completion_tasks"} == {"boolq_fewshot"}
    assert {share.cell for share in found.shares if share.of == "short_tasks"} == {"piqa"}
    assert not any(lead.why for lead in found.leads)
    control = [share for share in found.shares if share.run.student == "untrained-windows"]
    assert {share.of for share in control} == {"needles", "short_tasks", "completion_tasks"}
    assert not any("untrained" in run.student for run in found.runs)


def test_cells_that_the_teacher_cannot_do_do_not_count(study: SimpleNamespace, tmp_path: Path) -> None:
    run = Path(shutil.copytree(study.run, tmp_path / "run"))

    def at_chance(number: int, row: Row) -> Row:
        right = float(number % 4 == 0)
        return row | {"values": {"acc": right}} if row["checkpoint"] == "t" else row

    for name in ("needle_multikey_inside", "piqa_padded"):
        edit_rows(run, name, "loglikelihood", at_chance)
    weak = analyse(run, study.protocol, "smollm2")
    why = {lead.cell: lead.why for lead in weak.leads}
    assert "inside: the lead's lower end is" in why["needle_multikey 512"]
    assert "generated" not in why["needle_multikey 512"]
    assert not why["needle_single 512"]
    assert why["piqa"].startswith("padded: the lead is")
    assert row_of(weak, "pure", "length").why == "no cell is admitted"
    protocol = row_of(weak, "pure", "protocol")
    assert protocol.effect is not None
    assert protocol.effect.cells == ("needle_single 512",)


def test_p_values_count_the_tests_of_a_teacher_that_is_not_analysed(
    study: SimpleNamespace, found: Findings
) -> None:
    made = [row for row in corrected(study.protocol, [found]) if row.family == "pure" and row.effect]
    smallest = min(made, key=lambda row: row.effect.p)
    tests = len(study.protocol.contrasts) * len(study.protocol.teachers)
    assert smallest.p_adjusted == pytest.approx(min(1.0, tests * smallest.effect.p))


def test_the_claim_follows_the_protocol(study: SimpleNamespace) -> None:
    def rows(bounds: dict[str, tuple[float, float]], p: float = 0.001) -> list[Contrast]:
        return [
            Contrast(
                teacher,
                "pure",
                contrast,
                Effect(sum(ends) / 2, *ends, p, 1.0, 1.0, 4, 6, ("a",)),
                None,
                None,
                p_adjusted=p,
            )
            for teacher in study.protocol.teachers
            for contrast, ends in bounds.items()
        ]

    none = dict.fromkeys(study.protocol.contrasts, (-5.0, 5.0))
    assert claim(study.protocol, rows(none)) == "otherwise"
    assert claim(study.protocol, rows(none | {"answers": (2.0, 9.0)})) == "protocol_gap"
    assert claim(study.protocol, rows(none | {"answers": (2.0, 9.0)}, p=0.06)) == "otherwise"
    assert claim(study.protocol, rows(none | {"length": (2.0, 30.0)})) == "length_or_distractors"
    wide = none | {"length": (2.0, 30.0), "protocol": (-5.0, 10.5)}
    assert claim(study.protocol, rows(wide)) == "otherwise"
    # Length explains the loss only if the other contrasts are small by other definitions, too.
    long = rows(none | {"length": (2.0, 30.0)})
    other = Variant("gemma", "protocol", ("kda",), "pure", "guesses", replace(long[0].effect, high=10.5))
    assert claim(study.protocol, long, [other]) == "otherwise"
    assert claim(study.protocol, long, [other._replace(family="")]) == "length_or_distractors"
    one = [row for row in rows(none | {"answers": (2.0, 9.0)}) if row.teacher == "smollm2"]
    assert claim(study.protocol, one) == ""
    # On one of the teachers only: nothing.
    half = [
        replace(row, effect=None) if row.teacher == "gemma" else row
        for row in rows(none | {"answers": (2, 9)})
    ]
    assert claim(study.protocol, half) == "otherwise"


def test_variants_change_only_what_they_name(study: SimpleNamespace, found: Findings) -> None:
    variants = {(row.contrast, row.students, row.change): row.effect for row in found.explored.variants}
    pure, guesses = ("kda", "gated_deltanet"), "no correction for guessing"
    assert found.explored.variants[0].family == "pure"
    registered = row_of(found, "pure", "protocol").effect
    assert variants["protocol", pure, guesses].cells == registered.cells
    # By hand, from scores: (inside / teacher's inside - corrected share by generation), a mean over cells.
    scores = {(share.cell, share.way, share.run): share for share in found.shares if share.of == "needles"}
    leads = {(lead.cell, lead.way): lead for lead in found.leads}
    expected = np.mean(
        [
            100 * share.score / (leads[cell, "inside"].lead / 100 + leads[cell, "inside"].chance)
            - scores[cell, "generated", run].share
            for (cell, way, run), share in scores.items()
            if way == "inside" and run.student in pure
        ]
    )
    assert variants["protocol", pure, guesses].estimate == pytest.approx(expected)
    for student in pure:
        assert variants["protocol", (student,), ""].runs == 2
    # A student with one run has no spread.
    assert not any("sliding_window" in students for _, students, _ in variants)


def test_students_that_all_teachers_have_are_compared(found: Findings) -> None:
    orders = {(row.students, row.of, row.way): row.effect for row in found.explored.orders}
    ways = {(share.of, share.way) for share in found.shares if share.admitted}
    assert set(orders) == {(("kda", "gated_deltanet"), *way) for way in ways}
    for (students, *place), effect in orders.items():
        kept = [
            np.mean(
                [
                    share.share
                    for share in found.shares
                    if share.admitted and [share.of, share.way] == place and share.run.student == student
                ]
            )
            for student in students
        ]
        assert effect.estimate == pytest.approx(kept[0] - kept[1])
        assert (effect.df, effect.runs) == (2, 4)


def test_noise_alone_fits_the_easy_way(study: SimpleNamespace, found: Findings) -> None:
    (pure, _) = found.noise
    assert (pure.family, pure.found) == (
        "pure",
        pytest.approx(row_of(found, "pure", "distractors").effect.estimate),
    )
    lead = {row.way: row for row in found.leads if row.cell == "needle_single 512"}
    choices = read_choices(study.run, study.protocol, "exploratory", "t", "needle_single 512", "outside")
    normal = np.random.default_rng(1).standard_normal((400, *choices.logprobs.shape))
    assert 100 * choices.accuracy(0.0, normal) == pytest.approx(lead["outside"].lead + 25)
    assert choices.accuracy(1e6, normal) == pytest.approx(0.25, abs=0.01)
    # Both tasks, other draws: the noise gives the teacher the family's share.
    shares = [
        100 * (each.accuracy(pure.sd, normal) - 0.25) / (each.accuracy(0.0, normal) - 0.25)
        for task in study.protocol.needles.tasks
        for each in [read_choices(study.run, study.protocol, "exploratory", "t", f"{task} 512", "outside")]
    ]
    kept = [
        share.share
        for share in found.shares
        if share.way == "outside" and share.run.student in ("kda", "gated_deltanet")
    ]
    assert np.mean(shares) == pytest.approx(np.mean(kept), abs=2)


def test_rows_without_choices_are_refused(study: SimpleNamespace, tmp_path: Path) -> None:
    run = Path(shutil.copytree(study.run, tmp_path / "run"))
    edit_rows(run, "needle_single_inside", "loglikelihood", lambda number, row: row | {"detail": {}})
    with pytest.raises(DataError, match="needle_single_inside at 512 lack the choices of 't'"):
        analyse(run, study.protocol, "smollm2")


def test_the_held_out_half_tells_what_a_choice_costs(study: SimpleNamespace, tmp_path: Path) -> None:
    run = Path(shutil.copytree(study.run, tmp_path / "run"))
    with pytest.raises(DataError, match="no 'validation_kl', by which the protocol chooses"):
        analyse(run, study.protocol, "smollm2", "heldout")
    (run / "training").mkdir()
    for number, label in enumerate(study.labels):
        rows = [{"validation_kl": 9.0}, {"loss": 1.0}, {"validation_kl": 0.5 - 0.1 * number}]
        text = "".join(json.dumps(row) + "\n" for row in rows)
        (run / "training" / f"{label}.jsonl").write_text(text)
    opened = analyse(run, study.protocol, "smollm2", "heldout")
    chosen = {choice.measure: choice for choice in opened.choices}
    assert chosen["KL on held-out text"].run == Run("sliding_window", 0)
    assert set(chosen) == {
        "short tasks, plain",
        "short tasks, padded",
        "KL on held-out text",
        *(f"needles, {way}" for way in study.protocol.ways),
    }
    explored = analyse(run, study.protocol, "smollm2")
    page = write_page(study.protocol, [opened], tmp_path / "page", [explored]).read_text()
    assert "Needles of the held-out half." in page
    dearest = max(choice.regret for choice in opened.choices if choice.measure.startswith("needles"))
    assert f"by any of the four ways, at most {dearest:.1f} fewer." in page
    chosen_by_kl = chosen["KL on held-out text"]
    assert f"| KL on held-out text | `sliding_window`, seed 0 | {chosen_by_kl.regret:.1f} (" in page
    assert len(read_csv(tmp_path / "page" / "choices.csv")) == len(chosen)
    halves = [
        {(row["family"], row["contrast"]): row["estimate"] for row in read_csv(path)}
        for path in (tmp_path / "page/contrasts-exploratory.csv", tmp_path / "page/contrasts.csv")
    ]
    [line] = [line for line in page.splitlines() if line.startswith("| `distractors` | pure | SmolLM2")]
    earlier, later = (signed(float(half["pure", "distractors"])) for half in halves)
    assert earlier != later
    assert line.index(f"{earlier} (") < line.index(f"{later} (")


def test_the_page_shows_what_its_files_hold(study: SimpleNamespace, found: Findings, tmp_path: Path) -> None:
    page = write_page(study.protocol, [found], tmp_path).read_text()
    assert "Both halves" not in page
    assert "Not decided: Gemma 3 270M (Q4_K_M dequantized) has not been analysed yet." in page
    assert "5 of 6 runs. Missing: `sliding_window`, seed 1." in page
    [row] = [
        row
        for row in read_csv(tmp_path / "contrasts.csv")
        if (row["family"], row["contrast"]) == ("pure", "protocol")
    ]
    estimate, low, high = (float(row[name]) for name in ("estimate", "low", "high"))
    assert f"+{estimate:.1f} (+{low:.1f} to +{high:.1f})" in page
    shares = read_csv(tmp_path / "shares.csv")
    kept = [
        float(each["share"])
        for each in shares
        if (each["cell"], each["way"]) == ("needle_single 512", "generated") and each["student"] == "kda"
    ]
    assert len(kept) == 2
    scores = [
        float(each["score"])
        for each in shares
        if (each["student"], each["way"], each["of"], each["admitted"])
        == ("kda", "generated", "needles", "True")
    ]
    assert "| needle_single 512 | `kda` | " in page
    assert f"{found.teacher.title}: responses on CPU (Python 3.11, torch 2.13.0)." in page
    assert f" {np.mean(kept):.1f} |" in page
    assert len(read_csv(tmp_path / "leads.csv")) == len(found.leads)
    kda = next(row for row in read_csv(tmp_path / "unfound.csv") if row["student"] == "kda")
    assert float(kda["generated"]) == pytest.approx(100 * np.mean(scores), abs=1e-9)
    assert f"| `kda` | {float(kda['generated']):.1f} | " in page


def test_objections_are_answered_with_the_numbers_of_the_study(
    study: SimpleNamespace, found: Findings
) -> None:
    answers = dict(objections(Study(study.protocol, [found], found.rows)))
    assert len(answers) == 11
    means = {
        (way, label): np.mean(
            [
                row["values"]["acc"]
                for row in all_rows(study.run, name, "loglikelihood")
                if row["checkpoint"] == label
            ]
        )
        for way, name in (("plain", "piqa"), ("padded", "piqa_padded"))
        for label in ("t", "untrained-windows")
    }
    for way in ("plain", "padded"):
        kept = 100 * (means[way, "untrained-windows"] - 0.25) / (means[way, "t"] - 0.25)
        assert f"{kept:.1f} %" in next(text for text in answers.values() if "untrained" in text)
    assert any("5 runs of 3 students" in text for text in answers.values())
    assert any("The held-out half has not been opened." in text for text in answers.values())
    opened = replace(found, half="heldout")
    both = dict(objections(Study(study.protocol, [opened, replace(opened, runs=())], found.rows)))
    assert any("was opened once" in text for text in both.values())
    title = found.teacher.title
    counted = f"{title}: 5 runs of 3 students; {title}: 0 runs of 0 students"
    assert any(counted in text for text in both.values())


def test_the_page_shows_what_training_text_shares_with_documents(
    study: SimpleNamespace, found: Findings, tmp_path: Path
) -> None:
    (tmp_path / "overlap-gemma.csv").write_text(
        "benchmark,documents,long_enough,overlapping,share\npiqa,1838,900,3,0.0016\nsciq,1000,900,0,0.0\n"
    )
    (tmp_path / "overlap-smollm2.csv").write_text(
        "benchmark,documents,long_enough,overlapping,share\npiqa,1838,900,0,0.0\nsciq,1000,900,0,0.0\n"
    )
    (tmp_path / "overlap-needles.csv").write_text(
        "benchmark,documents,with_key,with_value,with_ngram,largest_share,template_ngrams,template_matches\n"
        "needle_single_inside,800,1,2,206,0.0217,19,0\n"
    )
    page = write_page(study.protocol, [found], tmp_path).read_text()
    assert "| Gemma 3 270M (Q4_K_M dequantized) | `piqa` | 1838 | 3 |" in page
    assert "| SmolLM2-135M-Instruct (Q4_1 dequantized) | all | 2838 | 0 |" in page
    assert "| `needle_single_inside` | 800 | 1 | 2 | 206 | 2.2 % | 0 of 19 |" in page


@pytest.mark.parametrize(
    ("arguments", "message", "code"),
    [
        (["--run", "smolm2=x"], "unknown teacher 'smolm2'; did you mean 'smollm2'?", 64),
        (["--run", "smollm2"], "--run smollm2: expected TEACHER=RUN", 64),
        (["--run", "smollm2=x", "--run", "smollm2=y"], "--run smollm2=y: expected TEACHER=RUN", 64),
        (["--run", "smollm2=nowhere"], "nowhere: not a run folder", 73),
    ],
)
def test_bad_input(arguments: list[str], message: str, code: int, tmp_path: Path) -> None:
    with pytest.raises(EvalsuiteError) as caught:
        main([*arguments, "--out", str(tmp_path / "out")])
    assert message in str(caught.value)
    assert caught.value.exit_code == code
    assert not (tmp_path / "out").exists()


def read_csv(path: Path) -> list[dict[str, str]]:
    """The rows of a CSV file."""
    with path.open(newline="") as file:
        return list(csv.DictReader(file))
