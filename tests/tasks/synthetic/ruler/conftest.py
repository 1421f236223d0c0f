"""Small input rows for the RULER generators."""

from typing import Any

import pytest

from evalsuite.tasks.synthetic.ruler.niah import CHOICE_TASKS

Row = dict[str, Any]


@pytest.fixture(scope="session")
def inputs() -> dict[str, list[list[Row]]]:
    """Task → inputs: essays of numbered sentences, rows in the columns of SQuAD and HotpotQA."""
    essays = [
        {"text": " ".join(f"The essay says {9 * n} things." for n in range(part, part + 40))}
        for part in (0, 40)
    ]
    squad = [
        {
            "id": str(number),
            "title": f"article {number % 5}",
            "context": f"Passage {number} tells that the river {number} flows through town {number}.",
            "question": f"Through which town does river {number} flow?",
            "answers": {"text": [f"town {number}", f"{number}"], "answer_start": [0, 5]},
        }
        for number in range(180)
    ]
    hotpot = [
        {
            "id": str(number),
            "question": f"Which town lies at river {number}?",
            "answer": f"town {number}",
            "context": {
                "title": [f"River {number}", f"Town {number}"],
                "sentences": [
                    [f"River {number} is long.", " It is wide."],
                    [f"Town {number} lies at river {number}."],
                ],
            },
        }
        for number in range(180)
    ]
    kinds = ("niah_single_2", "niah_single_3", "niah_multikey_1", "niah_multivalue", "niah_multiquery")
    long = [{"text": " ".join(f"Word{number} follows here." for number in range(20_000))}]
    choices = {task: [long] for task in CHOICE_TASKS}
    return {**{task: [essays] for task in kinds}, **choices, "qa_1": [squad], "qa_2": [hotpot]}
