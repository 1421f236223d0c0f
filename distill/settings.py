"""The leaves of a recipe: data sources, optimizer, loss, distance, architecture, and what is saved."""

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, PlainValidator, model_validator

from evalsuite.foundation.strict import Strict


def _tokens(value: Any) -> Any:
    """Read `80M`, `1.5B`, `20k` or a plain number as a count of tokens."""
    if not isinstance(value, str):
        return value
    text = value.strip().replace("_", "").replace(",", "")
    scale = {"k": 10**3, "M": 10**6, "B": 10**9}.get(text[-1:], 1)
    try:
        return round(float(text[:-1] if scale > 1 else text) * scale)
    except ValueError:
        raise ValueError("a count of tokens such as 500000, 80M or 1.5B was expected") from None


Tokens = Annotated[int, BeforeValidator(_tokens), Field(gt=0)]


def _token_counts(value: Any) -> Any:
    """Read one count, or a list of them."""
    counts = [_tokens(each) for each in (value if isinstance(value, list) else [value])]
    if not counts or not all(type(count) is int and count > 0 for count in counts):
        raise ValueError("a count of tokens such as 500000, 80M or 1.5B, or a list of them, was expected")
    return counts if isinstance(value, list) else counts[0]


TokenCounts = Annotated[int | list[int], PlainValidator(_token_counts)]
Fraction = Annotated[float, Field(ge=0, le=1)]


class DataSource(Strict):
    """Where examples come from. An example is a text, a prompt with its completion, or chat messages."""

    kind: Literal["pocket", "local", "hub", "responses"]
    """The pocket world; files on this disk; a hub dataset, streamed; what the teacher writes to prompts."""
    files: list[str] = Field(default_factory=list)
    """local: paths or glob patterns of .parquet, .jsonl or .jsonl.zst files; each pattern's in sorted order.
    `$NAME` stands for that variable of the environment."""
    dataset: str | None = None
    """hub: `organisation/name`."""
    config: str | None = None
    """hub: the dataset's configuration."""
    split: str = "train"
    """hub: the split; pocket: the split of the corpus."""
    revision: str | None = None
    """hub: a commit, so that a later run reads the same bytes."""
    text: str = "text"
    """Name of the column that holds plain text."""
    messages: str | None = None
    """Name of the column that holds a list of {role, content}; read instead of `text`."""
    prompt: str | None = None
    """Name of the column of prompts; read with `completion` instead of `text`."""
    completion: str | None = None
    """Name of the column of completions."""
    chat_template: str | None = None
    """Name of a shipped chat template, or a Jinja template; by default the tokenizer's own."""
    where: dict[str, str | int | float | list[str]] = Field(default_factory=dict)
    """Rows to keep: column → a value, a list of values, or a number as the least value."""
    min_characters: int = Field(default=1, ge=1)
    """Shorter examples are dropped."""
    kinds: dict[str, float] = Field(default_factory=dict)
    """pocket: kind of text → share; default: the world's own mixture."""
    longest: int | None = Field(default=None, ge=1)
    """pocket: tokens of the longest haystack."""
    seed: int = 0
    """Seed of the order of documents, and of the pocket world's texts."""
    shuffle: int = Field(default=16384, ge=1)
    """Documents that are read and shuffled together."""
    prompts: str | None = None
    """responses: the source (with completions or messages) whose prompts the teacher answers."""
    count: int = Field(default=1000, ge=1)
    """responses: how many prompts."""
    max_new_tokens: int = Field(default=512, ge=1)
    """responses: longer answers are dropped."""
    temperature: float = Field(default=0.0, ge=0)
    """responses: 0 is greedy."""
    top_p: float = Field(default=1.0, gt=0, le=1)
    """responses: nucleus sampling."""
    workers: int = Field(default=0, ge=0)
    """pocket: processes that write texts ahead; 0: none, the reading thread does it."""
    echo: int | None = Field(default=None, ge=2)
    """Write every document in pieces of at most this many tokens, each twice in a row, so that a student
    meets much that it can recall and the teacher does."""
    echo_spans: int | None = Field(default=None, ge=2)
    """echo: the second time in shuffled spans of at most this many tokens, which must be found one by one."""
    repeat: bool = True
    """Start again, in another order, when the documents are used up."""
    part: Literal["all", "train", "held_out"] = "all"
    """local, hub: all documents, or all but a hundredth of them, or that hundredth, by a hash of the text."""
    share: float = Field(default=1.0, gt=0, le=1)
    """local, hub: share of the documents that is read, chosen by a hash of the text."""
    exclude: str | None = None
    """local, hub: documents to leave out, as `python -m evalsuite.distill.overlap` lists them."""

    @model_validator(mode="after")
    def _complete(self) -> "DataSource":
        if self.kind == "local" and not self.files:
            raise ValueError("a local source needs 'files'")
        if self.kind == "hub" and not self.dataset:
            raise ValueError("a hub source needs 'dataset'")
        if self.kind == "responses" and not self.prompts:
            raise ValueError("a source of responses needs 'prompts'")
        if (self.prompt is None) != (self.completion is None):
            raise ValueError("'prompt' and 'completion' go together")
        if self.echo_spans is not None and self.echo is None:
            raise ValueError("'echo_spans' needs 'echo'")
        return self


class Optimizer(Strict):
    """AdamW on fp32 master weights, or Muon for matrices with AdamW for everything else."""

    kind: Literal["adamw", "muon"] = "adamw"
    beta1: Fraction = 0.9
    beta2: Fraction = 0.95
    epsilon: float = Field(default=1e-8, gt=0)
    weight_decay: float = Field(default=0.1, ge=0)
    """Applied to matrices of two or more dimensions, never to norms, biases, gates' vectors or embeddings."""
    momentum: Fraction = 0.95
    """muon: momentum of the matrices' update."""


class Loss(Strict):
    """The `kd` objective: ce · CE + kl · KL, each a mean over the tokens that count."""

    ce: float = Field(default=0.0, ge=0)
    kl: float = Field(default=1.0, ge=0)
    temperature: float = Field(default=1.0, gt=0)
    """Of both distributions in the KL, whose gradient is scaled by its square."""
    direction: Literal["forward", "reverse"] = "forward"
    """forward: KL(teacher ‖ student); reverse: KL(student ‖ teacher)."""
    top_k: int | None = Field(default=None, ge=1)
    """Only the teacher's K likeliest tokens; by default the whole vocabulary."""
    rest: Literal["renormalise", "bucket"] = "renormalise"
    """top_k: forget the other tokens, or keep them as one more outcome."""
    scale: Literal["token_mean", "times_length"] = "token_mean"
    """times_length repeats a defect of published code, in which `batchmean` made the KL T times too large."""

    @model_validator(mode="after")
    def _something(self) -> "Loss":
        if self.ce == 0 and self.kl == 0:
            raise ValueError("'ce' and 'kl' are both 0, so that nothing would be learnt")
        return self


class Distance(Strict):
    """How the alignment objectives measure distance."""

    squared: bool | None = None
    """Squared L2 norm (default of attention_output) or the norm itself (default of hidden_state)."""
    target: Literal["mixer", "block"] | None = None
    """Compare the mixer's output (attention_output) or the block's (hidden_state)."""
    relative: bool = False
    """Divide by the teacher's own mean square, so that no layer outweighs another."""
    matrix_norm: Literal["frobenius", "mse"] = "frobenius"


class SelectedBy(Strict):
    """Where a list of softmax layers comes from, for the lineage."""

    selector: str
    teacher: str | None = None
    """weights_id of the teacher that the layers were chosen in; another one is refused."""
    mixer: str | None = None
    """The mixer that probed; the student may use another."""


class Architecture(Strict):
    """A Llama-style Transformer that starts from random weights (objective `sft`)."""

    tokenizer: str
    """A folder or hub id, or `pocket` for the pocket world's own."""
    hidden_size: int = Field(gt=0)
    layers: int = Field(gt=0)
    heads: int = Field(gt=0)
    kv_heads: int = Field(gt=0)
    head_dim: int = Field(gt=0)
    intermediate_size: int = Field(gt=0)
    max_length: int = Field(gt=0)
    """Longest context, in tokens."""
    rope_theta: float = Field(default=10000.0, gt=0)
    tie_embeddings: bool = True
    initial_std: float = Field(default=0.02, gt=0)


class Saving(Strict):
    """What is written on the way."""

    state_seconds: float = Field(default=300.0, ge=0)
    """Seconds between saved training states (from which a killed run goes on); 0: after every step."""
    checkpoint_tokens: TokenCounts | None = None
    """Checkpoints kept for token-scaling studies, besides the one at each stage's end: tokens from one to
    the next, or a list of how many tokens each shall have seen."""
    stage_checkpoints: bool = True
    """Keep a checkpoint at the end of each stage but the last (whose is the student itself)."""
    tensorboard: bool = False

    def due(self, before: int, after: int) -> bool:
        """Whether a step from `before` to `after` tokens reaches a point where a checkpoint is kept."""
        if self.checkpoint_tokens is None:
            return False
        if isinstance(self.checkpoint_tokens, list):
            return any(before < tokens <= after for tokens in self.checkpoint_tokens)
        return after // self.checkpoint_tokens > before // self.checkpoint_tokens
