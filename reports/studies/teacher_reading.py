"""What a teacher of the harder pocket world has learned to look up, and what is left of its training loss.

    python -m evalsuite.reports.studies.teacher_reading TEACHER --out reports/results/pocket-10m-teacher

Writes kinds.csv: the teacher's loss on new training texts by kind, with the kind's share of the loss tokens
of recipe `pocket-10m-teacher`; and lookups.csv: how often the candidate of highest probability at the
deciding token is the right one, next to chance, for fewer people than the benchmarks have, for texts that
need no change of wording, and for recitation, which such a teacher can do. Exit code 0; 64 or more if
nothing was measured.
"""

import argparse
import random
import re
import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch

from evalsuite.cli.exit_codes import guarded
from evalsuite.distill.recipe import load_recipe
from evalsuite.distill.recipe.data_sources import PocketSourceConfig
from evalsuite.foundation import write_csv
from evalsuite.foundation.parser import Parser
from evalsuite.models import Checkpoint, load_checkpoint
from evalsuite.tasks.synthetic.pocket.corpus import texts
from evalsuite.tasks.synthetic.pocket.harder import choice, passage, recite, two_hop

SEED = 7
"""Of texts and probes; the recipe's data have seeds 0 and 1."""
_HOME = re.compile(r"(\w+) (?:lives in|has a house in|is at home in) (\w+)\.")
_OTHER_HOMES = re.compile(r"has a house in|is at home in")
Draw = Callable[[random.Random], tuple[str, str, list[str]]]
"""Draws a prompt, the right candidate and all candidates."""


def logits(teacher: Checkpoint, ids: list[int]) -> torch.Tensor:
    """Logits after every token. [tokens, vocabulary]"""
    with torch.inference_mode():
        return teacher.model(input_ids=torch.tensor([ids])).logits[0].float()


def tokens(teacher: Checkpoint, text: str) -> list[int]:
    """Token ids of a piece of text."""
    return list(teacher.tokenizer(text, add_special_tokens=False)["input_ids"])


def loss_of_kind(teacher: Checkpoint, kind: str, count: int, longest: int) -> tuple[float, float, float]:
    """Tokens a text, loss tokens a text, and mean loss in nats of one kind of training text."""
    stream = texts(SEED, "train", mixture={kind: 1.0}, longest=longest)
    read = counted = 0
    loss = 0.0
    for _ in range(count):
        ids: list[int] = []
        in_loss: list[bool] = []
        for segment in next(stream):
            piece = tokens(teacher, segment.text)
            ids += piece
            in_loss += [segment.answer] * len(piece)
        nll = torch.nn.functional.cross_entropy(
            logits(teacher, ids)[:-1], torch.tensor(ids[1:]), reduction="none"
        )
        mask = torch.tensor(in_loss[1:])
        read, counted, loss = read + len(ids), counted + int(mask.sum()), loss + float(nll[mask].sum())
    return read / count, counted / count, loss / counted


def loss_by_kind(
    teacher: Checkpoint, mixture: Mapping[str, float], count: int, longest: int
) -> list[list[Any]]:
    """Rows of kinds.csv."""
    found = {kind: loss_of_kind(teacher, kind, count, longest) for kind in mixture}
    all_tokens = sum(mixture[kind] * each[1] for kind, each in found.items())
    all_loss = sum(mixture[kind] * each[1] * each[2] for kind, each in found.items())
    return [
        [
            kind,
            mixture[kind],
            *(f"{value:.1f}" for value in (read, counted)),
            f"{mixture[kind] * counted / all_tokens:.3f}",
            f"{loss:.3f}",
            f"{mixture[kind] * counted * loss / all_loss:.3f}",
        ]
        for kind, (read, counted, loss) in found.items()
    ]


def town(rng: random.Random, *, people: int, same_wording: bool) -> tuple[str, str, list[str]]:
    """The first step of two facts; `same_wording`: homes are told as the response tells them."""
    question = two_hop.draw(rng, people=people)[0]
    homes = dict(_HOME.findall(question.prompt))
    name = question.response.split()[0]
    prompt = _OTHER_HOMES.sub("lives in", question.prompt) if same_wording else question.prompt
    return f"{prompt} {name} lives in", f" {homes[name]}", [f" {each}" for each in homes.values()]


def thing(rng: random.Random, *, people: int, same_wording: bool) -> tuple[str, str, list[str]]:
    """The object of an event; `same_wording`: no question, its sentence begins a second time."""
    drawn = passage.draw_passage(rng, people)
    event = rng.choice(drawn.events)
    inquiry = f"\n{passage.ask(event)}\nAnswer:"
    again = f" In the {event.spot} {event.name} found a"
    candidates = [f" {each.thing}" for each in drawn.events]
    return drawn.text + (again if same_wording else inquiry), f" {event.thing}", candidates


def option(rng: random.Random, *, people: int, options: int) -> tuple[str, str, list[str]]:
    """The named option; every name is a space and a digit."""
    question = choice.draw(rng, people=people, options=options)[0]
    return f"{question.prompt} ", question.answer, list(choice.NAMES[:options])


def word(rng: random.Random) -> tuple[str, str, list[str]]:
    """The next word of a recitation."""
    question = recite.draw(rng)
    listed = [f" {each}" for each in question.answer.rstrip(".").split()]
    place = rng.randrange(len(listed))
    return question.prompt + "".join(listed[:place]), listed[place], listed


def looked_up(teacher: Checkpoint, draw: Draw, count: int) -> tuple[float, float]:
    """Share of probes whose most probable candidate, by its first token, is right; and chance."""
    rng = random.Random(SEED)
    right = chance = 0.0
    for _ in range(count):
        prompt, answer, candidates = draw(rng)
        last = logits(teacher, tokens(teacher, prompt))[-1]
        first = {each: tokens(teacher, each)[0] for each in candidates}
        right += first[max(candidates, key=lambda each: float(last[first[each]]))] == first[answer]
        chance += 1 / len(candidates)
    return right / count, chance / count


PROBES: Mapping[str, Draw] = {
    "word of a recitation": word,
    **{f"town, {n} people": partial(town, people=n, same_wording=False) for n in (2, 3, 6)},
    "town, 6 people, told as the response": partial(town, people=6, same_wording=True),
    **{f"object, {n} people": partial(thing, people=n, same_wording=False) for n in (2, 3, 4)},
    "object, 4 people, sentence begun again": partial(thing, people=4, same_wording=True),
    **{f"option, {n} people, {k} options": partial(option, people=n, options=k) for n, k in ((2, 2), (4, 4))},
}


def _write(path: Path, header: list[str], rows: list[list[Any]]) -> None:
    write_csv(path, header, rows)
    print(path.read_text())


def main() -> int:
    """Measure a teacher and write both tables."""
    parser = Parser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("teacher", help="folder of the checkpoint")
    parser.add_argument("--texts", type=int, default=100, help="texts of each kind")
    parser.add_argument("--probes", type=int, default=150, help="texts of each probe")
    parser.add_argument("--out", type=Path, required=True, help="folder for the tables")
    arguments = parser.parse_args()
    teacher = load_checkpoint(arguments.teacher, dtype="float32")
    teacher.model.eval()
    data = load_recipe("pocket-10m-teacher").data["short"]
    assert isinstance(data, PocketSourceConfig)
    assert data.max_haystack_tokens is not None
    arguments.out.mkdir(parents=True, exist_ok=True)
    columns = ["kind", "share_of_texts", "tokens_per_text", "loss_tokens_per_text"]
    rows = loss_by_kind(teacher, data.mixture, arguments.texts, data.max_haystack_tokens)
    _write(arguments.out / "kinds.csv", [*columns, "share_of_loss_tokens", "loss", "share_of_loss"], rows)
    rows = []
    for name, draw in PROBES.items():
        right, chance = looked_up(teacher, draw, arguments.probes)
        rows.append([name, arguments.probes, f"{right:.3f}", f"{chance:.3f}"])
    _write(arguments.out / "lookups.csv", ["probe", "texts", "right", "chance"], rows)
    return 0


if __name__ == "__main__":
    sys.exit(guarded("teacher_reading", main, resumable=False))
