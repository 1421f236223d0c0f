"""Each statistic against scipy, statsmodels or a closed form."""

from math import sqrt
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from scipy.optimize import minimize_scalar
from scipy.special import xlogy
from statsmodels.stats.contingency_tables import mcnemar
from statsmodels.stats.multitest import multipletests
from statsmodels.stats.proportion import proportion_confint

from evalsuite.reports import formatting
from evalsuite.reports.json_values import to_json
from evalsuite.reports.statistics.agreement import rank_agreement
from evalsuite.reports.statistics.bootstrap import Stratum, resample
from evalsuite.reports.statistics.contrasts import Contrast, is_positive, ratio_interval, satterthwaite
from evalsuite.reports.statistics.hypothesis_tests import (
    documents_to_decide,
    holm,
    mcnemar_mid_p,
    paired_minimum_detectable_effect,
)
from evalsuite.reports.statistics.intervals import clopper_pearson, wilson
from evalsuite.reports.statistics.paired import (
    few_discordant,
    level_bounds,
    paired_counts,
    scale_of,
    score_draws,
    score_interval,
    score_statistic,
)
from evalsuite.reports.statistics.seeds import seed_effect


@pytest.mark.parametrize(("successes", "trials"), [(0, 20), (1, 20), (10, 20), (20, 20), (999, 1000)])
@pytest.mark.parametrize("level", [0.9, 0.95, 0.99])
def test_wilson_is_statsmodels(successes: int, trials: int, level: float) -> None:
    interval = wilson(successes, trials, level)
    low, high = proportion_confint(successes, trials, 1 - level, method="wilson")
    assert interval is not None
    assert (interval.low, interval.high) == pytest.approx((low, high), abs=1e-12)
    assert interval.width > 0


def test_wilson_at_the_ends_and_beyond() -> None:
    assert wilson(0, 10).low == 0
    assert wilson(10, 10).high == 1
    assert wilson(0, 0) is None
    with pytest.raises(ValueError, match="11 successes of 10"):
        wilson(11, 10)


@pytest.mark.parametrize(("successes", "trials"), [(0, 16), (1, 16), (8, 16), (16, 16), (999, 1000)])
@pytest.mark.parametrize("level", [0.9, 0.95])
def test_one_sided_clopper_pearson_is_statsmodels_at_twice_the_error(
    successes: int, trials: int, level: float
) -> None:
    interval = clopper_pearson(successes, trials, level)
    low, high = proportion_confint(successes, trials, 2 * (1 - level), method="beta")
    assert interval is not None
    assert (interval.low, interval.high) == pytest.approx((low, high), abs=1e-12)


def test_clopper_pearson_at_the_ends_and_beyond() -> None:
    assert clopper_pearson(0, 16).high == pytest.approx(1 - 0.05 ** (1 / 16), abs=1e-12)
    assert clopper_pearson(16, 16).high == 1
    assert clopper_pearson(0, 0) is None
    with pytest.raises(ValueError, match="11 successes of 10"):
        clopper_pearson(11, 10)


@pytest.mark.parametrize("share", [0.0, 0.05, 1.0])
def test_level_bounds_are_wilsons_for_right_and_wrong_answers(share: float) -> None:
    z = stats.norm.ppf(0.975)
    low, high = level_bounds(share, 40, 1.0, np.array([-z, z]))
    interval = wilson(share * 40, 40)
    assert (low, high) == pytest.approx((interval.low, interval.high), abs=1e-12)


@given(st.integers(0, 60), st.integers(0, 60))
def test_mcnemar_is_the_exact_test_of_statsmodels_without_half_the_observed_split(
    wins: int, losses: int
) -> None:
    exact = 2 * stats.binom.cdf(min(wins, losses), wins + losses, 0.5)
    if wins != losses:
        assert mcnemar([[5, wins], [losses, 7]], exact=True).pvalue == pytest.approx(exact)
    expected = exact - stats.binom.pmf(wins, wins + losses, 0.5)
    assert mcnemar_mid_p(wins, losses) == pytest.approx(expected, abs=1e-12)
    assert mcnemar_mid_p(losses, wins) == mcnemar_mid_p(wins, losses)


def test_mcnemar_of_many_is_the_binomial_test() -> None:
    exact = stats.binomtest(900, 1900).pvalue
    assert mcnemar_mid_p(900, 1000) == pytest.approx(exact - stats.binom.pmf(900, 1900, 0.5))
    assert mcnemar_mid_p(0, 1001) == pytest.approx(0.5**1001)
    with pytest.raises(ValueError, match="negative"):
        mcnemar_mid_p(-1, 2)


def test_mid_p_rejects_nearer_to_its_level_than_the_exact_test() -> None:
    """Over all numbers of discordant documents: 1,000 documents of which 4 % differ, enumerated."""
    rates = {"exact": 0.0, "mid-p": 0.0}
    for discordant in range(1, 90):
        often = stats.binom.pmf(discordant, 1000, 0.04)
        for wins in range(discordant + 1):
            share = often * stats.binom.pmf(wins, discordant, 0.5)
            exact = min(1.0, 2 * stats.binom.cdf(min(wins, discordant - wins), discordant, 0.5))
            rates["exact"] += share * (exact <= 0.05)
            rates["mid-p"] += share * (mcnemar_mid_p(wins, discordant - wins) <= 0.05)
    assert rates["exact"] == pytest.approx(0.034, abs=0.003)
    assert rates["mid-p"] == pytest.approx(0.049, abs=0.003)


@settings(max_examples=20, deadline=None)
@given(st.lists(st.floats(0, 1), min_size=1, max_size=12))
def test_holm_is_statsmodels(p_values: list[float]) -> None:
    # statsmodels collects garbage in every call, which takes a second after many other tests.
    with patch("gc.collect"):
        expected = multipletests(p_values, method="holm")[1]
    assert holm(p_values) == pytest.approx(expected, abs=1e-12)


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), min_size=2, max_size=12))
def test_kendall_is_scipy(scores: list[tuple[int, int]]) -> None:
    first, second = zip(*scores, strict=True)
    agreement = rank_agreement(first, second)
    expected = stats.kendalltau(first, second).statistic
    if np.isnan(expected):
        assert agreement.tau is None
    else:
        assert agreement.tau == pytest.approx(expected, abs=1e-12)
    assert all(first[i] > first[j] and second[i] < second[j] for i, j in agreement.inversions)


@pytest.mark.parametrize("discordant", [(9, 3), (1, 0), (0, 4), (20, 20)])
@pytest.mark.parametrize("difference", [-0.3, -0.05, 0.02, 0.4])
def test_tango_statistic_has_the_restricted_maximum_likelihood(
    discordant: tuple[int, int], difference: float
) -> None:
    """The closed root against a numeric maximum of the likelihood with p₁₂ − p₂₁ held at δ."""
    (wins, losses), n = discordant, 100

    def unlikelihood(only_second: float) -> float:
        only_first = only_second + difference
        rest = 1 - only_first - only_second
        return -(xlogy(wins, only_first) + xlogy(losses, only_second) + xlogy(n - wins - losses, rest))

    bounds = (max(0.0, -difference) + 1e-12, (1 - difference) / 2 - 1e-12)
    q = minimize_scalar(unlikelihood, bounds=bounds, method="bounded", options={"xatol": 1e-12}).x
    expected = (wins - losses - n * difference) / sqrt(n * (2 * q + difference - difference**2))
    assert score_statistic(np.array([difference]), wins, losses, n)[0] == pytest.approx(expected, rel=1e-3)


def test_tango_has_width_without_discordant_documents() -> None:
    """Closed form: z² / (n + z²) on either side."""
    none = score_interval(0, 0, 50)
    z = stats.norm.ppf(0.975)
    assert (none.low, none.high) == pytest.approx((-(z**2) / (50 + z**2), z**2 / (50 + z**2)), abs=1e-9)
    assert score_interval(0, 0, 0) is None


@given(st.integers(0, 30), st.integers(0, 30), st.integers(1, 200))
def test_tango_inverts_its_own_test(wins: int, losses: int, ties: int) -> None:
    n = wins + losses + ties
    interval = score_interval(wins, losses, n)
    for end in (interval.low, interval.high):
        z = score_statistic(np.array([end]), wins, losses, n)[0]
        assert abs(z) == pytest.approx(stats.norm.ppf(0.975), abs=1e-5)
    mirrored = score_interval(losses, wins, n)
    assert (mirrored.low, mirrored.high) == pytest.approx((-interval.high, -interval.low), abs=1e-8)


def test_tango_statistic_at_no_difference_is_mcnemars() -> None:
    z = score_statistic(np.array([0.0]), 12, 5, 100)[0]
    assert z**2 == pytest.approx((12 - 5) ** 2 / (12 + 5))


def test_score_draws_have_tango_quantiles() -> None:
    normals = stats.norm.ppf((np.arange(20001) + 0.5) / 20001)
    values = np.array([1.0] + [-1.0] * 6 + [0.0] * 113)
    draws = score_draws(values, 1.0, normals)
    for level in (0.8, 0.95, 0.99):
        interval = score_interval(1, 6, 120, level)
        ends = np.quantile(draws, [0.5 - level / 2, 0.5 + level / 2])
        assert ends == pytest.approx([interval.low, interval.high], abs=1e-3)


def test_scaled_counts_have_the_mean_and_the_units_of_the_scores() -> None:
    """Scores ten times smaller have an interval ten times smaller, around their own mean."""
    values = np.array([0.4, 0.2, -0.1] + [0.0] * 17)
    scale = scale_of(values, 1.0)
    assert scale == pytest.approx((values @ values + 0.01) / (np.abs(values).sum() + 0.01))
    draws = score_draws(values, scale, np.array([-1.96, 0.0, 1.96]))
    assert draws[1] == pytest.approx(values.mean(), abs=1e-3)
    small = score_draws(values / 10, scale / 10, np.array([-1.96, 0.0, 1.96]))
    assert small == pytest.approx(draws / 10, rel=1e-6)
    assert scale_of(np.zeros(20), 0.3) == pytest.approx(0.3)


def test_few_discordant_documents_are_told_by_the_most_common_value() -> None:
    assert few_discordant(np.array([0.0] * 20 + [0.3] * 9)) == 0.0
    assert few_discordant(np.array([0.0] * 20 + [0.3] * 10)) is None
    assert few_discordant(np.ones(30)) == 1.0
    assert few_discordant(np.array([0.1, 0.2, 0.3, 0.4])) is None  # continuous: nothing is a tie


def test_paired_counts() -> None:
    counts = paired_counts(np.array([1.0, 1, 0, 1, 0.3]), np.array([0.0, 0, 1, 1, 0.1 + 0.2]))
    assert (counts.wins, counts.losses, counts.ties, counts.discordant) == (2, 1, 2, 3)


def stratum(rows: np.ndarray, **more: object) -> Stratum:
    """A stratum of these rows."""
    return Stratum(rows, tuple(f"c{i}" for i in range(rows.shape[1])), "documents", **more)


def test_stratum_refuses_nothing_and_not_a_number() -> None:
    with pytest.raises(ValueError, match="shape"):
        stratum(np.zeros((0, 2)))
    with pytest.raises(ValueError, match="finite"):
        stratum(np.array([[1.0, np.nan], [0.0, 1.0]]))
    assert np.isnan(stratum(np.array([[1.0, np.nan], [0.0, np.nan]])).means[1])
    with pytest.raises(ValueError, match="two documents"):
        resample(stratum(np.ones((1, 1))))


def test_bootstrap_has_the_closed_form_of_its_first_two_moments() -> None:
    rows = np.random.default_rng(0).random((300, 3)) @ np.array([[1, 0.5, 0], [0, 1, 0.2], [0, 0, 1]])
    draws = resample(stratum(rows), 40_000)
    assert draws.mean(axis=1) == pytest.approx(rows.mean(axis=0), abs=1e-3)
    # The unbiased covariance over n, pairing included, times the variance 299/297 of the t tails.
    assert np.cov(draws) == pytest.approx(np.cov(rows.T) / 300, rel=0.05, abs=4e-6)


def test_resamples_do_not_depend_on_how_many_are_drawn_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    one, other = stratum(np.arange(60.0).reshape(20, 3)), stratum(np.arange(20.0)[:, None] ** 2)
    first = [resample(each, 500) for each in (one, other)]
    assert np.array_equal(resample(one, 500), first[0])
    monkeypatch.setattr("evalsuite.reports.statistics.bootstrap._CHUNK", 1500)
    for each, expected in zip((one, other), first, strict=True):
        assert resample(each, 500) == pytest.approx(expected, rel=1e-12)


def test_clusters_are_resampled_together() -> None:
    """The variance is that of the ratio of cluster totals (Cochran 1977, equation 6.13)."""
    rng = np.random.default_rng(1)
    clusters = np.repeat(np.arange(60), rng.integers(1, 9, 60))
    values = (rng.standard_normal(60)[clusters] + rng.standard_normal(len(clusters)))[:, None]
    draws = resample(stratum(values, clusters=clusters), 20_000)[0]
    sizes = np.bincount(clusters)
    residual = np.bincount(clusters, values[:, 0]) - values.mean() * sizes
    variance = (residual**2).sum() / (60 * 59) / sizes.mean() ** 2
    assert draws.var() == pytest.approx(variance * 59 / 57, rel=0.1)
    assert draws.var() > 1.5 * values.var() / len(values)


def test_draws_of_a_column_do_not_depend_on_the_others() -> None:
    rows = np.random.default_rng(2).random((150, 5))
    few, many = resample(stratum(rows[:, :2])), resample(stratum(rows))
    assert (few == many[:2]).all()


def test_few_units_have_the_tails_of_student() -> None:
    rows = np.random.default_rng(3).standard_normal((8, 1))
    draws = resample(stratum(rows), 100_000)[0]
    half = stats.t.ppf(0.975, 7) * rows.std(ddof=1) / sqrt(8)
    low, high = np.quantile(draws, [0.025, 0.975])
    assert (high - low) / 2 == pytest.approx(half, rel=0.1)
    assert draws.var() == pytest.approx(rows.var(ddof=1) / 8 * 7 / 5, rel=0.05)


def test_draws_of_another_purpose_are_independent_of_the_resamples() -> None:
    one = stratum(np.arange(20.0)[:, None])
    first, second = (one.rng(purpose).random(2000) for purpose in ("resample", "seeds"))
    assert abs(np.corrcoef(first, second)[0, 1]) < 0.1


def normal_contrast(point: float, deviation: float, degrees: float = 1e9) -> Contrast:
    """A contrast with exact draws of a t distribution."""
    quantiles = stats.t.ppf((np.arange(4000) + 0.5) / 4000, degrees)
    return Contrast(point, point + deviation * quantiles, degrees, deviation**2)


@pytest.mark.parametrize("degrees", [4, 30, 1e9])
@pytest.mark.parametrize("probability", [1e-9, 1e-5, 0.02, 0.6, 0.9999])
def test_tails_go_on_beyond_the_draws(degrees: float, probability: float) -> None:
    contrast = normal_contrast(1.0, 0.5, degrees)
    expected = 1.0 + 0.5 * stats.t.ppf(probability, degrees)
    assert contrast.quantile(probability) == pytest.approx(expected, rel=0.02, abs=0.01)
    assert contrast.below(expected) == pytest.approx(probability, rel=0.3)


def test_p_value_is_two_sided() -> None:
    assert normal_contrast(1.0, 0.5).p_value() == pytest.approx(2 * stats.norm.sf(2), rel=0.05)
    assert normal_contrast(-1.0, 0.5).p_value() == pytest.approx(2 * stats.norm.sf(2), rel=0.05)
    assert normal_contrast(0.0, 0.5).p_value() == 1.0


def test_ratio_interval_is_fiellers() -> None:
    rng = np.random.default_rng(4)
    first, second = rng.multivariate_normal([0.9, 1.0], [[0.01, 0.004], [0.004, 0.02]], 400_000).T
    found = ratio_interval(Contrast(0.9, first, 1e9, 0.01), Contrast(1.0, second, 1e9, 0.02))
    z = stats.norm.ppf(0.975) ** 2
    # The roots of (0.9 − θ)² = z²·(0.01 − 2·0.004·θ + 0.02·θ²).
    roots = np.roots([1 - z * 0.02, -1.8 + 2 * z * 0.004, 0.81 - z * 0.01])
    assert (found.low, found.high) == pytest.approx(sorted(roots), rel=0.01)
    assert is_positive(Contrast(1.0, second, 1e9, 0.02))
    assert not is_positive(Contrast(0.27, second, 1e9, 0.02))


def test_satterthwaite() -> None:
    assert satterthwaite([(2.0, 5)]) == 5
    assert satterthwaite([(1.0, 10), (1.0, 10)]) == 20
    assert satterthwaite([(0.0, 3), (0.0, 9)]) == 3


def test_detectable_effect_is_that_of_a_normal_test() -> None:
    effect = normal_contrast(0.0, 0.02).detectable()
    assert effect == pytest.approx((stats.norm.ppf(0.975) + stats.norm.ppf(0.8)) * 0.02, rel=0.01)


def test_paired_detectable_effect_reaches_its_power() -> None:
    n, psi = 1000, 0.2
    delta = paired_minimum_detectable_effect(psi * n, n)
    assert delta is not None
    rng = np.random.default_rng(3)
    wins, losses, _ = rng.multinomial(n, [(psi + delta) / 2, (psi - delta) / 2, 1 - psi], 20_000).T
    z = (wins - losses) / np.sqrt(wins + losses)
    assert (z > stats.norm.ppf(0.975)).mean() == pytest.approx(0.8, abs=0.02)


def test_undetectable_effect_is_none() -> None:
    assert paired_minimum_detectable_effect(0, 100) is None
    assert paired_minimum_detectable_effect(2, 100) is None
    assert paired_minimum_detectable_effect(0, 0) is None
    assert documents_to_decide(100, 0.0, 0.1) is None
    assert documents_to_decide(100, 0.02, 0.04) == 400
    assert documents_to_decide(100, -0.08, 0.04) == 100


def test_seed_effect_is_the_two_way_analysis_of_variance() -> None:
    import pandas as pd
    from statsmodels.formula.api import ols
    from statsmodels.stats.anova import anova_lm

    rng = np.random.default_rng(4)
    values = rng.normal(size=(40, 1)) + 0.5 * rng.normal(size=(1, 5)) + 0.3 * rng.normal(size=(40, 5))
    effect = seed_effect(values)
    assert effect is not None
    table = pd.DataFrame([{"y": values[d, s], "d": d, "s": s} for d in range(40) for s in range(5)])
    squares = anova_lm(ols("y ~ C(d) + C(s)", table).fit())["mean_sq"]
    assert effect.rest == pytest.approx(squares["Residual"])
    assert effect.between_seeds == pytest.approx((squares["C(s)"] - squares["Residual"]) / 40)
    assert effect.between_documents == pytest.approx((squares["C(d)"] - squares["Residual"]) / 5)
    total = (squares["C(d)"] + squares["C(s)"] - squares["Residual"]) / 200
    assert effect.standard_error == pytest.approx(sqrt(total))


def test_seed_effect_without_seeds_is_the_ordinary_standard_error() -> None:
    rng = np.random.default_rng(5)
    values = np.repeat(rng.normal(size=(30, 1)), 3, axis=1)
    effect = seed_effect(values)
    assert effect.between_seeds == pytest.approx(0, abs=1e-12)
    assert effect.standard_error == pytest.approx(values[:, 0].std(ddof=1) / sqrt(30))
    assert effect.degrees == pytest.approx(29)
    assert seed_effect(values[:, :1]) is None
    assert seed_effect(values[:1]) is None


def test_seed_interval_covers_the_truth_though_few_seeds_were_drawn() -> None:
    rng = np.random.default_rng(6)
    hits = 0
    for _ in range(1500):
        values = (
            0.5 * rng.normal(size=(200, 1)) + 0.1 * rng.normal(size=(1, 3)) + 0.3 * rng.normal(size=(200, 3))
        )
        interval = seed_effect(values).interval()
        hits += interval.low <= 0 <= interval.high
    assert 0.92 <= hits / 1500 <= 0.99


def test_log_perplexity_change_of_equal_losses_is_zero() -> None:
    from evalsuite.reports.analysis.recovery import log_perplexity

    rng = np.random.default_rng(7)
    losses = rng.gamma(20, 5, (200, 1)) @ np.array([[1.0, 1.1]])
    units = rng.integers(10, 50, (200, 1)) @ np.ones((1, 2))
    change = log_perplexity(losses, units, [-1.0, 1.0], "documents").interval()
    assert change.point == pytest.approx(0.1 * losses[:, 0].sum() / units[:, 0].sum())
    assert change.low < change.point < change.high
    same = log_perplexity(losses[:, [0, 0]], units, [-1.0, 1.0], "documents").interval()
    assert (same.low, same.point, same.high) == (0, 0, 0)
    assert log_perplexity(losses[:1], units[:1], [-1.0, 1.0], "documents") is None


def test_an_end_of_a_ratio_without_a_bound_is_infinite() -> None:
    rng = np.random.default_rng(5)
    draws = 1.0 + 0.6 * rng.standard_normal(4000)
    found = ratio_interval(Contrast(0.9, draws - 0.1, 1e9, 0.36), Contrast(1.0, draws, 1e9, 0.36))
    assert (found.low, found.high) == (-np.inf, np.inf)
    above = ratio_interval(
        Contrast(0.9, np.full(4000, 0.9), 1e9, 0.0), Contrast(1.0, np.abs(draws) * (draws > 0), 1e9, 0.36)
    )
    assert above.low == pytest.approx(0.9 / np.quantile(draws, 0.975), rel=0.05)
    assert above.high == np.inf
    assert formatting.span(above) == f"at least {100 * above.low:.1f}, no upper bound"
    assert formatting.interval_cells("recovery", above)["recovery_high"] is None
    assert to_json(above)["high"] is None
