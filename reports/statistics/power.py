"""How small a loss could have been seen, and how many documents it would take to see another."""

from math import ceil, sqrt

from evalsuite.reports.statistics.wilson import normal_quantile


def minimum_detectable_effect(standard_error: float, *, level: float = 0.95, power: float = 0.8) -> float:
    """Smallest true effect that a two-sided test at `level` finds with probability `power`.

    (z₁₋α⁄₂ + z_power) · standard error, in the unit of the standard error; the far side's rejections are
    left out, as they say the opposite.
    """
    return (normal_quantile(0.5 + level / 2) + normal_quantile(power)) * standard_error


def paired_detectable_effect(
    contested: float, documents: int, *, level: float = 0.95, power: float = 0.8
) -> float | None:
    """Minimum detectable difference of two paired proportions (Connor, Biometrics 43, 1987).

    Under no difference the variance per document is ψ, the share of documents that disagree; under δ it is
    ψ − δ². Solves δ√n = z₁₋α⁄₂·√ψ + z_power·√(ψ − δ²).

    Args:
        contested: number of documents that disagree; may be a planned one.
        documents: number of documents.

    Returns:
        A fraction; None if even all disagreements on one side would not be enough.
    """
    if documents == 0 or contested == 0:
        return None
    psi = contested / documents
    z, w, n = normal_quantile(0.5 + level / 2), normal_quantile(power), documents
    # A quadratic in δ: (n + w²)·δ² − 2·z·√(ψn)·δ + (z² − w²)·ψ = 0, the larger root.
    half = z * sqrt(psi * n)
    under = half * half - (n + w * w) * (z * z - w * w) * psi
    delta = (half + sqrt(max(0.0, under))) / (n + w * w)
    return delta if delta <= psi else None


def documents_to_decide(documents: int, distance: float, half_width: float) -> int | None:
    """Documents at which an interval of `half_width` would shrink to `distance` from the threshold.

    Widths fall with √n, and the point is taken to stay where it is.

    Args:
        documents: number of them now.
        distance: from the point to the threshold.
        half_width: from the point to the end of the interval that faces the threshold.

    Returns:
        At least `documents`; None where the point is on the threshold: no number would decide it.
    """
    if distance == 0:
        return None
    return max(documents, ceil(documents * (half_width / abs(distance)) ** 2))
