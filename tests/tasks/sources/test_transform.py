"""Row transforms: statements of BEAR, articles of Wikitext."""

from typing import Any

import pytest

from evalsuite.foundation import DataError
from evalsuite.tasks.sources.transforms.bear import common_prefix, statements
from evalsuite.tasks.sources.transforms.wikitext import pages

RELATIONS = [
    {
        "relation": "P36",
        "templates": ["The capital of [X] is [Y].", "[Y] is the capital of [X]."],
        "answer_space_labels": ["Paris", "Oslo", "Port Louis"],
    },
    {"relation": "P1", "templates": ["[Y] leads [X]."], "answer_space_labels": ["de Gaulle", "Olaf"]},
]


class Data:
    def rows(self, dataset: str, config: str | None, split: str) -> list[dict[str, Any]]:
        assert (dataset, config, split) == ("lm-pub-quiz/BEAR", "BEAR", "relations")
        return RELATIONS

    def merged_rows(self, dataset: str, column: str, split: str) -> list[dict[str, Any]]:
        raise NotImplementedError


def test_bear_statements_share_a_prompt() -> None:
    rows = [
        {"relation": "P36", "sub_label": "Norway", "answer_idx": 1},
        {"relation": "P1", "sub_label": "Norway", "answer_idx": 0},
    ]
    capital, leader = statements(rows, Data())
    assert capital["prompt"] == "The capital of Norway is"
    assert capital["choices"] == [" Paris.", " Oslo.", " Port Louis."]
    assert capital["gold"] == 1
    # Answers at the start share no prefix; the first letter is upper case, as in lm-pub-quiz.
    assert (leader["prompt"], leader["choices"]) == ("", ["De Gaulle leads Norway.", "Olaf leads Norway."])
    with pytest.raises(DataError, match="no relation P99"):
        statements([{"relation": "P99", "sub_label": "x", "answer_idx": 0}], Data())


def test_common_prefix_is_whole_words() -> None:
    assert common_prefix(["It is Port Louis.", "It is Porto."]) == "It is"
    assert common_prefix(["It is a.", "It is a."]) == "It is"
    assert common_prefix(["alone"]) == ""


def test_wikitext_lines_become_articles() -> None:
    lines = [
        "\n",
        " = One = \n",
        "\n",
        " First line .\n",
        " = = Part = = \n",
        " Second .\n",
        " = Two = \n",
        " Third .\n",
    ]
    found = pages([{"text": line} for line in lines], Data())
    assert [row["page"] for row in found] == [
        " = One = \n\n First line .\n = = Part = = \n Second .\n",
        " = Two = \n Third .\n",
    ]
