"""Quantiles of draws that are sorted once equal NumPy's, bit by bit."""

import numpy as np
import pytest

from evalsuite.reports.statistics.contrasts import ONE_DEVIATION, Contrast


@pytest.mark.parametrize("draws", [2, 7, 1000, 4000, 4001])
@pytest.mark.parametrize("digits", [1, 17], ids=["tied", "distinct"])
def test_quantiles_and_shares_equal_numpy(draws: int, digits: int) -> None:
    rng = np.random.default_rng(draws)
    for _ in range(20):
        values = np.round(rng.standard_normal(draws), digits)
        contrast = Contrast(0.1, values, 5.0, 1.0)
        for probability in (0.01, 0.025, 0.5, 0.975, 0.99, *ONE_DEVIATION, *rng.uniform(0.01, 0.99, 10)):
            assert contrast.quantile(probability) == np.quantile(values, probability)
        low, high = np.quantile(values, ONE_DEVIATION)
        assert contrast.deviation == (high - low) / 2
        for value in (0.0, *values[:3]):
            share = (values <= value).mean()
            if 0.01 <= share <= 0.99:
                assert contrast.below(value) == share
