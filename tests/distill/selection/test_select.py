"""The whole way: a selector, a file, a student; and what is refused on it."""

import json
from pathlib import Path

import pytest
from transformers import GPT2Config, GPT2LMHeadModel

from evalsuite.distill import distill, dry_run
from evalsuite.distill.selection import SELECTORS, beam, load_options, select
from evalsuite.distill.selection.options import kd_stage
from evalsuite.distill.setup import from_architecture, with_selection
from evalsuite.foundation import CheckpointError, ConfigError, RunFolderError
from evalsuite.reports.extras import Selection
from tests.distill.conftest import TINY


@pytest.fixture
def choose(recipe, options, work):
    """A function that selects with the tiny teacher, in the folder that all tests share."""

    def run(selector: str, out: Path, budget: int = 1, **changes):
        settings = {"device": "cpu", "quiet": True, "work": work, **changes}
        return select(
            settings.pop("recipe", recipe),
            selector,
            out,
            budget=budget,
            options=settings.pop("options", options()),
            **settings,
        )

    return run


@pytest.mark.parametrize("selector", [name for name in SELECTORS if name != "fixed"])
def test_every_selector_writes_a_selection_that_reports_read(choose, tmp_path, selector):
    value = choose(selector, tmp_path / "layers.json", budget=2)
    read = Selection.model_validate(json.loads((tmp_path / "layers.json").read_text()))
    assert len(read.layers) == 2
    assert set(read.layers) <= {0, 1, 2}
    assert read.teacher == value["teacher"]
    if selector != "uniform":
        assert len(read.scores) == 3
        assert len(set(read.scores)) > 1
    needs = SELECTORS[selector].needs
    assert read.mixer == ("gated_deltanet" if needs in ("trunk", "training") else None)
    if needs == "training":
        assert read.tokens == value["details"]["cost"]["student_tokens"] > 0


@pytest.mark.parametrize("selector", ["ga_s1", "gr_s1", "avg_s1"])
def test_a_selection_by_rounds_is_one_that_reports_read(choose, options, tmp_path, selector):
    choose(selector, tmp_path / "layers.json", budget=2, options=options(iterative=True))
    read = Selection.model_validate(json.loads((tmp_path / "layers.json").read_text()))
    assert len(read.layers) == 2
    assert read.stop is None
    best = sorted(range(3), key=lambda layer: -read.scores[layer])[:2]
    if selector != "avg_s1":
        assert sorted(best) == list(read.layers)
        assert [len(step.layers) for step in read.history] == ([1, 2] if selector == "ga_s1" else [2])


def test_a_finished_selection_is_returned_as_it_is(choose, tmp_path, monkeypatch):
    first = choose("kv", tmp_path / "layers.json")
    monkeypatch.setattr("evalsuite.distill.selection.guided.guided", None)
    assert choose("kv", tmp_path / "layers.json") == first


def test_an_interrupted_bypass_asks_no_layer_twice(recipe, options, tmp_path, monkeypatch):
    from evalsuite.distill.selection import guided

    measured = guided._measured
    calls = []

    def counting(ground, asked):
        calls.append(1)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return measured(ground, asked)

    monkeypatch.setattr(guided, "_measured", counting)
    settings = {"budget": 1, "options": options(), "device": "cpu", "quiet": True}
    with pytest.raises(KeyboardInterrupt):
        select(recipe, "ar", tmp_path / "a.json", **settings)
    select(recipe, "ar", tmp_path / "a.json", **settings)
    # The teacher as it is and three layers; the third call died, and the two before it were kept.
    assert len(calls) == 5


def test_a_probe_may_be_another_mixer_than_the_student(choose, recipe, tmp_path, small_recipe, stage):
    """Selected with Gated DeltaNet, distilled with GLA."""
    layers = tmp_path / "layers.json"
    chosen = choose("ga_s2", layers, budget=1)
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
    }
    expected = ["softmax" if layer in chosen["layers"] else "gla" for layer in range(3)]
    assert lineage["mixers"] == expected


def test_a_run_belongs_to_the_layers_and_not_to_the_file(recipe, tmp_path):
    path = tmp_path / "layers.json"
    student = recipe.student.model_copy(update={"softmax_layers": str(path)})
    asked = recipe.model_copy(update={"student": student})
    hashes = []
    for layers in ([0], [1]):
        path.write_text(json.dumps({"selector": "kv", "layers": layers, "teacher": None}))
        hashes.append(with_selection(asked).hash)
    assert hashes[0] != hashes[1]
    path.write_text("[2, 0]")
    found = with_selection(asked).student
    assert (found.softmax_layers, found.selection) == ([0, 2], None)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "no such file"),
        ("{", "holds no list 'layers'"),
        ('{"selector": "kv"}', "holds no list 'layers'"),
        (
            '{"selector": "kv", "layers": [0], "teacher": "0123456789abcdef"}',
            "chosen by kv in another teacher",
        ),
        ('{"selector": "kv", "layers": [7], "teacher": null}', "layers 0 to 2, not"),
    ],
)
def test_distil_refuses_a_file_that_does_not_fit(recipe, tmp_path, content, message):
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
        ({"budget": 4}, ConfigError, "--budget 4: the teacher has 3 layers"),
        ({"selector": "fixed"}, ConfigError, "name a published set"),
        ({"mixer": "gated_deltanett"}, ConfigError, "unknown mixer 'gated_deltanett'"),
    ],
)
def test_bad_questions_are_refused(choose, tmp_path, changes, error, message):
    settings = {"selector": "beam_add", "budget": 1, **changes}
    with pytest.raises(error, match=message):
        choose(settings.pop("selector"), tmp_path / "x.json", **settings)
    assert not (tmp_path / "x.json").exists()


def test_several_mixers_or_no_teacher_are_refused(choose, recipe, tmp_path):
    two = recipe.model_copy(update={"student": recipe.student.model_copy(update={"mixers": ["gla", "kda"]})})
    with pytest.raises(ConfigError, match="2 mixers; choose the one that probes, such as --mixer kda"):
        choose("uniform", tmp_path / "x.json", recipe=two)
    with pytest.raises(ConfigError, match="has no teacher"):
        choose("uniform", tmp_path / "x.json", recipe=recipe.model_copy(update={"teacher": None}))


def test_a_teacher_whose_layers_cannot_be_taken_one_by_one_is_refused(choose, recipe, tmp_path, tokenizer):
    folder = tmp_path / "gpt2"
    config = GPT2Config(n_embd=16, n_layer=2, n_head=2, n_positions=64, vocab_size=len(tokenizer))
    GPT2LMHeadModel(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    with pytest.raises(ConfigError, match=r"type 'gpt2': its layers cannot be bypassed.*llama"):
        choose("kv", tmp_path / "x.json", recipe=recipe.model_copy(update={"teacher": str(folder)}))


def test_a_file_or_a_folder_of_another_teacher_is_refused(choose, recipe, options, tmp_path, tokenizer):
    """The same place, other weights: neither the file nor the history may be taken for this teacher's."""
    folder, out, work = tmp_path / "teacher", tmp_path / "layers.json", tmp_path / "work"
    mine = recipe.model_copy(update={"teacher": str(folder)})
    for seed in (1, 2):
        from_architecture(TINY, len(tokenizer), tokenizer, seed=seed).save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        if seed == 1:
            choose("ar", out, recipe=mine, work=work)
    with pytest.raises(RunFolderError, match="selection of another teacher"):
        choose("ar", out, recipe=mine, work=work)
    with pytest.raises(RunFolderError, match="history of another teacher"):
        choose("ar", tmp_path / "new.json", recipe=mine, work=work)


def test_another_question_does_not_overwrite_an_answer(choose, tmp_path):
    out = tmp_path / "layers.json"
    choose("uniform", out)
    with pytest.raises(RunFolderError, match="holds a selection by uniform with another"):
        choose("uniform", out, budget=2)
    out.write_text("[1]")
    with pytest.raises(RunFolderError, match="is not a selection"):
        choose("uniform", out)


def test_a_trunk_that_is_none_is_refused(choose, options, recipe, tmp_path):
    with pytest.raises(CheckpointError, match="all-linear student of this teacher"):
        choose("greedy", tmp_path / "x.json", options=options(trunk=str(recipe.teacher)))


def test_a_fixed_list_is_written_with_its_source(choose, options, tmp_path):
    value = choose("fixed", tmp_path / "x.json", budget=2, options=options(layers=[2, 0]))
    assert value["layers"] == [0, 2]
    assert value["details"]["source"] == "given"


def test_options_are_checked_by_name():
    assert load_options(["tokens=300k", "layers=[1,2]"]).tokens == 300_000
    for wrong, message in (
        ("tokns=3", "did you mean 'tokens'"),
        ("beam", "expected key=value"),
        ("beam=0", "beam"),
    ):
        with pytest.raises(ConfigError, match=message):
            load_options([wrong])


def test_the_brief_distillation_may_be_gentler_than_the_recipe(recipe, options):
    stage = next(each for each in recipe.stages if each.objective == "kd")
    assert kd_stage(recipe, options()).lr == stage.lr
    for rest in (None, 0.5):
        changed = stage.model_copy(update={"lr_rest": rest})
        stages = [changed if each is stage else each for each in recipe.stages]
        found = kd_stage(recipe.model_copy(update={"stages": stages}), options(rate=0.2))
        assert (found.lr, found.lr_rest) == (stage.lr * 0.2, None if rest is None else 0.1)


class Measured:
    """Perplexities from a function, with the search's own bookkeeping."""

    def __init__(self, function) -> None:
        self._function, self.seen = function, []

    def __call__(self, layers) -> float:
        return self.parts(layers)["mean"]

    def parts(self, layers):
        self.seen.append(frozenset(layers))
        return {"layers": sorted(layers), "mean": self._function(frozenset(layers))}

    @property
    def measured(self) -> int:
        return len(set(self.seen))

    def best(self, candidates, keep, what):
        return sorted(candidates, key=lambda each: (self(each), sorted(each)))[:keep]


def together(layers: frozenset[int]) -> float:
    """Layer 0 helps most alone, layers 2 and 3 help more, but only together."""
    return 10.0 - 3.0 * (0 in layers) - 1.0 * (2 in layers) - 0.9 * (3 in layers) - 6.0 * ({2, 3} <= layers)


@pytest.mark.parametrize(("width", "found"), [(1, (0, 2)), (2, (2, 3))])
def test_a_beam_finds_layers_that_only_help_together(ground, monkeypatch, width, found):
    ground.layers = 4
    ground.options = ground.options.model_copy(update={"beam": width})
    monkeypatch.setattr(beam, "_perplexities", lambda ground: Measured(together))
    outcome = beam.beam_add(ground, 2)
    assert outcome.layers == found
    assert outcome.scores == pytest.approx((3.0, 0.0, 1.0, 0.9))
    assert beam.greedy(ground, 2).layers == (0, 2)
    assert [snapshot.step for snapshot in outcome.history] == [1, 2]


def test_replacing_keeps_what_hurts_most(ground, monkeypatch):
    ground.layers = 4
    monkeypatch.setattr(beam, "_perplexities", lambda ground: Measured(together))
    outcome = beam.beam_replace(ground, 2)
    assert outcome.layers == (2, 3)
    assert outcome.scores == pytest.approx((3.0, 0.0, 7.0, 6.9))
