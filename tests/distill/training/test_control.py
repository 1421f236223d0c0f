"""What processes agree on over gloo: flags of the training loop, and shares of generated responses."""

from functools import partial
from pathlib import Path
from typing import Any

import torch

from evalsuite.distill.data import responses
from evalsuite.distill.data.responses import generate_responses
from evalsuite.distill.training.distributed import ProcessGroup
from evalsuite.foundation import read_jsonl
from tests.distill.training.two_processes import needs_loopback, run_both


def exchange_flags(out: Path, rank: int) -> None:
    flags = ProcessGroup("cpu").delayed_flags()
    seen = [flags.exchange(rank == 1 and step == 2, rank == 0 and step == 3) for step in range(6)]
    torch.save([*seen, flags.finish(), flags.finish()], out / f"{rank}.pt")


@needs_loopback
def test_flags_arrive_in_all_processes_at_the_same_call(tmp_path: Path) -> None:
    assert run_both(partial(exchange_flags, tmp_path)) == [0, 0]
    no = (False, False)
    expected = [no, no, no, (True, False), (False, True), no, no, ()]
    assert [torch.load(tmp_path / f"{rank}.pt") for rank in (0, 1)] == [expected, expected]


def test_flags_of_a_single_process_need_no_exchange() -> None:
    flags = ProcessGroup("cpu").delayed_flags()
    assert flags.exchange(True, False) == (True, False)
    assert flags.finish() == ()


def generate(recipe: Any, out: Path, rank: int) -> None:
    """Generate the responses, and store which of them this process computed."""
    group = ProcessGroup("cpu")
    computed = []
    inner = responses._Generation.run

    def counting(self: Any, rank: int, world_size: int, *, quiet: bool) -> list[Any]:
        engine_generate = self._engine.generate
        self._engine.generate = lambda requests, *rest, **options: (
            computed.extend(request.prompt for request in requests)
            or engine_generate(requests, *rest, **options)
        )
        found = inner(self, rank, world_size, quiet=quiet)
        self._engine.generate = engine_generate
        return found

    responses._Generation.run = counting  # type: ignore[method-assign]
    generate_responses(recipe.data, recipe.teacher, out, group, read=recipe.data, quiet=True)
    torch.save(computed, out / f"{rank}.pt")


@needs_loopback
def test_processes_share_the_generation_of_responses(small_recipe: Any, stage: Any, tmp_path: Path) -> None:
    replies = {"kind": "responses", "prompt_source": "questions", "num_prompts": 8, "max_new_tokens": 6}
    questions = {"kind": "pocket", "max_haystack_tokens": 128, "mixture": {"facts": 1.0}}
    recipe = small_recipe(
        "pocket",
        data={"questions": questions, "replies": replies},
        stages=[stage("kd", "kd", data="replies", tokens=256)],
    )
    one, two = tmp_path / "one", tmp_path / "two"
    generate_responses(recipe.data, "pocket", one, ProcessGroup("cpu"), read=recipe.data, quiet=True)
    assert run_both(partial(generate, recipe, two)) == [0, 0]
    paths = [path for folder in (one, two) for path in (folder / "responses").glob("replies.*.jsonl")]
    assert len(list(read_jsonl(paths[0]))) > 3
    assert paths[0].read_bytes() == paths[1].read_bytes()
    computed = [torch.load(two / f"{rank}.pt") for rank in (0, 1)]
    assert [len(each) for each in computed] == [4, 4]
    assert len({*computed[0], *computed[1]}) == 8
