"""Recurrences and short convolutions, which read states and write them."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal, get_args

import torch
from torch import Tensor
from torch.nn import functional

from evalsuite.models.ops.recurrence import RecurrenceInputs, StateAccess, fla_backend, naive_recurrent
from evalsuite.models.ops.recurrence.inputs import DecayShape
from evalsuite.models.ops.short_conv import short_convolutions
from tests.performance.inference_kernels.case import Case, Setting, Way

Use = Literal["", "in place", "in slots", "continuations", "prompts"]
"""Where the states lie that rows start from, and where new ones go:

- "": each row has its own, and new ones are written elsewhere;
- in place: the same, and new ones are written over them, as in a decode step;
- in slots: in another order, and new ones are written over them, as in vLLM;
- continuations: four rows start from each context's, and none are written;
- prompts: rows are padded and start from zeros.
"""
TAPS = 4
STEPS, ROWS = ((512, 1), (2048, 1)), ((2000, 45),)
"""Sizes at which all decays and write rules are measured."""
SHORT_ROWS = ((8000, 10), (4000, 21))
LONG_ROWS = ((1000, 90), (700, 128), (64, 128))


def cases(setting: Setting, small: bool) -> Iterator[Case]:
    """All operations with states at the sizes of the benchmark."""
    steps, rows, short, long = (
        (((3, 1),), ((4, 5),), (), ()) if small else (STEPS, ROWS, SHORT_ROWS, LONG_ROWS)
    )
    for size in (*steps, *short, *rows, *long):
        everything = size in steps or size in rows
        for decay in get_args(DecayShape) if everything else ("scalar",):
            for delta in (False, True):
                for use in uses(size[1]):
                    if use in ("", "in place") or decay == "scalar":
                        yield recurrence(setting, *size, decay, delta, use)
    for size in (*steps[:1], *short[1:], *rows):
        for use in uses(size[1]):
            if use != "in place" or size[1] == 1:
                yield convolutions(setting, *size, use)


def uses(tokens: int) -> tuple[Use, ...]:
    """Uses of states by rows of so many tokens."""
    if tokens == 1:
        return "in place", "", "in slots"
    return "in place", "", "continuations", "prompts"


@dataclass(frozen=True, slots=True)
class States:
    """States as one implementation of an operation is given them."""

    use: Use
    stored: Tensor | None
    slots: Tensor | None
    """Index of each row's state among the stored ones; None: state i is that of row i."""
    real: Tensor | None
    """bool [B, T], false at padding; None: all tokens are real."""

    @classmethod
    def draw(cls, setting: Setting, use: Use, rows: int, tokens: int, shape: Sequence[int]) -> "States":
        """States in float32 of the given shape, a tenth of a standard normal variable."""
        slots = real = stored = None
        if use != "prompts":
            count = rows // 4 if use == "continuations" else rows
            stored = 0.1 * torch.randn(count, *shape, device=setting.device)
        if use == "in slots":
            slots = torch.randperm(rows, device=setting.device)
        elif use == "continuations":
            slots = setting.index(range(rows)) // 4
        elif use == "prompts":
            lengths = torch.randint(tokens // 2, tokens + 1, (rows, 1), device=setting.device)
            real = setting.index(range(tokens)) < lengths
        return cls(use, stored, slots, real)

    def to(self, dtype: torch.dtype) -> "States":
        """A copy of its own, in another dtype."""
        stored = None if self.stored is None else self.stored.to(dtype, copy=True)
        return States(self.use, stored, self.slots, self.real)

    def channels(self, start: int, count: int) -> "States":
        """A copy of some channels, the first axis of a state."""
        stored = None if self.stored is None else self.stored.narrow(1, start, count).clone()
        return States(self.use, stored, self.slots, self.real)

    def access(self) -> StateAccess:
        """How kernels may use the states."""
        return StateAccess(self.slots, in_place=self.use == "in place", discards=self.use == "continuations")

    def read(self) -> Tensor | None:
        """States row by row; those in slots are copied."""
        return self.stored if self.slots is None or self.stored is None else self.stored[self.slots]

    def write(self, new: Tensor) -> None:
        """Store new states, if the use does so."""
        if self.stored is not None and self.use == "in place":
            self.stored.copy_(new)
        elif self.stored is not None and self.use == "in slots":
            self.stored[self.slots] = new

    def results(self, found: tuple[Any, Tensor]) -> list[Tensor]:
        """Outputs of a call, and states where the use wants them."""
        outputs, new = found
        outputs = [outputs] if isinstance(outputs, Tensor) else list(outputs)
        if self.use == "continuations":
            return outputs
        return [*outputs, new if self.stored is None or not self.use else self.stored]

    def way(self, name: str, compute: Callable[["States"], tuple[Any, Tensor]]) -> Way:
        """An implementation that reads and writes a copy of these states."""
        own = self.to(torch.float32 if self.stored is None else self.stored.dtype)
        return Way(name, partial(compute, own), own.results)


def recurrence(setting: Setting, rows: int, tokens: int, decay: DecayShape, delta: bool, use: Use) -> Case:
    """The recurrence token by token, with gates in float32 and keys of length one."""
    heads, width = setting.shape.heads, setting.shape.head_dim
    size = rows, tokens, heads, width
    states = States.draw(setting, use, rows, tokens, (heads, width, width))
    q, k = (functional.normalize(setting.draw(*size).float(), dim=-1).to(setting.dtype) for _ in range(2))
    if states.real is not None:
        q *= states.real[..., None, None]  # Outputs at padding are arbitrary, except of a query of zeros.
    gates = functional.logsigmoid(torch.randn(size, device=setting.device) + 3)
    decays = {"none": None, "head": gates[0, 0, :, 0], "scalar": gates[..., 0], "channel": gates}
    log_decay = None if (gate := decays[decay]) is None else gate.contiguous()
    beta = torch.rand(size[:3], device=setting.device) if delta else None
    inputs = RecurrenceInputs(q, k, setting.draw(*size), log_decay, beta, scale=width**-0.5)

    def separate(
        compute: Callable[[RecurrenceInputs], tuple[Tensor, Tensor]], inputs: RecurrenceInputs, states: States
    ) -> tuple[Tensor, Tensor]:
        masked = replace(inputs, token_mask=states.real, initial_state=states.read())
        o, last = compute(masked.plain())
        states.write(last)
        return o, last

    def exact() -> list[Tensor]:
        # In float64 its states would take longer than all that is measured.
        own = states.to(torch.float32)
        exact_inputs = replace(inputs, q=inputs.q.float(), k=inputs.k.float(), v=inputs.v.float())
        return own.results(separate(naive_recurrent, exact_inputs, own))

    ways = []
    if setting.ours:
        from evalsuite.models.ops.recurrence.decode import recurrent

        access = states.access()

        def ours(states: States) -> tuple[Tensor, Tensor]:
            stored, real = states.stored, states.real
            return recurrent(replace(inputs, initial_state=stored, token_mask=real, access=access))

        ways.append(states.way("ours", ours))
    if setting.fla:
        kernel = fla_backend.RECURRENT_KERNELS[decay, delta]
        copies = "" if use == "" else ", mask" if use == "prompts" else ", copies of states"
        compute = partial(separate, partial(fla_backend.run_rows, kernel), inputs)
        ways.append(states.way(f"fla {kernel.name}{copies}", compute))
    if tokens == 1 and not use:
        ways.append(states.way("torch: one step", partial(separate, naive_recurrent, inputs)))
    form = ", ".join(filter(None, (decay, "delta" * delta, use)))
    return Case(f"recurrence [{rows}, {tokens}, {heads}, {width}] {form}", exact, ways)


def convolutions(setting: Setting, rows: int, tokens: int, use: Use) -> Case:
    """Convolutions of queries, keys and values, parts of a joined projection, followed by SiLU."""
    width = setting.shape.hidden
    parts = setting.draw(rows, tokens, 3 * width + 32)[..., : 3 * width].split(width, -1)
    weights = [setting.draw(width, TAPS) * TAPS**-0.5 for _ in parts]
    states = States.draw(setting, use, rows, tokens, (3 * width, TAPS - 1)).to(setting.dtype)

    def separate(parts: Sequence[Tensor], weights: Sequence[Tensor], states: States) -> tuple[Any, Tensor]:
        found = short_convolutions.reference(parts, weights, 3, states.read(), states.real)
        states.write(found[1])
        return found

    def exact() -> list[Tensor]:
        own = states.to(torch.float64)
        return own.results(separate([x.double() for x in parts], [w.double() for w in weights], own))

    ways = []
    if setting.ours:
        from evalsuite.models.ops.short_conv import inference

        def convolve_parts(chosen: Sequence[int], states: States) -> tuple[Sequence[Tensor], Tensor]:
            inputs = [parts[i] for i in chosen], [weights[i] for i in chosen]
            return inference.short_convolutions(
                *inputs, len(chosen), states.stored, states.real, access=states.access()
            )

        def results(found: list[tuple[Sequence[Tensor], Tensor]]) -> list[Tensor]:
            outputs = [y for (y,), _ in found]
            new = [after for _, after in found]
            return [*outputs, torch.cat(new, 1)]

        ways.append(states.way("ours", partial(convolve_parts, range(3))))
        apart = [states.channels(i * width, width) for i in range(3)]
        separately = Way(
            "one by one", lambda: [convolve_parts([i], own) for i, own in enumerate(apart)], results
        )
        ways += [separately] if use in ("", "in place") else []
    if setting.fla and tokens >= TAPS:

        def fla(states: States) -> tuple[Sequence[Tensor], Tensor]:
            return short_convolutions.load("training")(parts, weights, 3, states.read(), states.real)

        ways.append(states.way("fla causal_conv1d, one by one", fla))
    ways.append(states.way("torch: separate operations", partial(separate, parts, weights)))
    name = f"convolutions of three parts [{rows}, {tokens}, {width}]"
    return Case(", ".join(filter(None, (name, use))), exact, ways)
