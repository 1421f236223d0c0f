"""The corpus teaches every format and every fact, and holds no evaluated document."""

from itertools import islice

import pytest

from evalsuite.foundation import ConfigError
from evalsuite.tasks.pocket import KINDS, MIXTURE, corpus, rows, texts
from evalsuite.tasks.pocket.drawing import normalised
from evalsuite.tasks.pocket.facts import ask, questions
from evalsuite.tasks.pocket.world import Fact, facts


def _taken(**options: object) -> list[str]:
    return list(islice(corpus(0, **options), 1500))  # type: ignore[arg-type]


@pytest.mark.parametrize("split", ["train", "validation"])
def test_no_evaluated_document_occurs_in_the_corpus(split: str) -> None:
    """Neither a question with its answer nor, beyond facts and needles' filler, the question itself."""
    read = normalised("\n".join(_taken(split=split, longest=160)))
    for kind in KINDS.values():
        context = kind.contexts[0] if kind.contexts else None
        for row in rows(kind.name, count=200, context=context):
            written = row["choices"][row["gold"]] if row["choices"] else row["answer"]
            assert normalised(f"{row['prompt']} {written}") not in read
            if row["rule"] != "contains":
                assert f"{normalised(row['prompt'])} " not in read


def test_the_corpus_asks_in_every_format() -> None:
    """Train texts hold prompts of each benchmark's form; the same check on them does find documents."""
    read = "\n".join(_taken())
    for beginning in ("Question: ", "Problem: ", "Pairs: ", "Instruction: ", "Some special magic strings"):
        assert beginning in read
    asked = list(islice(corpus(0, mixture={"facts": 1.0}), 40))
    known = {normalised(f"{question.prompt} {question.answer}") for question in questions("train")}
    read = normalised("\n".join(asked))
    assert sum(question in read for question in known) > 100


def test_every_fact_is_told() -> None:
    told = " ".join(islice(corpus(0, mixture={"statements": 1.0}), 500)).replace("\n", " ")
    sentences = [sentence.split() for sentence in told.replace(",", "").split(". ")]
    pairs = {(word, other) for words in sentences for word in words for other in words}
    for fact in facts():
        assert (fact.subject, fact.value) in pairs, fact


def test_evaluated_facts_are_asked_otherwise_in_training() -> None:
    """No wording is in two splits, and nearly every evaluated fact is trained in another wording."""
    evaluated = {(q.prompt, q.answer) for q in questions("evaluation")}
    trained = {(q.prompt, q.answer) for q in questions("train")}
    validated = {(q.prompt, q.answer) for q in questions("validation")}
    assert len(evaluated) >= 200
    assert not evaluated & trained
    assert not evaluated & validated
    assert not validated & trained
    asked = [fact for fact in facts() if _wordings(fact) & evaluated]
    assert sum(bool(_wordings(fact) & trained) for fact in asked) >= 0.95 * len(asked)


def _wordings(fact: Fact) -> set[tuple[str, str]]:
    questions_of_it = [ask(fact, wording) for wording in range(len(fact.relation.questions))]
    return {(question.prompt, question.answer) for question in questions_of_it}


def test_splits_share_no_text() -> None:
    kept = {"facts": 1.0, "arithmetic": 1.0, "cloze": 1.0, "recall": 1.0, "instructions": 1.0}
    train, validation = (
        set(islice(corpus(0, split, mixture=kept), 500))  # type: ignore[arg-type]
        for split in ("train", "validation")
    )
    assert not train & validation


def test_a_text_depends_on_its_number_alone() -> None:
    whole = list(islice(corpus(5), 60))
    assert list(islice(corpus(5, start=1, step=3), 20)) == whole[1::3]
    assert list(islice(corpus(6), 60)) != whole


def test_answers_are_marked() -> None:
    for text in islice(texts(0), 300):
        assert text[-1].text.endswith("\n")
        assert all(part.text.endswith("\n") for part in text if part.answer)
        marked = [part.answer for part in text]
        # Prompt and answer take turns, but for statements, which are all answer, and a haystack unasked.
        assert marked in ([True], [False]) or marked == [False, True] * (len(marked) // 2)


@pytest.mark.parametrize("kind", MIXTURE)
def test_every_kind_can_be_had_alone(kind: str) -> None:
    assert all(islice(corpus(0, "validation", mixture={kind: 1.0}, longest=128), 30))


def test_bad_requests_are_refused() -> None:
    with pytest.raises(ConfigError, match="did you mean 'train'"):
        next(corpus(0, "trian"))  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="did you mean 'recall'"):
        next(corpus(0, mixture={"recal": 1.0}))
