"""Selectors end to end: selection file, student, invalid input."""

import copy
import json
from pathlib import Path

import pytest
from transformers import GPT2Config, GPT2LMHeadModel

from evalsuite.cli.entry import main
from evalsuite.distill import distill, dry_run
from evalsuite.distill.recipe import write_recipe
from evalsuite.distill.selection import SELECTORS, Selector, load_selector, select
from evalsuite.distill.selection.measured_sets import MeasuredSets
from evalsuite.distill.selection.result import SelectionResult
from evalsuite.distill.selection.selectors.beam_search import PerplexitySearch
from evalsuite.distill.selection.tasks import QuestionSet
from evalsuite.distill.training.builders import resolve_layer_selection
from evalsuite.foundation import CheckpointError, ConfigError, RunFolderError
from evalsuite.reports.records.sidecars import Selection
from tests.distill.conftest import TINY
from tests.distill.random_models import build_random_model
from tests.distill.selection.conftest import small_selector


@pytest.fixture
def run_select(recipe, work):
    """Selects with the tiny teacher, in a work folder shared by all tests."""

    def run(selector: str, out: Path, budget: int = 1, options=None, **changes):
        settings = {"device": "cpu", "quiet": True, "work": work, **changes}
        chosen = small_selector(selector, **(options or {})) if selector in SELECTORS else selector
        return select(settings.pop("recipe", recipe), chosen, out, budget=budget, **settings)

    return run


@pytest.mark.parametrize("selector", [name for name in SELECTORS if name != "fixed"])
def test_selectors_write_files_that_reports_can_read(run_select, tmp_path, selector):
    value = run_select(selector, tmp_path / "layers.json", budget=2)
    read = Selection.model_validate(json.loads((tmp_path / "layers.json").read_text()))
    per_layer = 4 if SELECTORS[selector].unit == "head" else 1
    assert len(read.units) == 2
    assert set(read.units) <= set(range(3 * per_layer))
    assert read.teacher == value["teacher"]
    if selector != "uniform":
        assert len(read.unit_scores) == 3 * per_layer
        # Accuracies of a random model on a few documents can tie.
        assert len(set(read.unit_scores)) > 1 or selector.startswith("task_")
    needs = SELECTORS[selector].requires
    assert read.mixer == ("gated_deltanet" if needs in ("all_linear", "training") else None)
    if needs == "training":
        assert read.tokens == value["details"]["cost"]["student_tokens"] > 0


def test_a_selector_is_one_definition_and_one_registration(run_select, tmp_path, monkeypatch):
    class Last(Selector):
        source = "none"
        requires = "nothing"
        offset: int = 0

        def select(self, context, k):
            end = context.layers - self.offset
            scores = tuple(float(layer) for layer in range(context.layers))
            return SelectionResult(layers=tuple(range(end - k, end)), scores=scores)

    Last.name = "last"
    monkeypatch.setitem(SELECTORS._items, "last", Last)
    assert run_select("last", tmp_path / "layers.json", budget=2)["layers"] == [1, 2]
    assert run_select("last", tmp_path / "layers.json", budget=2)["selector"] == "last"
    shifted = run_select("last", tmp_path / "shifted.json", budget=2, options={"offset": 1})
    assert (shifted["layers"], shifted["details"]["request"]["options"]["offset"]) == ([0, 1], 1)
    with pytest.raises(
        TypeError, match=r"must be a class derived from evalsuite\.distill\.selection\.selector\.Selector"
    ):
        SELECTORS._validate(len)


@pytest.mark.parametrize("selector", ["ga_s1", "gr_s1", "avg_s1"])
def test_iterative_selections_are_readable_by_reports(run_select, tmp_path, selector):
    run_select(selector, tmp_path / "layers.json", budget=2, options={"iterative": True})
    read = Selection.model_validate(json.loads((tmp_path / "layers.json").read_text()))
    assert len(read.layers) == 2
    assert read.stop is None
    best = sorted(range(3), key=lambda layer: -read.scores[layer])[:2]
    if selector != "avg_s1":
        assert sorted(best) == list(read.layers)
        assert [len(step.layers) for step in read.history] == ([1, 2] if selector == "ga_s1" else [2])


def test_finished_selection_is_returned_unchanged(run_select, tmp_path, monkeypatch):
    first = run_select("kv", tmp_path / "layers.json")
    monkeypatch.setattr("evalsuite.distill.selection.selectors.skip_layer.SyntheticTask.select", None)
    assert run_select("kv", tmp_path / "layers.json") == first


def test_interrupted_skip_layer_repeats_no_measurement(recipe, tmp_path, monkeypatch):
    measured = QuestionSet.evaluate
    calls = []

    def counting(self, model):
        calls.append(1)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return measured(self, model)

    monkeypatch.setattr(QuestionSet, "evaluate", counting)
    settings = {"budget": 1, "device": "cpu", "quiet": True}
    with pytest.raises(KeyboardInterrupt):
        select(recipe, small_selector("ar"), tmp_path / "a.json", **settings)
    select(recipe, small_selector("ar"), tmp_path / "a.json", **settings)
    # The unmodified teacher and three layers; the third call is interrupted, the first two are logged.
    assert len(calls) == 5


def test_selection_mixer_can_differ_from_the_student_mixer(run_select, recipe, tmp_path, small_recipe, stage):
    """Selected with Gated DeltaNet, distilled with GLA."""
    layers = tmp_path / "layers.json"
    chosen = run_select("ga_s2", layers, budget=1)
    assert chosen["mixer"] == "gated_deltanet"
    other = small_recipe(
        recipe.teacher,
        stages=[stage("kd", "kd", tokens=256)],
        student={"mixers": ["gla"], "softmax_layers": str(layers)},
    )
    assert "1" in str(dry_run(other, device="cpu"))
    (folder,) = distill(other, tmp_path / "out", device="cpu", quiet=True)
    lineage = json.loads((folder / "lineage.json").read_text())
    assert lineage["selection"] == {
        "selector": "ga_s2",
        "teacher": chosen["teacher"],
        "mixer": "gated_deltanet",
        "step": None,
    }
    expected = ["softmax" if layer in chosen["layers"] else "gla" for layer in range(3)]
    assert lineage["mixers"] == expected


def test_recipe_hash_depends_on_layers_not_on_the_file(recipe, tmp_path):
    path = tmp_path / "layers.json"
    student = recipe.student.model_copy(update={"softmax_layers": str(path)})
    requested = recipe.model_copy(update={"student": student})
    hashes = []
    for layers in ([0], [1]):
        path.write_text(json.dumps({"selector": "kv", "layers": layers, "teacher": None}))
        hashes.append(resolve_layer_selection(requested).hash)
    assert hashes[0] != hashes[1]
    path.write_text("[2, 0]")
    found = resolve_layer_selection(requested).student
    assert (found.softmax_layers, found.selection) == ([0, 2], None)


def test_several_files_and_steps_of_a_search_are_students_of_one_run(recipe, tmp_path, capsys):
    history = [{"step": step, "tokens": step, "layers": [step]} for step in (0, 1)]
    selection = {"selector": "ga_s2", "layers": [1], "teacher": None, "history": history}
    (tmp_path / "ga.json").write_text(json.dumps(selection))
    (tmp_path / "recipe.yaml").write_text(write_recipe(recipe))
    files = [str(tmp_path / name) for name in ("ga.json", "ga.json@0")]
    common = ["distill", str(tmp_path / "recipe.yaml"), "--device", "cpu", "--quiet", "--layers", *files]
    assert main([*common, "--mixer", "gla", "--out", str(tmp_path / "out")]) == 0
    lineages = {
        name: json.loads((tmp_path / "out" / name / "lineage.json").read_text()) for name in ("ga", "ga-0")
    }
    assert {name: each["mixers"].index("softmax") for name, each in lineages.items()} == {"ga": 1, "ga-0": 0}
    assert {name: each["selection"]["step"] for name, each in lineages.items()} == {"ga": None, "ga-0": 0}
    capsys.readouterr()
    assert main([*common, "--mixer", "gla", "kda", "--dry-run"]) == 0
    dry = capsys.readouterr().out
    assert all(f"{mixer}-{name}" in dry for mixer in ("gla", "kda") for name in ("ga", "ga-0"))
    for given, message in (
        (["--mixer", "gla", "--layers", f"{files[0]}@7"], "has no step 7 of a search; it has 0, 1"),
        (["--mixer", "gla", "--layers", files[0]], "two files have the same name"),
    ):
        assert main([*common, *given, "--out", str(tmp_path / "none")]) == 64
        assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "no such file"),
        ("{", "has no list 'layers'"),
        ('{"selector": "kv"}', "has no list 'layers'"),
        (
            '{"selector": "kv", "layers": [0], "teacher": "0123456789abcdef"}',
            "selected by kv for another teacher",
        ),
        ('{"selector": "kv", "layers": [7], "teacher": null}', "layers 0 to 2, not"),
    ],
)
def test_distill_refuses_invalid_selection_files(recipe, tmp_path, content, message):
    path = tmp_path / "layers.json"
    if content is not None:
        path.write_text(content)
    student = recipe.student.model_copy(update={"softmax_layers": str(path)})
    with pytest.raises(ConfigError, match=message):
        distill(recipe.model_copy(update={"student": student}), tmp_path / "out", device="cpu", quiet=True)


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"selector": "ga_s3"}, ConfigError, "unknown selector 'ga_s3'; did you mean 'ga_s"),
        ({"budget": 4}, ConfigError, "--budget 4: must be between 1 and 3, the layers of the teacher"),
        ({"selector": "fixed"}, ConfigError, "give a published set"),
        ({"mixer": "gated_deltanett"}, ConfigError, "unknown mixer or named student 'gated_deltanett'"),
    ],
)
def test_invalid_selections_are_refused(run_select, tmp_path, changes, error, message):
    settings = {"selector": "beam_add", "budget": 1, **changes}
    with pytest.raises(error, match=message):
        run_select(settings.pop("selector"), tmp_path / "x.json", **settings)
    assert not (tmp_path / "x.json").exists()


def test_several_mixers_or_no_teacher_are_refused(run_select, recipe, tmp_path):
    two = recipe.model_copy(update={"student": recipe.student.model_copy(update={"mixers": ["gla", "kda"]})})
    with pytest.raises(ConfigError, match="2 mixers; choose one for the search, such as --mixer kda"):
        run_select("uniform", tmp_path / "x.json", recipe=two)
    with pytest.raises(ConfigError, match="has no teacher"):
        run_select("uniform", tmp_path / "x.json", recipe=recipe.model_copy(update={"teacher": None}))


def test_unsupported_teacher_is_refused(run_select, recipe, tmp_path, tokenizer):
    folder = tmp_path / "gpt2"
    config = GPT2Config(n_embd=16, n_layer=2, n_head=2, n_positions=64, vocab_size=len(tokenizer))
    GPT2LMHeadModel(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    with pytest.raises(ConfigError, match=r"type 'gpt2': its layers cannot be replaced.*llama"):
        run_select("kv", tmp_path / "x.json", recipe=recipe.model_copy(update={"teacher": str(folder)}))


def test_file_or_work_folder_of_another_teacher_is_refused(run_select, recipe, tmp_path, tokenizer):
    """Same path, other weights: file and progress log must both be refused."""
    folder, out, work = tmp_path / "teacher", tmp_path / "layers.json", tmp_path / "work"
    mine = recipe.model_copy(update={"teacher": str(folder)})
    for seed in (1, 2):
        build_random_model(TINY, len(tokenizer), tokenizer, seed=seed).save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        if seed == 1:
            run_select("ar", out, recipe=mine, work=work)
    with pytest.raises(RunFolderError, match="selection of another teacher"):
        run_select("ar", out, recipe=mine, work=work)
    with pytest.raises(RunFolderError, match="belongs to another teacher"):
        run_select("ar", tmp_path / "new.json", recipe=mine, work=work)


def test_existing_selection_is_not_overwritten(run_select, tmp_path):
    out = tmp_path / "layers.json"
    run_select("uniform", out)
    with pytest.raises(RunFolderError, match="holds a selection by uniform with another"):
        run_select("uniform", out, budget=2)
    out.write_text(json.dumps({"schema": 1, "selector": "uniform", "layers": [0]}))
    with pytest.raises(RunFolderError, match=r"selection schema 1, not 2; delete it"):
        run_select("uniform", out)
    out.write_text("[1]")
    with pytest.raises(RunFolderError, match="is not a selection"):
        run_select("uniform", out)


def test_option_all_linear_needs_an_all_linear_student(run_select, recipe, tmp_path):
    with pytest.raises(CheckpointError, match="all-linear student of this teacher"):
        run_select("greedy", tmp_path / "x.json", options={"all_linear": str(recipe.teacher)})


def test_fixed_selection_records_its_source(run_select, tmp_path):
    value = run_select("fixed", tmp_path / "x.json", budget=2, options={"layers": [2, 0]})
    assert value["layers"] == [0, 2]
    assert value["details"]["source"] == "given"


def test_invalid_options_are_refused():
    assert load_selector("ga_s2", ["tokens=300k"]).tokens == 300_000
    assert load_selector("fixed", ["layers=[1,2]"]).layers == [1, 2]
    for selector, wrong, message in (
        ("ga_s2", "tokns=3", "unknown key 'tokns'; did you mean 'tokens'"),
        ("beam_add", "beam_width", "expected key=value"),
        ("greedy", "beam_width=2", "unknown key 'beam_width': it is an option of beam_add, beam_replace"),
        ("beam_add", "beam_width=0", "beam"),
    ):
        with pytest.raises(ConfigError, match=message):
            load_selector(selector, [wrong])


class Measured(MeasuredSets):
    """Perplexities that a function of the layers computes."""

    def __init__(self, context, function) -> None:
        self._context, self._unit, self._known, self.about = context, "hybrid", {}, {}
        self._function, self._cost = function, lambda row: (row["mean"],)

    def _measure(self, sets) -> None:
        for each in sets:
            self._known[each] = {"layers": sorted(each), "mean": self._function(each)}


def measured(context, function) -> dict[str, Measured]:
    return dict.fromkeys(("all-linear", "teacher"), Measured(context, function))


def together(layers: frozenset[int]) -> float:
    """Layer 0 helps most alone; layers 2 and 3 help more, but only together."""
    return 10.0 - 3.0 * (0 in layers) - 1.0 * (2 in layers) - 0.9 * (3 in layers) - 6.0 * ({2, 3} <= layers)


@pytest.mark.parametrize(("width", "found"), [(1, (0, 2)), (2, (2, 3))])
def test_beam_search_finds_layers_that_only_help_together(context, monkeypatch, width, found):
    context.layers = 4
    monkeypatch.setattr(PerplexitySearch, "hybrids", lambda *_: measured(context, together))
    result = small_selector("beam_add", beam_width=width).select(context, 2)
    assert result.layers == found
    assert result.scores == pytest.approx((3.0, 0.0, 1.0, 0.9))
    assert small_selector("greedy").select(context, 2).layers == (0, 2)
    assert [snapshot.step for snapshot in result.history] == [1, 2]


def test_beam_replace_keeps_the_most_harmful_replacements(context, monkeypatch):
    context.layers = 4
    monkeypatch.setattr(PerplexitySearch, "hybrids", lambda *_: measured(context, together))
    result = small_selector("beam_replace").select(context, 2)
    assert result.layers == (2, 3)
    assert result.scores == pytest.approx((3.0, 0.0, 7.0, 6.9))


@pytest.mark.parametrize("search", ["beam_add", "beam_replace", "greedy"])
def test_searches_measure_the_teacher_and_swap_attention_only(context, search):
    """MLPs, norms and embeddings stay those of the student that the search starts from (arXiv 2603.26556)."""
    result = small_selector(search).select(context, 2)
    text = context.held_out
    assert result.details["teacher"]["text"] == pytest.approx(text.perplexity(context.teacher), rel=1e-5)
    assert result.details["all_linear"]["text"] == pytest.approx(
        text.perplexity(context.all_linear), rel=1e-5
    )
    assert result.details["teacher"]["text"] != pytest.approx(result.details["all_linear"]["text"], rel=1e-3)
    base, donor = context.all_linear, context.teacher
    swapped = set(result.layers)
    if search == "beam_replace":
        base, donor, swapped = donor, base, set(range(3)) - swapped
    expected = copy.deepcopy(base)
    for layer in swapped:
        expected.model.layers[layer].self_attn = donor.model.layers[layer].self_attn
    assert result.details["selected"]["text"] == pytest.approx(text.perplexity(expected), rel=1e-5)
