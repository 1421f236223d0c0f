"""Exposure: teacher-forced and free-running agreement by position."""

import pytest

from evalsuite.foundation import DataError
from evalsuite.models.inference.requests import ScoreResponse
from evalsuite.reports.studies.training_choices.exposure import exposure_row, forced_requests


def test_each_token_is_scored_after_the_prompt_and_the_teachers_tokens() -> None:
    requests = forced_requests([7, 8], [1, 2, 3])
    assert [request.context for request in requests] == [(7, 8), (7, 8, 1), (7, 8, 1, 2)]
    assert [request.continuations for request in requests] == [((1,),), ((2,),), ((3,),)]


def test_rows_tell_teacher_forced_from_free_running_agreement() -> None:
    forced = [ScoreResponse((-0.1,), (True,), (1,)), ScoreResponse((-2.0,), (False,), (1,))]
    forced.append(ScoreResponse((-0.2,), (True,), (1,)))
    row = exposure_row([1, 2, 3], [1, 9], forced)
    assert row == {
        "logprob": [-0.1, -2.0, -0.2],
        "forced": [True, False, True],
        "free": [True, False, False],
    }


def test_a_token_that_could_not_be_scored_is_refused() -> None:
    with pytest.raises(DataError, match="could not be scored: too long"):
        exposure_row([1], [1], [ScoreResponse.from_error("too long")])
