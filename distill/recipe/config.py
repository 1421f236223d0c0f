"""Groups of recipe settings: optimizer, schedule, architecture, checkpoints."""

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
Fraction = Annotated[float, Field(ge=0, le=1)]


class OptimizerConfig(Strict):
    """AdamW on fp32 master weights, or Muon for matrices with AdamW for all other parameters."""

    kind: Literal["adamw", "muon"] = "adamw"
    """Optimizer."""
    beta1: Fraction = 0.9
    beta2: Fraction = 0.95
    eps: float = Field(default=1e-8, gt=0)
    weight_decay: float = Field(default=0.1, ge=0)
    """Applied to the weights of linear layers and feature maps, except the head."""
    state_bits: Literal[8, 32] = 32
    """Bits of each of AdamW's two states; 8 (torchao, extra `lowbit`) takes 2 instead of 8 bytes a trained
    parameter. Vectors and matrices whose rows are no multiple of 256 keep 32."""
    master_weights: Literal["fp32", "bf16"] = "fp32"
    """bf16 reproduces a defect of published code (arXiv 2504.14366), which trains a bf16 model without fp32
    master weights: weights and AdamW's states are rounded after every step, so that updates below 2⁻⁹ of a
    weight are lost."""
    momentum: Fraction = 0.95
    """muon: momentum of the matrix update."""

    @model_validator(mode="after")
    def _low_bits(self) -> "OptimizerConfig":
        if self.state_bits == 8 and self.kind != "adamw":
            raise ValueError(f"'state_bits: 8' needs 'kind: adamw', not {self.kind}")
        if self.master_weights == "bf16" and (self.kind != "adamw" or self.state_bits != 32):
            raise ValueError("'master_weights: bf16' needs 'kind: adamw' and 'state_bits: 32'")
        return self


class ScheduleConfig(Strict):
    """Learning-rate schedule: linear warmup from zero, then a decay to `min_lr_ratio` of the peak rate."""

    kind: Literal["wsd", "linear", "cosine", "constant"] = "wsd"
    """wsd holds the peak between warmup and decay; linear and cosine decay directly after the warmup."""
    warmup_ratio: float = Field(default=0.05, ge=0, le=1)
    """Fraction of the steps spent in warmup."""
    decay_ratio: float = Field(default=0.2, ge=0, le=1)
    """wsd: fraction of the steps spent in decay; the remaining steps are the stable phase."""
    stable: Literal["remaining", "80_percent"] = "remaining"
    """wsd: length of the stable phase. 80_percent reproduces a defect of published code (arXiv 2504.14366),
    where warmup, stable phase and decay take 20 + 80 + 10 % of the steps: the decay never begins."""
    min_lr_ratio: float = Field(default=0.0, ge=0, le=1)
    """Rate of the last step over the peak rate (unused by `constant`, which does not decay)."""

    @model_validator(mode="after")
    def _adds_up(self) -> "ScheduleConfig":
        if self.stable == "80_percent" and (self.kind != "wsd" or self.warmup_ratio < 0.2):
            raise ValueError(
                "'stable: 80_percent' reproduces a schedule whose decay never begins: it needs 'kind: wsd' "
                f"and a warmup_ratio of 0.2 or more, not {self.kind} and {self.warmup_ratio}"
            )
        if self.kind == "wsd" and self.warmup_ratio + self.decay_ratio > 1:
            raise ValueError(
                f"warmup_ratio ({self.warmup_ratio}) and decay_ratio ({self.decay_ratio}) add up to more "
                "than 1: "
                "the decay would not finish"
            )
        return self

    @property
    def effective_decay_ratio(self) -> float:
        """Fraction of the steps in which the rate decreases."""
        if self.stable == "80_percent":
            return 0.0
        return {"wsd": self.decay_ratio, "constant": 0.0}.get(self.kind, 1 - self.warmup_ratio)


class SelectionProvenance(Strict):
    """Origin of a list of softmax layers, recorded in the lineage."""

    selector: str
    teacher: str | None = None
    """weights_id of the teacher used for the selection; a different teacher is refused."""
    mixer: str | None = None
    """Mixer used during the selection; the student may use another."""


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
