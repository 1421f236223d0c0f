"""Settings of data sources, one class per kind.

A kind of source is one subclass of `DataSourceConfig` and one reader (see `data.readers`).
"""

from abc import abstractmethod
from pathlib import PurePath
from typing import Any, ClassVar, Literal, Self

from pydantic import Field, model_validator

from evalsuite.foundation.registry import Registry
from evalsuite.foundation.strict import Seed, StrictUnion

Subset = Literal["all", "train", "held_out"]
Reasoning = Literal["keep", "strip", "error"]


class DataSourceConfig(StrictUnion):
    """A source of examples: texts, prompts with completions, or lists of chat messages.

    A mapping that is validated as this class becomes an instance of the class that its `kind` names.
    """

    tag: ClassVar[str] = "kind"

    kind: str
    """Where the examples come from: `pocket`, `local`, `hub` or `responses`."""
    seed: Seed = 0
    """Seed of the order of the documents, and of what is generated."""
    repeat_chunk_tokens: int | None = Field(default=None, ge=2)
    """Split every document into chunks of at most this many tokens and write each chunk twice in a row, which
    trains recall."""
    repeat_span_tokens: int | None = Field(default=None, ge=2)
    """With repeat_chunk_tokens: shuffle the second copy in spans of at most this many tokens, so that each
    span has to be looked up separately."""

    @classmethod
    def registry(cls) -> Registry[Any]:
        """The kinds of sources."""
        return DATA_SOURCES

    @property
    def is_infinite(self) -> bool:
        """Whether the source starts over in another order when all documents have been read."""
        return True

    @property
    def leaves_held_out(self) -> bool:
        """Whether documents remain that no stage reads."""
        return False

    @abstractmethod
    def restrict(self, subset: Subset) -> Self:
        """The source with all documents, those for training, or the held-out ones."""

    @property
    @abstractmethod
    def origin(self) -> str:
        """Where the documents come from, in words; no private paths."""

    @model_validator(mode="after")
    def _spans_of_chunks(self) -> Self:
        if self.repeat_span_tokens is not None and self.repeat_chunk_tokens is None:
            raise ValueError("'repeat_span_tokens' needs 'repeat_chunk_tokens'")
        return self


DATA_SOURCES: Registry[type[DataSourceConfig]] = Registry("kind of data source")
"""Name → the class of its settings."""


@DATA_SOURCES.register("pocket")
class PocketSourceConfig(DataSourceConfig):
    """The synthetic pocket corpus, which is infinite."""

    kind: Literal["pocket"]
    split: Literal["train", "validation"] = "train"
    """Split of the corpus; they share no question."""
    mixture: dict[str, float] = Field(default_factory=dict)
    """Kind of text → weight; default: the corpus' own mixture."""
    max_haystack_tokens: int | None = Field(default=None, ge=1)
    """Length of the longest haystack."""

    @property
    def leaves_held_out(self) -> bool:
        return True

    def restrict(self, subset: Subset) -> Self:
        return self.model_copy(update={"split": "validation"}) if subset == "held_out" else self

    @property
    def origin(self) -> str:
        return "synthetic pocket corpus"


class TableSourceConfig(DataSourceConfig):
    """Rows of a table, of which one column or two hold the text."""

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
    reasoning: Reasoning = "error"
    """What becomes of thoughts (`<think> … </think>`, or a key of the turn) of assistant turns: trained on,
    left out, or refused. Of those that are kept, the template decides which it renders."""
    where: dict[str, str | int | float | list[str]] = Field(default_factory=dict)
    """Row filter: column → a value, a list of allowed values, or a number as the minimum."""
    min_characters: int = Field(default=1, ge=1)
    """Shorter examples are dropped."""
    shuffle_buffer_size: int = Field(default=16384, ge=1)
    """Number of documents that are read and shuffled together."""
    infinite: bool = True
    """Start over in another order when all documents have been read."""
    subset: Subset = "all"
    """All documents, the 99 % for training, or the held-out 1 %, split by a hash of the text."""
    sample_fraction: float = Field(default=1.0, gt=0, le=1)
    """Fraction of the documents that is read, chosen by a hash of the text."""
    sample_start: float = Field(default=0.0, ge=0, lt=1)
    """Where that fraction begins, so that sources of the same files can have disjoint parts, such as 0 and
    0.3 for two fractions of 0.3."""
    exclude: str | None = None
    """File with document hashes to skip, as written by `python -m evalsuite.distill.data.decontamination`."""

    @property
    def columns(self) -> set[str]:
        """Columns that are read."""
        if self.messages is not None:
            return {self.messages, *self.where}
        if self.prompt is not None and self.completion is not None:
            return {self.prompt, self.completion, *self.where}
        return {self.text, *self.where}

    @property
    def is_infinite(self) -> bool:
        return self.infinite

    @property
    def leaves_held_out(self) -> bool:
        return self.subset == "train"

    def restrict(self, subset: Subset) -> Self:
        changes: dict[str, Any] = {"subset": subset}
        if subset == "held_out":
            # The buffer is filled with held-out documents only; a large one would read the complete corpus.
            changes["shuffle_buffer_size"] = min(self.shuffle_buffer_size, 64)
        return self.model_copy(update=changes)

    def _describe(self, *parts: str) -> str:
        found = list(parts)
        if self.subset != "all":
            found.append("without the held-out 1 %" if self.subset == "train" else "the held-out 1 %")
        if self.sample_fraction < 1:
            start = f", from {100 * self.sample_start:g} % on" if self.sample_start else ""
            found.append(f"{100 * self.sample_fraction:g} % of the documents{start}")
        if self.exclude:
            found.append("without documents that overlap with benchmarks")
        return ", ".join(found)

    @model_validator(mode="after")
    def _columns_fit(self) -> Self:
        if self.sample_start + self.sample_fraction > 1 + 1e-9:
            raise ValueError(
                f"'sample_start' ({self.sample_start}) and 'sample_fraction' ({self.sample_fraction}) add up "
                "to more than 1"
            )
        if self.chat_template_kwargs and self.messages is None:
            raise ValueError("'chat_template_kwargs' needs 'messages', which the template renders")
        if self.reasoning != "error" and self.messages is None:
            raise ValueError("'reasoning' needs 'messages', whose turns have thoughts")
        if (self.prompt is None) != (self.completion is None):
            raise ValueError("'prompt' and 'completion' must be given together")
        return self


@DATA_SOURCES.register("local")
class LocalSourceConfig(TableSourceConfig):
    """Local parquet and JSON-lines files."""

    kind: Literal["local"]
    files: list[str] = Field(min_length=1)
    """Paths or glob patterns of .parquet, .jsonl or .jsonl.zst files, which are read side by side. `$NAME`
    expands environment variables."""

    @property
    def origin(self) -> str:
        return self._describe(f"files {', '.join(PurePath(file).name for file in self.files)}")


@DATA_SOURCES.register("hub")
class HubSourceConfig(TableSourceConfig):
    """A dataset of the Hugging Face hub, streamed."""

    kind: Literal["hub"]
    dataset: str
    """`organization/name`."""
    config: str | None = None
    """Configuration of the dataset."""
    split: str = "train"
    """Split of the dataset."""
    revision: str | None = None
    """A commit, so that later runs read the same bytes."""

    @property
    def origin(self) -> str:
        name = " ".join(filter(None, (self.dataset, self.config, self.split)))
        return self._describe(name, *([f"revision {self.revision}"] if self.revision else []))


@DATA_SOURCES.register("responses")
class ResponsesSourceConfig(DataSourceConfig):
    """The teacher's responses to prompts of another source, generated before training."""

    kind: Literal["responses"]
    prompt_source: str
    """The source (with completions or messages) that supplies the prompts."""
    num_prompts: int = Field(default=1000, ge=1)
    """Number of distinct prompts, in a shuffled order of the prompt source."""
    max_new_tokens: int = Field(default=512, ge=1)
    """Longer responses are dropped."""
    temperature: float = Field(default=0.0, ge=0)
    """Sampling temperature; 0 is greedy."""
    top_p: float = Field(default=1.0, gt=0, le=1)
    """Nucleus sampling."""
    infinite: bool = True
    """Start over in another order when all responses have been read."""

    @property
    def is_infinite(self) -> bool:
        return self.infinite

    def restrict(self, subset: Subset) -> Self:
        """The file of responses is restricted once it exists."""
        return self

    @property
    def origin(self) -> str:
        return f"the teacher's responses to prompts of {self.prompt_source}"

    def as_local(self, path: str) -> LocalSourceConfig:
        """The source that reads the generated responses from `path`."""
        return LocalSourceConfig(
            kind="local",
            files=[path],
            prompt="prompt",
            completion="completion",
            seed=self.seed,
            infinite=self.infinite,
            repeat_chunk_tokens=self.repeat_chunk_tokens,
            repeat_span_tokens=self.repeat_span_tokens,
        )
