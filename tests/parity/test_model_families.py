"""Models of every family give transformers' own numbers; the documentation says which engine runs them."""

from pathlib import Path

import pytest
import torch

from evalsuite.models.decoder.families import FOREIGN_WINDOWS
from evalsuite.models.inference.torch.engine import TorchEngine
from tests.parity import model_families
from tests.parity.model_families import Reference, Result, compare, make_requests, row, run, update_table
from tests.parity.tiny_families import EOS, FAMILIES, make_checkpoint

DOCUMENT = Path(__file__).parents[2] / "docs" / "reference" / "families.md"
HANDFUL = ("rwkv", "mamba2", "qwen3_next", "bloom", "granite")
"""One of each kind: a state of its own, recurrent, hybrid, ALiBi, scaled logits."""


def documented() -> list[str]:
    table = DOCUMENT.read_text().split(model_families.TABLE, 1)[1].lstrip("\n")
    return table.split("\n\n", 1)[0].splitlines()


def test_the_table_lists_every_family() -> None:
    titles = [line.split("|")[1].strip() for line in documented()]
    assert titles == [family.title for family in FAMILIES.values()]


def check(name: str, count: int) -> None:
    results = run(FAMILIES[name], count)
    assert results["torch"].holds(), results
    assert results["transformers"].refusal is None
    assert results["transformers"].holds(), results
    assert row(FAMILIES[name], results) in documented(), "docs/reference/families.md is stale: write it again"


@pytest.mark.parametrize("name", HANDFUL)
def test_engines_equal_the_models_own_forward(name: str) -> None:
    check(name, 10)


@pytest.mark.long
@pytest.mark.parametrize("name", FAMILIES)
def test_every_family_on_fifty_prompts(name: str) -> None:
    check(name, 50)


def test_windows_that_engine_torch_trusts_are_compared() -> None:
    compared = {
        family.model_type
        for family, line in zip(FAMILIES.values(), documented(), strict=True)
        if family.settings.get("sliding_window") == 7 and line.split("|")[3].strip() == "torch"
    }
    ours = {"gemma2", "gemma3_text", "mistral", "olmo3", "qwen2", "qwen3"}
    assert FOREIGN_WINDOWS | ours == compared


def test_a_wrong_engine_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoint, requests = make_checkpoint(FAMILIES["llama"]), make_requests(3)
    reference = model_families.make_reference(checkpoint.model, requests)
    assert compare(TorchEngine, checkpoint, requests, reference).holds()
    wrong = [(EOS + 1, *tokens[1:]) for tokens in reference.responses]
    assert not compare(
        TorchEngine, checkpoint, requests, Reference(reference.logprobs, wrong, reference.choices)
    ).holds()
    higher = [[value + 1e-3 for value in sums] for sums in reference.logprobs]
    assert not compare(
        TorchEngine, checkpoint, requests, Reference(higher, reference.responses, reference.choices)
    ).holds()


def test_only_ties_may_differ() -> None:
    steps = [torch.tensor([-2.0, -1.0, -9.0, -1.0 - 5e-5]), torch.tensor([-1.0, -2.0, -9.0, -3.0])]
    reference = Reference([], [(1, 0)], [steps])
    assert not reference.changed(0, (1, 0))
    assert not reference.changed(0, (3, 2, 2))
    assert reference.changed(0, (0, 0))
    assert reference.changed(0, (1, 1))
    assert reference.changed(0, (1,))


def test_rows_replace_the_table_only() -> None:
    document = f"before\n\n{model_families.TABLE}\n| old |\n\nafter\n"
    assert (
        update_table(document, ["| a |", "| b |"])
        == f"before\n\n{model_families.TABLE}\n| a |\n| b |\n\nafter\n"
    )
    refused = Result("XForCausalLM: read in a batch gives other logits, by up to 4.96")
    text = row(FAMILIES["rwkv"], {"torch": refused, "transformers": Result(reading="padded")})
    assert text == "| RWKV | `rwkv` | transformers | read in a batch gives other logits | padded |"
