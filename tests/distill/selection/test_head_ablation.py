"""`head_ablation`: heads by the loss of returning text without them."""

import json

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

from evalsuite.cli.entry import main
from evalsuite.distill.recipe import write_recipe
from evalsuite.distill.selection.result import SelectionResult
from evalsuite.distill.selection.selectors.head_ablation import (
    mean_loss,
    returning_tokens,
    without_heads,
)
from evalsuite.distill.training.held_out import held_out_text
from evalsuite.foundation import ConfigError, DataError
from evalsuite.models import load_checkpoint
from evalsuite.reports.measures.selection_pairs import selection_pairs
from evalsuite.reports.records.sidecars import read_selection
from tests.distill.selection.conftest import small_selector


def test_tokens_return_within_their_row():
    rows = np.array([[1, 2, 3, 9, 1, 2, 3, 4], [1, 2, 3, 4, 5, 6, 7, 8]])
    assert returning_tokens(rows, 3).nonzero() == (np.array([0]), np.array([6]))
    assert returning_tokens(rows, 2).sum() == 2
    with pytest.raises(DataError, match="no sequence of 4 tokens comes back in 16 held-out tokens; set"):
        returning_tokens(rows, 4)


@torch.no_grad()
def test_losses_are_those_of_the_tokens_and_without_the_head(context):
    rows = held_out_text(context.training_recipe, context.tokenizer, 256, 128)
    returning = returning_tokens(rows, 2)
    ids, chosen = torch.tensor(rows), torch.tensor(returning)[:, 1:]
    losses = []
    without = without_heads(context.teacher, 1, [2])
    for model in (context.teacher, without):
        nll = cross_entropy(model(ids).logits[:, :-1].transpose(1, 2), ids[:, 1:], reduction="none")
        losses.append(mean_loss(model, rows, returning))
        assert losses[-1] == pytest.approx(float(nll[chosen].mean()), rel=1e-4)
    assert losses[0] != losses[1]
    theirs, mine = (model.model.layers[1].self_attn for model in (context.teacher, without))
    changed = theirs.o_proj.weight != mine.o_proj.weight
    assert changed[:, 16:24].all()
    assert changed.sum() == changed[:, 16:24].numel()
    found = small_selector("head_ablation", seq_len=128, ngram=2).select(context, 1)
    assert found.head_scores[1][2] == pytest.approx(losses[1] - losses[0], rel=1e-3, abs=1e-6)
    assert found.details["loss"] == pytest.approx(losses[0], rel=1e-6)
    noted = [
        note for note in found.notes if note.startswith("the teacher predicts returning tokens no better")
    ]
    assert bool(noted) == (found.details["loss"] >= found.details["other_loss"])


def test_a_layer_of_which_all_heads_are_chosen_is_a_softmax_layer():
    found = SelectionResult.of_head_scores([5, 4, 0, 3, 1, 0], 2, 3)
    assert (found.layers, found.heads) == ((0,), {1: (1,)})
    assert found.head_scores == ((5, 4), (0, 3), (1, 0))


def test_a_selection_of_heads_is_distilled_and_compared(recipe, work, tmp_path, capsys):
    (tmp_path / "recipe.yaml").write_text(write_recipe(recipe))
    common = [str(tmp_path / "recipe.yaml"), "--device", "cpu", "--quiet"]
    options = ["--option", "held_out=2", "seq_len=128", "ngram=2", "--work", str(work)]
    select = ["select", *common, "--selector", "head_ablation", "--budget", "2", "3", *options]
    assert main([*select, "--out", str(tmp_path / "heads.json")]) == 0
    printed = capsys.readouterr().out
    files = [tmp_path / f"heads-{budget}.json" for budget in (2, 3)]
    found = [read_selection(file) for file in files]
    for budget, each in zip((2, 3), found, strict=True):
        assert len(each.units) == budget
        assert f"head_ablation selects {each.chosen}\n" in printed
        best = sorted(range(12), key=lambda at, each=each: -each.unit_scores[at])[:budget]
        assert sorted(best) == sorted(each.units)
        assert f"{budget} softmax heads, selected by head_ablation" in (
            (tmp_path / f"heads-{budget}.html").read_text()
        )
    (pair,) = selection_pairs(found, ["a", "b"])
    assert (pair.shared, pair.smaller, pair.tau) == (2, 2, 1)
    assert main(["distill", *common, "--layers", str(files[1]), "--out", str(tmp_path / "out")]) == 0
    (folder,) = (each.parent for each in (tmp_path / "out").glob("*/lineage.json"))
    lineage = json.loads((folder / "lineage.json").read_text())
    assert lineage["selection"]["selector"] == "head_ablation"
    heads = {int(layer): tuple(own) for layer, own in lineage["softmax_heads"].items()}
    assert heads == found[1].heads
    model = load_checkpoint(folder).model
    assert model.config.softmax_heads == {layer: list(own) for layer, own in heads.items()}


def test_what_cannot_be_selected_is_refused(context, recipe, work, tmp_path, monkeypatch):
    from evalsuite.distill.selection import select

    settings = {"device": "cpu", "quiet": True, "work": work}
    selector = small_selector("head_ablation", seq_len=128, ngram=2)
    with pytest.raises(ConfigError, match="--budget 13: must be between 1 and 12, the heads of the teacher"):
        select(recipe, selector, tmp_path / "a.json", budget=13, **settings)
    monkeypatch.setattr(type(selector), "select", lambda *_: SelectionResult(layers=()))
    with pytest.raises(ConfigError, match="selector head_ablation selected nothing of 2 heads"):
        select(recipe, selector, tmp_path / "a.json", budget=2, **settings)
