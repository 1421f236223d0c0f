"""Settings of data sources: one class per kind, and nothing that a kind would ignore."""

import pytest

from evalsuite.distill.recipe import Recipe
from evalsuite.distill.recipe.data_sources import (
    DATA_SOURCES,
    DataSourceConfig,
    HubSourceConfig,
    ResponsesSourceConfig,
)
from evalsuite.foundation import ConfigError
from evalsuite.foundation.strict import parse

LOCAL = {"kind": "local", "files": ["rows.jsonl"]}
HUB = {"kind": "hub", "dataset": "org/name"}


def test_a_mapping_becomes_the_class_that_its_kind_names():
    for kind, needed in {"local": LOCAL, "hub": HUB, "pocket": {"kind": "pocket"}}.items():
        source = DataSourceConfig.model_validate(needed)
        assert type(source) is DATA_SOURCES[kind]
        assert DataSourceConfig.model_validate(source.model_dump(mode="json")) == source


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ({"dataset": "org/name"}, "'kind' is required"),
        ({"kind": "hob"}, "'kind' = 'hob': unknown kind of data source 'hob'; did you mean 'hub'"),
        ({"kind": "hub"}, "'dataset' is required"),
        ({"kind": "local"}, "'files' is required"),
        ({"kind": "local", "files": []}, "'files' = \\[\\]: List should have at least 1 item"),
        ({"kind": "responses"}, "'prompt_source' is required"),
        ({**HUB, "files": ["a.jsonl"]}, "unknown key 'files': it applies to kind local only"),
        ({"kind": "pocket", "where": {}}, "unknown key 'where': it applies to kind local or hub only"),
        ({"kind": "pocket", "sed": 1}, "unknown key 'sed'; did you mean 'seed'"),
        ({**LOCAL, "prompt": "a"}, "'prompt' and 'completion' must be given together"),
        ({**LOCAL, "chat_template_kwargs": {"a": 1}}, "'chat_template_kwargs' needs 'messages'"),
        ({**HUB, "repeat_span_tokens": 8}, "'repeat_span_tokens' needs 'repeat_chunk_tokens'"),
    ],
)
def test_keys_of_another_kind_and_missing_keys_are_refused_by_name(source, message):
    with pytest.raises(ConfigError, match=message):
        parse(source, DataSourceConfig, "recipe")


def test_mistakes_in_a_recipe_name_the_source(small_recipe):
    value = small_recipe("teacher").model_dump(mode="json")
    with pytest.raises(ConfigError, match=r"recipe: unknown key 'data.pocket.text': it applies to kind"):
        parse({**value, "data": {"pocket": {"kind": "pocket", "text": "text"}}}, Recipe, "recipe")


def test_sources_are_restricted_to_their_training_or_held_out_documents():
    local = DataSourceConfig.model_validate({**LOCAL, "shuffle_buffer_size": 1000})
    assert not local.leaves_held_out
    assert local.restrict("train").leaves_held_out
    held_out = local.restrict("held_out")
    # A large buffer would read the complete corpus for a few held-out documents.
    assert (held_out.subset, held_out.shuffle_buffer_size) == ("held_out", 64)
    pocket = DataSourceConfig.model_validate({"kind": "pocket"})
    assert pocket.leaves_held_out
    assert [pocket.restrict(subset).split for subset in ("train", "held_out")] == ["train", "validation"]


def test_origins_name_what_is_public():
    hub = HubSourceConfig(**HUB, config="small", revision="abc", subset="train", sample_fraction=0.5)
    assert hub.origin == (
        "org/name small train, revision abc, without the held-out 1 %, 50 % of the documents"
    )
    local = DataSourceConfig.model_validate({**LOCAL, "files": ["/home/someone/rows.jsonl"]})
    assert local.origin == "files rows.jsonl"


def test_generated_responses_are_read_with_the_settings_of_their_source():
    source = ResponsesSourceConfig(
        kind="responses", prompt_source="chats", seed=3, infinite=False, repeat_chunk_tokens=64
    )
    local = source.as_local("responses/chats.jsonl")
    assert (local.files, local.prompt, local.completion) == (
        ["responses/chats.jsonl"],
        "prompt",
        "completion",
    )
    assert (local.seed, local.infinite, local.repeat_chunk_tokens) == (3, False, 64)
