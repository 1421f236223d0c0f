"""Arguments of chat templates: in prompts, plan and identity, and refused before any model is loaded."""

import os
from pathlib import Path
from typing import Any

import pytest
from transformers import PreTrainedTokenizerFast

from evalsuite.evaluation.documents import counter_id
from evalsuite.evaluation.plan import resolve_suite
from evalsuite.evaluation.run_paths import cells_of, read_built, read_requests
from evalsuite.foundation import ConfigError, RunFolderError
from evalsuite.reports.run import read_manifest
from tests.evaluation.runs import evaluate_quietly

CHAT = (
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}<assistant>"
    "{% if enable_thinking is defined %}{{ '<think>' if enable_thinking else '<think></think>' }}{% endif %}"
)
STRICT = (
    "{% if level is defined and level > 3 %}{{ raise_exception('level above 3') }}{% endif %}"
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}<assistant>"
)
Crew = Any

needs_data = pytest.mark.skipif(not os.environ.get("EVALSUITE_DATA"), reason="EVALSUITE_DATA is not set")


@pytest.fixture(autouse=True)
def _chat(tokenizer: PreTrainedTokenizerFast, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokenizer, "chat_template", CHAT)


@pytest.fixture
def suite(tmp_path: Path) -> Path:
    return tmp_path / "s.yaml"


def write(suite: Path, settings: str = "", entry: str = "") -> Path:
    suite.write_text(
        f"name: s\ntitle: S\nlimit: 2\n{settings}\n"
        f"benchmarks: [{{benchmark: ifeval{entry}}}, {{benchmark: niah_single_1, contexts: [1024]}}]\n"
    )
    return suite


def build(suite: Path, run: Path) -> dict[str, list[Any]]:
    """The request sets of each benchmark."""
    evaluate_quietly(suite=suite, checkpoints=["a"], out=run, phases=("build",))
    manifest = read_built(run)
    return {
        cell.benchmark: read_requests(run, manifest.checkpoints[0].tokenizer, cell)
        for cell in cells_of(manifest)
        if cell.protocol == "generation"
    }


@needs_data
@pytest.mark.data
def test_arguments_reach_prompt_plan_and_identity(
    crew: Crew, suite: Path, tokenizer: PreTrainedTokenizerFast, tmp_path: Path
) -> None:
    plain = build(write(suite), tmp_path / "plain")
    off = build(write(suite, "chat_template_kwargs: {enable_thinking: false}"), tmp_path / "off")
    on = build(
        write(
            suite,
            "chat_template_kwargs: {enable_thinking: false}",
            ", chat_template_kwargs: {enable_thinking: true}",
        ),
        tmp_path / "on",
    )
    for made, end, begun in ((plain, "<assistant>", False), (off, "</think>", False), (on, "<think>", True)):
        assert all(tokenizer.decode(each.prompt).endswith(end) for each in made["ifeval"])
        assert [each.in_reasoning for each in made["ifeval"]] == [begun, begun]
        # Literal prompts have no template.
        assert made["niah_single_1"] == plain["niah_single_1"]
    assert len({made["ifeval"][0].prompt_hash for made in (plain, off, on)}) == 3
    for name, expected in (
        ("plain", {}),
        ("off", {"enable_thinking": False}),
        ("on", {"enable_thinking": True}),
    ):
        plans = {
            each.name: each.protocols["generation"] for each in read_manifest(tmp_path / name).benchmarks
        }
        assert plans["ifeval"].chat_template_kwargs == expected
        assert plans["niah_single_1"].chat_template_kwargs == {}


@needs_data
@pytest.mark.data
def test_resumed_run_refuses_other_arguments(crew: Crew, suite: Path, tmp_path: Path) -> None:
    build(write(suite), tmp_path / "run")
    with pytest.raises(RunFolderError, match=r"kwargs\.enable_thinking: None there, False here"):
        build(write(suite, "chat_template_kwargs: {enable_thinking: false}"), tmp_path / "run")


@pytest.mark.parametrize(
    ("template", "argument", "message"),
    [
        (
            CHAT,
            "enable_thinkin: false",
            r"s.yaml: benchmarks: ifeval: the tokenizer of a: chat_template_kwargs: the chat template reads "
            r"no argument 'enable_thinkin'; did you mean 'enable_thinking'.*include s in a suite without it",
        ),
        (CHAT, "messages: x", "'messages' is set by evalsuite"),
        (
            STRICT,
            "level: 4",
            r"the tokenizer of a: the chat template refuses .* \{'level': 4\} \(level above 3",
        ),
    ],
)
def test_template_that_ignores_or_rejects_an_argument_is_refused(
    template: str,
    argument: str,
    message: str,
    crew: Crew,
    suite: Path,
    tokenizer: PreTrainedTokenizerFast,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tokenizer, "chat_template", template)
    for settings, entry in (
        (f"chat_template_kwargs: {{{argument}}}", ""),
        ("", f", chat_template_kwargs: {{{argument}}}"),
    ):
        with pytest.raises(ConfigError, match=message):
            evaluate_quietly(suite=write(suite, settings, entry), checkpoints=["a"], out=tmp_path / "x")
    assert not (tmp_path / "x" / "run.json").exists()
    assert not crew.engines


def test_arguments_without_effect_are_refused(crew: Crew, suite: Path, tmp_path: Path) -> None:
    write(suite, "chat_template: never\nchat_template_kwargs: {enable_thinking: false}")
    with pytest.raises(ConfigError, match="no effect with 'chat_template: never'"):
        build(suite, tmp_path / "x")
    write(suite, "", ", prompt: literal, chat_template_kwargs: {enable_thinking: false}")
    with pytest.raises(ConfigError, match=r"ifeval: 'chat_template_kwargs' = .* its prompts are literal"):
        build(suite, tmp_path / "x")
    suite.write_text("name: s\ntitle: S\nbenchmarks: [{benchmark: bear, chat_template_kwargs: {a: 1}}]\n")
    with pytest.raises(ConfigError, match=r"bear: 'chat_template_kwargs' = .* it has no generation"):
        build(suite, tmp_path / "x")
    suite.write_text("name: s\ntitle: S\nbenchmarks: [{benchmark: bear, reasoning: keep}]\n")
    with pytest.raises(ConfigError, match="bear: 'reasoning' = keep: it has no generation protocol"):
        build(suite, tmp_path / "x")


@needs_data
@pytest.mark.data
def test_arguments_are_not_used_without_a_template(
    crew: Crew,
    suite: Path,
    tokenizer: PreTrainedTokenizerFast,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tokenizer, "chat_template", None)
    build(write(suite, "chat_template_kwargs: {enable_thinking: false}"), tmp_path / "run")
    plan = read_manifest(tmp_path / "run").benchmarks[0].protocols["generation"]
    assert (plan.prompt, plan.chat_template_kwargs) == ("plain text", {})


def test_generated_prompts_of_a_length_count_what_the_arguments_add(crew: Crew, suite: Path) -> None:
    checkpoints = crew.describe_checkpoints(["a"], None)
    found = []
    for arguments in ("{}", "{enable_thinking: false}", "{enable_thinking: true}"):
        suite.write_text(
            f"name: s\ntitle: S\nchat_template_kwargs: {arguments}\n"
            "benchmarks: [{benchmark: niah_single_1, contexts: [1024], prompt: chat}]\n"
        )
        ((_, benchmark),) = resolve_suite(suite, checkpoints).entries
        found.append(counter_id(checkpoints[0].tokenizer, benchmark, chat_template=True))
    assert found[0] == f"{checkpoints[0].tokenizer}-chat"
    assert len(set(found)) == 3


def test_suite_decides_whether_reasoning_is_scored(crew: Crew, suite: Path) -> None:
    found = []
    for settings, entry in (("", ""), ("reasoning: keep", ""), ("reasoning: keep", ", reasoning: strip")):
        resolved = resolve_suite(write(suite, settings, entry), [])
        found.append(resolved.entries[0][1].generation.reasoning)  # type: ignore[union-attr]
    assert found == ["strip", "keep", "strip"]
