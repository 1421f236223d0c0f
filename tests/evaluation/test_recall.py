"""Recall: RULER's templates and metrics are lm-eval's; reading sets; tokenizers that cannot write needles."""

import importlib
import re
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from evalsuite.evaluation.build import make_harness
from evalsuite.evaluation.documents import token_counter
from evalsuite.evaluation.run_paths import cells_of, read_built, read_requests
from evalsuite.foundation import ConfigError, DataError
from evalsuite.models.inference.requests import GenerateResponse
from evalsuite.protocols.generation import GenerationBenchmark
from evalsuite.protocols.scorers import SCORERS
from evalsuite.protocols.tokenization import Encoder
from evalsuite.reports.run import read_manifest
from evalsuite.tasks.benchmark import load_benchmark
from evalsuite.tasks.sources.documents import documents, with_ids
from evalsuite.tasks.synthetic.ruler import TOKENS_TO_GENERATE, aggregation, qa, variable_tracking
from tests.evaluation.runs import evaluate_quietly


def theirs(name: str) -> Any:
    return pytest.importorskip(f"lm_eval.tasks.ruler.{name}", exc_type=ImportError)


def plain(template: str) -> str:
    """A template without the names of its blanks, and without the space at its end."""
    return re.sub(r"\{[a-z_]+\}", "{}", template).rstrip()


def test_recall_templates_equal_lm_eval() -> None:
    assert plain(theirs("vt_utils").TEMPLATE) == plain(variable_tracking.TEMPLATE)
    assert plain(theirs("cwe_utils").TEMPLATE) == plain(aggregation.COMMON_TEMPLATE)
    assert plain(theirs("fwe_utils").TEMPLATE) == plain(aggregation.FREQUENT_TEMPLATE)
    assert plain(f"{theirs('qa_utils').TEMPLATE} Answer:") == plain(qa.TEMPLATE)


@pytest.mark.parametrize(
    "response", ["", " Oslo", "oslo, 1234567 and Bergen", "1234567\x07", "12345678\nOSLO", "\tBERGEN "]
)
@pytest.mark.parametrize("answers", [["Oslo"], ["Oslo", "1234567"], ["Bergen", "Bergen", "1234567"]])
def test_recall_string_match_equals_lm_eval(response: str, answers: list[str]) -> None:
    metrics = theirs("common_utils")
    doc = {"max_length": 4096, "outputs": answers}
    row = {"answers": answers}
    assert SCORERS["all_found"](row, response).values == {
        "accuracy": metrics.process_results(doc, [response])["4096"]
    }
    found = SCORERS["any_found"](row, response).values
    # lm-eval 0.4.13 gives the share of the references; RULER asks whether there is one.
    assert found["share"] == metrics.process_results_part(doc, [response])["4096"]
    assert found["accuracy"] == float(found["share"] > 0)


@pytest.mark.parametrize("name", ["fda", "swde", "squad_completion"])
def test_recall_reading_sets_equal_based(name: str) -> None:
    row = {
        "doc_id": "1",
        "text": "\n Device: XY-200 (510k).\nMaker: Aven Inc. \nPredicate: ",
        "value": " K12.345 (B) ",
    }
    benchmark = load_benchmark(name)
    made = make_harness(benchmark, "generation", with_ids([(row, None)]))
    assert isinstance(made, GenerationBenchmark)
    task = importlib.import_module(f"lm_eval.tasks.{name}.task")
    kind = getattr(task, {"fda": "FDA", "swde": "SWDE", "squad_completion": "SQUADCompletion"}[name])
    reference = kind.__new__(kind)
    assert made.messages(0) == [("user", reference.doc_to_text(row))]
    for response in (" k12.345 (b)", " K12x345 (B)", "", " it is K12.345 (B), I think"):
        scored = made.score(0, GenerateResponse((1,), response, "stop"))
        assert scored.values == reference.process_results(row, [response])
        assert scored.detail["target"] == "K12.345 (B)"
    assert benchmark.generation is not None
    assert (benchmark.generation.sampling.max_new_tokens, benchmark.generation.sampling.stop) == (48, ("\n",))
    with pytest.raises(DataError, match=r"'text'.* is undefined"):
        make_harness(benchmark, "generation", with_ids([({"value": "x"}, None)]))


KINDS = {"ruler_vt": "vt", "ruler_fwe": "fwe"}
CHAT = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}<assistant>"


def test_ruler_prompt_format_from_suite(
    crew: Any, tokenizer: PreTrainedTokenizerFast, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As it is, as RULER asks base models; or in a chat, where the assistant's turn has begun already."""
    monkeypatch.setattr(tokenizer, "chat_template", CHAT)
    kinds = ("niah_single_1", "ruler_vt", "ruler_fwe")
    found: dict[tuple[str, str], list[str]] = {}
    for prompt in ("literal", "chat"):
        entries = "".join(
            f"  - {{benchmark: {kind}, contexts: [2048], prompt: {prompt}}}\n" for kind in kinds
        )
        (tmp_path / "s.yaml").write_text(f"name: s\ntitle: S\nlimit: 2\nbenchmarks:\n{entries}")
        run = tmp_path / prompt
        evaluate_quietly(suite=tmp_path / "s.yaml", checkpoints=["a"], out=run, phases=("build",))
        manifest = read_built(run)
        for cell in cells_of(manifest):
            for request_set in read_requests(run, manifest.checkpoints[0].tokenizer, cell):
                text = tokenizer.decode(request_set.prompt)
                found.setdefault((prompt, cell.benchmark), []).append(text)
                assert (
                    len(request_set.prompt) + TOKENS_TO_GENERATE[KINDS.get(cell.benchmark, cell.benchmark)]
                    <= 2048
                )
        said = {each.name: each.protocols["generation"].prompt for each in read_manifest(run).benchmarks}
        assert set(said.values()) == {"literal" if prompt == "literal" else "chat template"}
    for kind in kinds:
        for literal, chat in zip(found["literal", kind], found["chat", kind], strict=True):
            assert "<user>" not in literal
            before, begun = chat.split("<assistant>")
            assert before.startswith("<user>")
            assert begun == begun.lstrip() != ""
            assert literal.rstrip().endswith(begun)
            assert not before.rstrip().endswith(("is", "are", ":"))
    (tmp_path / "s.yaml").write_text("name: s\ntitle: S\nbenchmarks: [{benchmark: bear, prompt: chat}]\n")
    with pytest.raises(
        ConfigError,
        match=r"s.yaml: benchmarks: bear: 'prompt' = chat: it has no generation protocol",
    ):
        evaluate_quietly(suite=tmp_path / "s.yaml", checkpoints=["a"], out=tmp_path / "no", phases=("build",))


def test_starts_with_scorer() -> None:
    row = {"answers": ["1234567"]}
    for response in (" 1234567", "1234567.\nWhat", " 1234567, and"):
        assert SCORERS["starts_with"](row, response).values == {"accuracy": 1.0}, response
    for response in ("12345678", "7654321 or 1234567", "", "the 1234567"):
        assert SCORERS["starts_with"](row, response).values == {"accuracy": 0.0}, response
    assert SCORERS["starts_with"](row, "7654321 or").extracted == "7654321"


def test_first_word_scorer() -> None:
    row = {"answers": ["copper"]}
    assert SCORERS["first_word"](row, " copper\nanchor").values == {"accuracy": 1.0}
    assert SCORERS["first_word"](row, " copperplate").values == {"accuracy": 0.0}
    assert SCORERS["first_word"](row, "  ").extracted == ""


def words_only(*, bos: bool = False) -> PreTrainedTokenizerFast:
    """A tokenizer that knows the words of one template and nothing else."""
    known = {"<unk>": 0, "<s>": 1, "</s>": 2, "The": 3, "grass": 4}
    tokenizer = Tokenizer(models.WordLevel(known, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    if bos:
        from tokenizers.processors import TemplateProcessing

        tokenizer.post_processor = TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, unk_token="<unk>", bos_token="<s>", eos_token="</s>"
    )


def test_tokenizer_that_cannot_encode_needle_is_refused() -> None:
    benchmark = load_benchmark("niah_single_1")
    tokenizer = words_only()
    found = documents(benchmark, limit=1, context=512, count_tokens=token_counter(tokenizer, benchmark))
    made = make_harness(benchmark, "generation", found)
    assert isinstance(made, GenerationBenchmark)
    with pytest.raises(DataError, match=r"niah_single_1: the tokenizer cannot encode the answer '\d{7}'"):
        made.request_sets(Encoder(tokenizer), chat_template=False)


def test_ruler_length_counts_bos_token(tokenizer: Any) -> None:
    benchmark = load_benchmark("niah_single_1")
    bare, begun = (token_counter(words_only(bos=bos), benchmark) for bos in (False, True))
    assert begun("The grass") == bare("The grass") + 1
    pocket = load_benchmark("pocket_niah_single_1")
    assert token_counter(words_only(bos=True), pocket)("The grass") == 2
    assert token_counter(tokenizer, benchmark)("1234567") == len(tokenizer("1234567").input_ids)


def test_ruler_needs_tokenizer_and_context() -> None:
    benchmark = load_benchmark("ruler_vt")
    with pytest.raises(ConfigError, match="vt: needs a checkpoint"):
        documents(benchmark, limit=1, context=4096)
    with pytest.raises(ConfigError, match="it takes one such as 4096"):
        documents(benchmark, limit=1, count_tokens=len)
