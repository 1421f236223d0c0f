"""McNemar's exact test: are two checkpoints right on different numbers of the same documents?"""

from math import comb


def mcnemar_exact(wins: int, losses: int) -> float:
    """Two-sided exact p-value: the binomial test of `wins` among `wins + losses` at one half.

    Documents on which both agree say nothing about which is better. Without disagreement p is 1.

    Raises:
        ValueError: a negative count.
    """
    if wins < 0 or losses < 0:
        raise ValueError(f"wins {wins} and losses {losses} cannot be negative")
    contested = wins + losses
    if contested > 1000:
        from scipy.special import bdtr  # sums of long binomials: scipy's are stable

        return min(1.0, 2 * float(bdtr(min(wins, losses), contested, 0.5)))
    tail = sum(comb(contested, k) for k in range(min(wins, losses) + 1))
    return min(1.0, 2 * tail / 2**contested)
