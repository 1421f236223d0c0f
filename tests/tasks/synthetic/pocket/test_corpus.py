"""The corpus covers every format and fact, and contains no evaluation document."""

import re
from itertools import islice

import pytest

from evalsuite.foundation import ConfigError
from evalsuite.tasks.synthetic.pocket import MIXTURE, TASKS, corpus, count_tokens, rows, texts
from evalsuite.tasks.synthetic.pocket.facts import Fact, ask, facts, questions
from evalsuite.tasks.synthetic.pocket.harder.corpus import WRITERS
from evalsuite.tasks.synthetic.pocket.question import normalize
from evalsuite.tasks.synthetic.pocket.tokenizer import PATTERN


def _taken(**options: object) -> list[str]:
    return list(islice(corpus(0, **options), 1500))  # type: ignore[arg-type]


HARDER = dict.fromkeys(WRITERS, 1.0)


@pytest.mark.parametrize("mixture", [MIXTURE, HARDER], ids=["present", "harder"])
@pytest.mark.parametrize("split", ["train", "validation"])
def test_corpus_contains_no_evaluation_document(split: str, mixture: dict[str, float]) -> None:
    """Neither a question with its answer nor, except for facts and needles, the question itself."""
    read = normalize("\n".join(_taken(split=split, longest=160, mixture=mixture)))
    for kind in (each for each in TASKS.values() if (each.name in WRITERS) == (mixture is HARDER)):
        context = kind.contexts[0] if kind.contexts else None
        for row in rows(kind.name, count=100, context=context):
            response = row["choices"][row["gold"]] if row["choices"] else row["answer"]
            assert normalize(f"{row['prompt']} {response}") not in read
            if row["rule"] != "contains":
                assert f"{normalize(row['prompt'])} " not in read


@pytest.mark.parametrize("kind", WRITERS)
def test_harder_texts_are_words_of_the_tokenizer(kind: str) -> None:
    """No word falls back to bytes, which would make a text several times as long."""
    for text in islice(corpus(0, mixture={kind: 1.0}, longest=300), 40):
        pieces = re.findall(PATTERN, text)
        assert count_tokens(text) == len(pieces), text


def test_prose_is_whole_in_the_loss_and_questions_are_not() -> None:
    for kind in WRITERS:
        text = next(texts(0, mixture={kind: 1.0}, longest=300))
        is_prose = kind in ("prose", "word_lists")
        assert all(segment.answer for segment in text) == is_prose, kind


def test_corpus_has_every_prompt_format() -> None:
    """Training texts have the prompts of each benchmark, and the overlap check detects training questions."""
    read = "\n".join(_taken())
    for beginning in ("Question: ", "Problem: ", "Pairs: ", "Instruction: ", "Some special magic strings"):
        assert beginning in read
    sampled_texts = list(islice(corpus(0, mixture={"facts": 1.0}), 40))
    known = {normalize(f"{question.prompt} {question.answer}") for question in questions("train")}
    read = normalize("\n".join(sampled_texts))
    assert sum(question in read for question in known) > 100


def test_corpus_states_every_fact() -> None:
    statements = " ".join(islice(corpus(0, mixture={"statements": 1.0}), 500)).replace("\n", " ")
    sentences = [sentence.split() for sentence in statements.replace(",", "").split(". ")]
    pairs = {(word, other) for words in sentences for word in words for other in words}
    for fact in facts():
        assert (fact.subject, fact.value) in pairs, fact


def test_evaluated_facts_have_other_wordings_in_training() -> None:
    """Wordings are disjoint between splits; nearly every evaluated fact is trained in another wording."""
    evaluated = {(q.prompt, q.answer) for q in questions("evaluation")}
    trained = {(q.prompt, q.answer) for q in questions("train")}
    validated = {(q.prompt, q.answer) for q in questions("validation")}
    assert len(evaluated) >= 200
    assert not evaluated & trained
    assert not evaluated & validated
    assert not validated & trained
    evaluated_facts = [fact for fact in facts() if _wordings(fact) & evaluated]
    assert sum(bool(_wordings(fact) & trained) for fact in evaluated_facts) >= 0.95 * len(evaluated_facts)


def _wordings(fact: Fact) -> set[tuple[str, str]]:
    questions_of_it = [ask(fact, wording) for wording in range(len(fact.relation.questions))]
    return {(question.prompt, question.answer) for question in questions_of_it}


def test_splits_are_disjoint() -> None:
    mixture = {"facts": 1.0, "arithmetic": 1.0, "cloze": 1.0, "recall": 1.0, "instructions": 1.0}
    train, validation = (
        set(islice(corpus(0, split, mixture=mixture), 500))  # type: ignore[arg-type]
        for split in ("train", "validation")
    )
    assert not train & validation


def test_texts_are_independent() -> None:
    all_texts = list(islice(corpus(5), 60))
    assert list(islice(corpus(5, start=1, step=3), 20)) == all_texts[1::3]
    assert list(islice(corpus(6), 60)) != all_texts


def test_answers_are_marked() -> None:
    for text in islice(texts(0), 300):
        assert text[-1].text.endswith("\n")
        assert all(part.text.endswith("\n") for part in text if part.answer)
        marked = [part.answer for part in text]
        # Prompt and answer alternate, except for statements (answer only) and unused haystacks (prompt only).
        assert marked in ([True], [False]) or marked == [False, True] * (len(marked) // 2)


@pytest.mark.parametrize("kind", MIXTURE)
def test_single_kind_mixtures(kind: str) -> None:
    assert all(islice(corpus(0, "validation", mixture={kind: 1.0}, longest=128), 30))


def test_invalid_requests_are_refused() -> None:
    with pytest.raises(ConfigError, match="did you mean 'train'"):
        next(corpus(0, "trian"))  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="did you mean 'recall'"):
        next(corpus(0, mixture={"recal": 1.0}))
