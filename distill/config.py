"""Groups of recipe settings: data sources, optimizer, schedule, architecture, checkpoints."""

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, PlainValidator, model_validator

from evalsuite.foundation.strict import Strict


def _tokens(value: Any) -> Any:
    """Parse `80M`, `1.5B`, `20k` or a plain number as a token count."""
    if not isinstance(value, str):
        return value
    text = value.strip().replace("_", "").replace(",", "")
    scale = {"k": 10**3, "M": 10**6, "B": 10**9}.get(text[-1:], 1)
    try:
        return round(float(text[:-1] if scale > 1 else text) * scale)
    except ValueError:
        raise ValueError("expected a token count such as 500000, 80M or 1.5B") from None


Tokens = Annotated[int, BeforeValidator(_tokens), Field(gt=0)]


def _token_counts(value: Any) -> Any:
    """Parse one token count or a list of them."""
    counts = [_tokens(each) for each in (value if isinstance(value, list) else [value])]
    if not counts or not all(type(count) is int and count > 0 for count in counts):
        raise ValueError("expected a token count such as 500000, 80M or 1.5B, or a list of token counts")
    return counts if isinstance(value, list) else counts[0]


TokenCounts = Annotated[int | list[int], PlainValidator(_token_counts)]
Fraction = Annotated[float, Field(ge=0, le=1)]


class DataSourceConfig(Strict):
    """A source of examples: texts, prompts with completions, or lists of chat messages."""

    kind: Literal["pocket", "local", "hub", "responses"]
    """Synthetic pocket corpus, local files, a streamed hub dataset, or responses of the teacher."""
    files: list[str] = Field(default_factory=list)
    """local: paths or glob patterns of .parquet, .jsonl or .jsonl.zst files; the matches of each pattern are
    read in sorted order. `$NAME` expands environment variables."""
    dataset: str | None = None
    """hub: `organization/name`."""
    config: str | None = None
    """hub: the configuration of the dataset."""
    split: str = "train"
    """hub: the split; pocket: the split of the corpus."""
    revision: str | None = None
    """hub: a commit, so that later runs read the same bytes."""
    text: str = "text"
    """Column with plain text."""
    messages: str | None = None
    """Column with a list of {role, content}, or of {from, value} as in ShareGPT (human, gpt); read instead of
    `text`."""
    prompt: str | None = None
    """Column with prompts; read with `completion` instead of `text`."""
    completion: str | None = None
    """Column with completions."""
    chat_template: str | None = None
    """Name of a shipped chat template, or a Jinja template; default: the tokenizer's own."""
    chat_template_kwargs: dict[str, bool | int | float | str] = Field(default_factory=dict)
    """Arguments of the chat template, such as `enable_thinking: false` for Qwen3."""
    where: dict[str, str | int | float | list[str]] = Field(default_factory=dict)
    """Row filter: column → a value, a list of allowed values, or a number as the minimum."""
    min_characters: int = Field(default=1, ge=1)
    """Shorter examples are dropped."""
    mixture: dict[str, float] = Field(default_factory=dict)
    """pocket: kind of text → weight; default: the corpus' own mixture."""
    max_haystack_tokens: int | None = Field(default=None, ge=1)
    """pocket: length of the longest haystack."""
    seed: int = 0
    """Seed of the document order and of the pocket corpus."""
    shuffle_buffer_size: int = Field(default=16384, ge=1)
    """Number of documents that are read and shuffled together."""
    prompt_source: str | None = None
    """responses: the source (with completions or messages) that supplies the prompts."""
    num_prompts: int = Field(default=1000, ge=1)
    """responses: number of distinct prompts."""
    max_new_tokens: int = Field(default=512, ge=1)
    """responses: longer responses are dropped."""
    temperature: float = Field(default=0.0, ge=0)
    """responses: sampling temperature; 0 is greedy."""
    top_p: float = Field(default=1.0, gt=0, le=1)
    """responses: nucleus sampling."""
    num_workers: int = Field(default=0, ge=0)
    """pocket: processes that generate texts in advance; 0: generate in the data thread."""
    repeat_chunk_tokens: int | None = Field(default=None, ge=2)
    """Split every document into chunks of at most this many tokens and write each chunk twice in a row, which
    trains recall."""
    repeat_span_tokens: int | None = Field(default=None, ge=2)
    """With repeat_chunk_tokens: shuffle the second copy in spans of at most this many tokens, so that each
    span has to be looked up separately."""
    infinite: bool = True
    """Start over in another order when all documents have been read."""
    subset: Literal["all", "train", "held_out"] = "all"
    """local, hub: all documents, the 99 % for training, or the held-out 1 %, split by a hash of the text."""
    sample_fraction: float = Field(default=1.0, gt=0, le=1)
    """local, hub: fraction of the documents that is read, chosen by a hash of the text."""
    exclude: str | None = None
    """local, hub: file with document hashes to skip, as written by
    `python -m evalsuite.distill.data.decontamination`."""

    @property
    def columns(self) -> set[str]:
        """Columns that are read."""
        if self.messages is not None:
            return {self.messages, *self.where}
        if self.prompt is not None and self.completion is not None:
            return {self.prompt, self.completion, *self.where}
        return {self.text, *self.where}

    @model_validator(mode="after")
    def _complete(self) -> "DataSourceConfig":
        if self.kind == "local" and not self.files:
            raise ValueError("a local source needs 'files'")
        if self.kind == "hub" and not self.dataset:
            raise ValueError("a hub source needs 'dataset'")
        if self.kind == "responses" and not self.prompt_source:
            raise ValueError("a responses source needs 'prompt_source'")
        if self.chat_template_kwargs and self.messages is None:
            raise ValueError("'chat_template_kwargs' needs 'messages', which the template renders")
        if (self.prompt is None) != (self.completion is None):
            raise ValueError("'prompt' and 'completion' must be given together")
        if self.repeat_span_tokens is not None and self.repeat_chunk_tokens is None:
            raise ValueError("'repeat_span_tokens' needs 'repeat_chunk_tokens'")
        return self


class OptimizerConfig(Strict):
    """AdamW on fp32 master weights, or Muon for matrices with AdamW for all other parameters."""

    kind: Literal["adamw", "muon"] = "adamw"
    """Optimizer."""
    beta1: Fraction = 0.9
    beta2: Fraction = 0.95
    eps: float = Field(default=1e-8, gt=0)
    weight_decay: float = Field(default=0.1, ge=0)
    """Applied to the weights of linear layers and feature maps, except the head."""
    momentum: Fraction = 0.95
    """muon: momentum of the matrix update."""


class ScheduleConfig(Strict):
    """Learning-rate schedule: linear warmup from zero, then a decay to `min_lr_ratio` of the peak rate."""

    kind: Literal["wsd", "linear", "cosine", "constant"] = "wsd"
    """wsd holds the peak between warmup and decay; linear and cosine decay directly after the warmup."""
    warmup_ratio: float = Field(default=0.05, ge=0, le=1)
    """Fraction of the steps spent in warmup."""
    decay_ratio: float = Field(default=0.2, ge=0, le=1)
    """wsd: fraction of the steps spent in decay; the remaining steps are the stable phase."""
    min_lr_ratio: float = Field(default=0.0, ge=0, le=1)
    """Rate of the last step over the peak rate (unused by `constant`, which does not decay)."""

    @model_validator(mode="after")
    def _adds_up(self) -> "ScheduleConfig":
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
        return {"wsd": self.decay_ratio, "constant": 0.0}.get(self.kind, 1 - self.warmup_ratio)

    @property
    def mean_factor(self) -> float:
        """Mean rate over the budget, in units of the peak rate, in the limit of many steps."""
        decay = self.effective_decay_ratio
        return self.warmup_ratio / 2 + (1 - self.warmup_ratio - decay) + decay * (1 + self.min_lr_ratio) / 2


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
