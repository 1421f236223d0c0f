"""Rules in both directions: what must stay the same neither loses nor gains."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from evalsuite.api import plan_gate
from evalsuite.foundation import ConfigError
from evalsuite.foundation.strict import parse
from evalsuite.reports import Policy, run_gate
from evalsuite.reports.gate.decide import decide
from evalsuite.reports.rules.measurement import Measurement
from evalsuite.reports.statistics.contrasts import Contrast

FIXTURES = Path(__file__).parents[1] / "fixtures"


def policy(*rules: Any) -> Policy:
    """A policy of these rules."""
    return parse({"rules": list(rules)}, Policy, "policy")


def regression(baseline: str, within: float) -> Policy:
    """The generated answers are those of a stored run."""
    rule = {"metric": "regression", "within": within, "baseline": str(FIXTURES / baseline)}
    return policy(rule | {"protocol": "generation"})


def test_the_same_model_passes_and_few_documents_do_not_prove_it() -> None:
    verdict = run_gate([FIXTURES / "passing"], regression("passing", 5))
    assert verdict.exit_code == 0
    assert verdict.results[0].requirement == "between −5.0 points and 5.0 points"
    narrow = run_gate([FIXTURES / "passing"], regression("passing", 0.5))
    assert narrow.exit_code == 2
    assert narrow.results[0].documents_needed > narrow.results[0].documents


def test_a_loss_and_a_gain_fail() -> None:
    lost = run_gate([FIXTURES / "failing"], regression("passing", 2))
    gained = run_gate([FIXTURES / "passing"], regression("failing", 2))
    assert (lost.exit_code, gained.exit_code) == (1, 1)
    assert "misses it by" in lost.results[0].sentence
    assert "gains more than allowed by" in gained.results[0].sentence
    assert lost.results[0].point == pytest.approx(-gained.results[0].point)
    one_sided = {"metric": "regression", "max": 2, "baseline": str(FIXTURES / "failing")}
    assert run_gate([FIXTURES / "passing"], policy(one_sided | {"protocol": "generation"})).exit_code == 0


def test_a_recovery_has_a_distance_from_one() -> None:
    (rule,) = policy("recovery within 0.02").rules
    assert (rule.threshold, rule.gain) == pytest.approx((0.98, 1.02))
    (rule,) = policy("drop within 1").rules
    assert (rule.threshold, rule.gain) == (1, -1)
    verdict = run_gate([FIXTURES / "failing"], policy({"metric": "recovery", "within": 0.02}))
    assert {each.requirement for each in verdict.results} == {"between 98.0 % and 102.0 %"}
    assert "misses it by" in next(each.sentence for each in verdict.results if each.outcome == "regression")


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        ({"metric": "drop", "within": 0}, "no number of documents proves that nothing at all changed"),
        ({"metric": "drop", "within": float("nan")}, "'rules.0.within' = nan"),
        ({"metric": "drop", "within": 1, "max": 1}, "leave 'min' and 'max' out"),
        ({"metric": "recovery", "within": 2}, "below 1, as a fraction: 0.01 means 1 %"),
        (
            {"metric": "score", "within": 0.1},
            "'within' belongs to recovery, chance_normalized_recovery, drop",
        ),
        ({"metric": "drop"}, "drop takes 'max', and only that (or 'within', in both directions)"),
        ({"metric": "drop", "within": True}, "'rules.0.within' = True: expected a number"),
    ],
)
def test_what_is_no_margin_is_refused(rule: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        policy(rule)
    assert message in str(caught.value)


@pytest.mark.parametrize("truth", [-1.0, 0.0, 1.0])
def test_error_rates_on_the_margin(truth: float) -> None:
    """On either margin, at most 2.5 % fail and 2.5 % pass; in the middle, none fails and nearly all pass."""
    rng = np.random.default_rng(4)
    outcomes = []
    for _ in range(2000):
        point = truth + 0.2 * rng.standard_normal()
        draws = point + 0.2 * rng.standard_normal(4000)
        measured = Measurement(Contrast(float(point), draws, 1e9, 0.04), 1000, ())
        outcomes.append(decide([measured], [1.0], [False], gains=[-1.0])[0].outcome)
    fails, passes = (outcomes.count(each) / 2000 for each in ("regression", "pass"))
    assert fails <= (0.02 if truth else 0.0)
    assert passes > 0.99 if truth == 0 else passes <= 0.032


def test_a_gain_beyond_the_margin_is_not_hidden_by_another_rule() -> None:
    gained = Measurement(Contrast(-9.0, np.full(4000, -9.0), 1e9, 0.0), 1000, ())
    found = decide([gained, gained], [1.0, 1.0], [False, False], gains=[None, -1.0])
    assert [each.outcome for each in found] == ["pass", "regression"]


def test_power_in_both_directions() -> None:
    """A second side costs some power; an unchanged checkpoint passes less often."""
    rule = {"metric": "drop", "protocol": "generation"}
    one, both = (
        plan_gate(policy(rule | bound), documents=[1319]).rules[0] for bound in ({"max": 1}, {"within": 1})
    )
    assert both.requirement == "between −1.0 points and 1.0 points"
    assert one.lost.fails - 0.05 < both.lost.fails < one.lost.fails
    assert both.unchanged.passes < one.unchanged.passes
    assert both.unchanged.fails <= 0.025
