"""Arguments of the recurrence, the same for all backends: their shapes, what pads do, where states lie."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor

from evalsuite.foundation import ConfigError

DecayShape = Literal["none", "head", "scalar", "channel"]
Rule = Literal["additive", "delta rule", "generalized delta rule"]


@dataclass(frozen=True, slots=True)
class StateAccess:
    """How a call may use the states that it is given.

    A step of generation reads and writes little else than states, so that copies of them double its time.
    """

    slots: Tensor | None = None
    """Index of each row's state among those given, int64 [B], each over which the new one is written. None:
    state i is that of row i."""
    in_place: bool = False
    """Whether new states may be written over the given ones, which are then returned."""
    discards: bool = False
    """Whether new states are not wanted: none are written, and what is returned for them is arbitrary."""


OWN = StateAccess()
"""States of their own: one for each row, and new tensors for new ones."""


@dataclass(frozen=True, slots=True)
class Erase:
    """What a token removes from the state, apart from what it writes: r_t (a_tᵀ S_{t-1}).

    The state is read before its decay, so that a strong decay is never divided by. A rule that reads the
    decayed state passes a ⊙ D, whose exponent is at most 0.
    """

    read: Tensor
    """a, by which the state is read [B, T, H, K]."""
    along: Tensor | None = None
    """r, along which what was read is removed [B, T, H, K]; None: the key of the write."""

    def map(self, change: Callable[[Tensor], Tensor]) -> "Erase":
        """The same with `change` of each tensor."""
        return Erase(change(self.read), None if self.along is None else change(self.along))


@dataclass(frozen=True, slots=True)
class RecurrenceInputs:
    """Arguments of S_t = (D_t − r_t a_tᵀ) S_{t-1} + k_t v_tᵀ and o_t = scale · S_tᵀ q_t.

    Without `erase` r is 0, the additive rule. With `beta` in its place the rule is the delta rule, with the
    decay before the correction (arXiv 2603.26556, Eq. 4),

        S_t = (I − β_t k_t k_tᵀ) D_t S_{t-1} + β_t k_t v_tᵀ

    A backend is a function of them that returns the outputs [B, T, H, V] in the dtype of `v`, and the final
    states [N, H, K, V] in `state_dtype`. Backends other than `decode` take `plain` ones.
    """

    q: Tensor
    """Queries [B, T, H, K], of one dtype with keys and values."""
    k: Tensor
    """Keys [B, T, H, K]."""
    v: Tensor
    """Values [B, T, H, V]."""
    log_decay: Tensor | None = None
    """log D, at most 0: None (no decay), [H] (fixed per head), [B, T, H] (per head and token), or
    [B, T, H, K] (per channel and token)."""
    beta: Tensor | None = None
    """Write strength of the delta rule [B, T, H]; None for another rule."""
    scale: float = 1.0
    """Factor on the queries."""
    initial_state: Tensor | None = None
    """[N, H, K, V], N sequences; None for zeros. With `access.slots` [S, H, K, V]."""
    cu_seqlens: Tensor | None = None
    """Integer bounds [N + 1] of sequences packed into one row (B = 1); None: N = B rows."""
    token_mask: Tensor | None = None
    """bool [B, T], the real tokens; the others leave the state as it is, and their outputs are arbitrary but
    finite. None: all are real."""
    access: StateAccess = OWN
    """Where the rows' states lie in `initial_state`, and whether final ones may be written over them. Slots
    are for rows without `cu_seqlens`; `initial_state` is then returned."""
    erase: Erase | None = None
    """What each token removes under the generalized delta rule; None for another rule."""

    @property
    def rule(self) -> Rule:
        """How a token changes the decayed state."""
        if self.erase is not None:
            return "generalized delta rule"
        return "additive" if self.beta is None else "delta rule"

    @property
    def decay_shape(self) -> DecayShape:
        """Kind of decay: none, one number per head, per head and token, or per channel and token.

        Raises:
            ConfigError: `log_decay` has another shape.
        """
        if self.log_decay is None:
            return "none"
        found = self.log_decay.shape
        batch, length, heads, width = self.k.shape
        if found == (heads,):
            return "head"
        if found == (batch, length, heads):
            return "scalar"
        if found == (batch, length, heads, width):
            return "channel"
        raise ConfigError(
            f"log_decay has shape {tuple(found)}; with keys {tuple(self.k.shape)} it must be "
            f"[{heads}], [{batch}, {length}, {heads}] or [{batch}, {length}, {heads}, {width}]"
        )

    @property
    def decay_per_token(self) -> Tensor | None:
        """log D as [B, T, H] or [B, T, H, K]."""
        if self.log_decay is None or self.log_decay.dim() > 1:
            return self.log_decay
        return self.log_decay.expand(self.k.shape[:3])

    @property
    def state_dtype(self) -> torch.dtype:
        """Dtype of the state: float32, or float64 if an input is float64."""
        tensors: tuple[Tensor | None, ...]
        tensors = (self.q, self.k, self.v, self.log_decay, self.beta, self.initial_state)
        if self.erase is not None:
            tensors += (self.erase.read, self.erase.along)
        double = any(x is not None and x.dtype == torch.float64 for x in tensors)
        return torch.float64 if double else torch.float32

    def state(self) -> Tensor:
        """The initial states [N, H, K, V] in `state_dtype`."""
        if self.initial_state is not None:
            return self.initial_state.to(self.state_dtype)
        rows, _, heads, width = self.k.shape
        sequences = rows if self.cu_seqlens is None else self.cu_seqlens.numel() - 1
        shape = (sequences, heads, width, self.v.shape[-1])
        return torch.zeros(shape, dtype=self.state_dtype, device=self.k.device)

    def validate(self) -> None:
        """Raise ConfigError if a shape is wrong; the message names the tensor and the expected shape."""
        q, k, v = self.q, self.k, self.v
        if q.shape != k.shape or v.shape[:3] != k.shape[:3]:
            raise ConfigError(
                f"q {tuple(q.shape)}, k {tuple(k.shape)} and v {tuple(v.shape)} must be "
                "[B, T, H, K], [B, T, H, K] and [B, T, H, V]"
            )
        batch, length, heads, width = k.shape
        if self.beta is not None and self.beta.shape != (batch, length, heads):
            raise ConfigError(f"beta has shape {tuple(self.beta.shape)}; expected {(batch, length, heads)}")
        if self.erase is not None:
            if self.beta is not None:
                raise ConfigError("beta and erase are two rules of the recurrence; leave one of them out")
            for name in ("read", "along"):
                x = getattr(self.erase, name)
                if x is not None and x.shape != k.shape:
                    raise ConfigError(f"erase.{name} has shape {tuple(x.shape)}; expected {tuple(k.shape)}")
        sequences = batch
        if self.cu_seqlens is not None:
            if batch != 1:
                raise ConfigError(f"cu_seqlens requires one packed row, but the batch has {batch} rows")
            sequences = self.cu_seqlens.numel() - 1
        expected, state = (sequences, heads, width, v.shape[-1]), self.initial_state
        if state is not None and self.access.slots is None and state.shape != expected:
            raise ConfigError(
                f"initial_state has shape {tuple(state.shape)}; [sequences, H, K, V] must be {expected}"
            )

    def plain(self) -> "RecurrenceInputs":
        """The same without `token_mask` and `access`: state i is that of row i, and pads are tokens that
        write nothing and decay nothing.

        With the delta rule β = 0 makes a token's write and its correction vanish, whatever its key; with the
        generalized one a = 0 and k = 0 do. A fixed decay becomes one per token, as pads do not decay.
        """
        k, log_decay, beta, state = self.k, self.log_decay, self.beta, self.initial_state
        erase = self.erase
        if state is not None and self.access.slots is not None:
            state = state[self.access.slots]
        if self.token_mask is not None:
            real = self.token_mask[..., None]
            if (log_decay := self.decay_per_token) is not None:
                log_decay = log_decay * (real if log_decay.dim() == 3 else real[..., None])
            if beta is None:
                k = k * real[..., None]
            else:
                beta = beta * real
            if erase is not None:
                erase = replace(erase, read=erase.read * real[..., None])
        return replace(
            self,
            k=k,
            log_decay=log_decay,
            beta=beta,
            erase=erase,
            initial_state=state,
            token_mask=None,
            access=OWN,
        )

    def with_tokens(self, change: Callable[[Tensor], Tensor], **others: Any) -> "RecurrenceInputs":
        """The same with `change` of each tensor [B, T, …], and with `others`."""
        names = ("q", "k", "v", "log_decay", "beta", "token_mask")
        tensors = {name: x for name in names if (x := getattr(self, name)) is not None and x.dim() > 1}
        changed: dict[str, Any] = {name: change(x) for name, x in tensors.items()}
        erase = None if self.erase is None else self.erase.map(change)
        return replace(self, **changed, erase=erase, **others)
