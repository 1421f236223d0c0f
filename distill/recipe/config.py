"""Groups of recipe settings: architecture, validation, divergence, checkpoints."""

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, PlainValidator, model_validator

from evalsuite.foundation.strict import Positive, Strict


def _tokens(value: Any) -> Any:
    """Parse `80M`, `1.5B`, `20k` or a plain number as a token count."""
    if not isinstance(value, str):
        return value
    text = value.strip().replace("_", "").replace(",", "")
    scale = {"k": 10**3, "M": 10**6, "B": 10**9}.get(text[-1:], 1)
    try:
        return round(float(text[:-1] if scale > 1 else text) * scale)
    except (OverflowError, ValueError):
        raise ValueError("expected a token count such as 500000, 80M or 1.5B") from None


Tokens = Annotated[Positive, BeforeValidator(_tokens)]


def _token_counts(value: Any) -> Any:
    """Parse one token count or a list of them."""
    counts = [_tokens(each) for each in (value if isinstance(value, list) else [value])]
    if not counts or not all(type(count) is int and 0 < count < 2**63 for count in counts):
        raise ValueError("expected a token count such as 500000, 80M or 1.5B, or a list of token counts")
    return counts if isinstance(value, list) else counts[0]


TokenCounts = Annotated[int | list[int], PlainValidator(_token_counts)]


class LossConfig(Strict):
    """The `kd` objective: ce · CE + kl · KL, each a mean over the loss tokens."""

    ce: float = Field(default=0.0, ge=0)
    ce_tokens: Literal["all", "teacher_right"] = "all"
    """Tokens with a cross-entropy. teacher_right: those that are the teacher's most likely token, so that
    text where the teacher is wrong is not learned from. The mean is over all loss tokens either way."""
    kl: float = Field(default=1.0, ge=0)
    temperature: float = Field(default=1.0, gt=0)
    """Softmax temperature of both distributions in the KL; its gradient is scaled by temperature²."""
    direction: Literal["forward", "reverse", "jsd"] = "forward"
    """forward: KL(teacher ‖ student); reverse: KL(student ‖ teacher); jsd: the generalized Jensen-Shannon
    divergence β KL(teacher ‖ m) + (1 − β) KL(student ‖ m), m = β teacher + (1 − β) student."""
    beta: float | None = Field(default=None, gt=0, lt=1)
    """β of jsd; default: 0.5."""
    top_k: int | None = Field(default=None, ge=1)
    """Restrict the KL to the teacher's K most likely tokens; default: the whole vocabulary."""
    tail: Literal["renormalize", "bucket"] = "renormalize"
    """With top_k: drop the other tokens and renormalize, or treat them as one additional outcome."""

    @property
    def has_kernel(self) -> bool:
        """Whether one kernel computes the loss and its gradient, without fp32 copies of the logits."""
        return self.direction == "forward" and self.top_k is None

    @property
    def jsd_beta(self) -> float:
        """β of jsd."""
        return 0.5 if self.beta is None else self.beta

    @model_validator(mode="after")
    def _nonzero(self) -> "LossConfig":
        if self.beta is not None and self.direction != "jsd":
            raise ValueError(f"'beta' is that of 'direction: jsd', not of {self.direction}")
        if self.ce == 0 and self.kl == 0:
            raise ValueError("'ce' and 'kl' are both 0, so nothing would be learned")
        if self.ce == 0 and self.ce_tokens != "all":
            raise ValueError(f"'ce_tokens: {self.ce_tokens}' needs a 'ce' above 0")
        return self


class SelectionProvenance(Strict):
    """Origin of a list of softmax layers, recorded in the lineage."""

    selector: str
    teacher: str | None = None
    """weights_id of the teacher used for the selection; a different teacher is refused."""
    mixer: str | None = None
    """Mixer used during the selection; the student may use another."""
    step: int | None = None
    """Step of the search whose layers these are; None for its result."""


class ArchitectureConfig(Strict):
    """A Llama-style Transformer initialized from random weights (objective `sft`). Field names follow
    transformers' LlamaConfig."""

    tokenizer: str
    """A folder or hub id, or `pocket` for the pocket tokenizer."""
    hidden_size: int = Field(gt=0)
    num_hidden_layers: int = Field(gt=0)
    num_attention_heads: int = Field(gt=0)
    num_key_value_heads: int = Field(gt=0)
    head_dim: int = Field(gt=0)
    intermediate_size: int = Field(gt=0)
    max_position_embeddings: int = Field(gt=0)
    rope_theta: float = Field(default=10000.0, gt=0)
    tie_word_embeddings: bool = True
    initializer_range: float = Field(default=0.02, gt=0)


class ValidationConfig(Strict):
    """Measurements of the students on held-out documents during training."""

    every_steps: int = Field(gt=0)
    """Steps between measurements; every stage ends with one, too."""
    tokens: Tokens = 65_536
    """Tokens of every measurement, rounded up to whole sequences; always the same ones."""


class DivergenceConfig(Strict):
    """When training stops because a loss has diverged; its smoothed value (a moving average) is compared."""

    factor: float = Field(default=5.0, gt=1)
    """A smoothed loss this many times above its best value in the stage counts towards divergence."""
    patience: int = Field(default=50, gt=0)
    """Consecutive steps above that, after which training stops."""
    floor: float = Field(default=0.1, ge=0)
    """A smoothed loss below it is not far, whatever its best value: a student that begins at its teacher has
    a KL of 0.002 nats, which training doubles. In nats, or shares of the teacher's power if distances are
    normalized by it."""


class CheckpointConfig(Strict):
    """What is saved during training."""

    state_interval_seconds: float = Field(default=300.0, ge=0)
    """Seconds between training states, from which a run resumes; 0: after every step."""
    save_tokens: TokenCounts | None = None
    """Intermediate checkpoints for token-scaling studies: an interval or a list, in tokens."""
    save_each_stage: bool = True
    """Save a checkpoint at the end of every stage except the last, whose checkpoint is the student itself."""

    def is_due(self, before: int, after: int) -> bool:
        """Whether a step from `before` to `after` tokens reaches an intermediate checkpoint."""
        if self.save_tokens is None:
            return False
        if isinstance(self.save_tokens, list):
            return any(before < tokens <= after for tokens in self.save_tokens)
        return after // self.save_tokens > before // self.save_tokens


class CalibrationConfig(Strict):
    """Taylor-Calibrate (arXiv 2606.16429); see `evalsuite.models.mixers.taylor_calibration`.

    The method sets new students of Gated DeltaNet, after the teacher's projections have been copied. The
    alignment that follows in the paper is a stage with objective `attention_output`.
    """

    method: Literal["taylor"]
    """`taylor`."""
    data: str
    """Source of the sequences, read from its start; the stages read it, too."""
    num_sequences: int = Field(default=4, ge=1)
    """Number of sequences; 4 of 256 tokens in the authors' code."""
    seq_len: int = Field(default=256, ge=2)
    """Tokens per sequence; the matrix of one layer at a time grows with its square."""


class SelectionConfig(Strict):
    """How `evalsuite select` chooses the layers that stay softmax, unless its options say otherwise."""

    selector: str
    """A name from `evalsuite show selectors`."""
    budget: int | None = Field(default=None, gt=0)
    """Number of softmax layers."""
    ratio: float | str | None = None
    """Instead of a number: share of softmax layers (0.25), or softmax to linear (1:3)."""
    options: dict[str, Any] = Field(default_factory=dict)
    """Options of the selector."""

    @model_validator(mode="after")
    def _has_one_size(self) -> "SelectionConfig":
        if (self.budget is None) == (self.ratio is None):
            raise ValueError("give either 'budget' or 'ratio'")
        return self


class TokenWeights(Strict):
    """Weights of loss tokens by class, relative to tokens that are new to the text."""

    copied: float = Field(default=1.0, gt=0, le=100)
    """Weight of tokens that complete four tokens which stand earlier in the same order."""
    repeated: float = Field(default=1.0, gt=0, le=100)
    """Weight of other tokens that stand earlier."""

    @model_validator(mode="after")
    def _differ(self) -> "TokenWeights":
        if self.copied == self.repeated == 1:
            raise ValueError("'copied' and 'repeated' are both 1, the weight of all other tokens")
        return self
