"""Statistics of samples that were taken in blocks: Mann-Whitney U test, Holm's correction. Pure functions."""
import collections
import functools

import numpy
from scipy import stats

Block = collections.namedtuple("Block", "before after")
Block.__doc__ = "Samples of two sides that were taken under equal conditions: two lists of numbers."

MannWhitney = collections.namedtuple("MannWhitney", "u p exact")
MannWhitney.__doc__ = """`u`: pairs in which `after` is larger, summed over the blocks; a tie counts one half. `p` is
two-sided. `exact`: `p` is from the exact distribution of U, otherwise from the normal approximation."""

EXACT_PAIRS = 10_000


@functools.cache
def probabilities_of_u(m, n):
    """At [u] the probability that U is u for m and n samples of one distribution, without ties."""
    # The numbers of orders with each U are the coefficients of the Gaussian binomial, the product over i = 1 ... n of
    # (1 - q^(m + i)) / (1 - q^i). Python's integers are exact; sums of floating-point numbers would cancel.
    counts = [1] + [0] * (m * n)
    for i in range(1, n + 1):
        for u in range(m * n, m + i - 1, -1):
            counts[u] -= counts[u - m - i]
        for u in range(i, m * n + 1):
            counts[u] += counts[u - i]
    total = sum(counts)
    return [count / total for count in counts]


def exact_p(blocks, u):
    distributions = [probabilities_of_u(len(block.before), len(block.after)) for block in blocks]
    probabilities = functools.reduce(numpy.convolve, distributions, [1.0])
    return min(1.0, 2 * min(sum(probabilities[: int(u) + 1]), sum(probabilities[int(u) :])))


def approximate_p(distance, variance):
    if variance <= 0:
        return 1.0  # all values are equal
    return min(1.0, 2 * stats.norm.sf((distance - 0.5) / variance**0.5))


def mann_whitney(blocks):
    """Tests whether `before` and `after` have the same distribution within each block. For one block this is
    scipy.stats.mannwhitneyu. For several blocks, which SciPy does not support, U is summed, which is van Elteren's
    stratified test for blocks of equal sizes: only samples of the same block are compared with each other.

    Exact for at most EXACT_PAIRS pairs without ties; otherwise the normal approximation with the correction for ties
    and for continuity. Raises ValueError if a block lacks samples of one side."""
    all_pairs, variance, total, has_ties = 0, 0.0, 0.0, False
    for before, after in blocks:
        m, n = len(before), len(after)
        if m == 0 or n == 0:
            raise ValueError(f"mann_whitney: a block has {m} and {n} samples; expected at least one on each side")
        ranks = stats.rankdata([*before, *after])
        correction = stats.tiecorrect(ranks)  # 1 without ties, 0 if all values are equal
        all_pairs += m * n
        variance += m * n / 12 * (m + n + 1) * correction
        total += sum(ranks[m:]) - n * (n + 1) / 2
        has_ties |= correction < 1
    if has_ties or all_pairs > EXACT_PAIRS:
        return MannWhitney(float(total), float(approximate_p(abs(total - all_pairs / 2), variance)), False)
    return MannWhitney(float(total), float(exact_p(blocks, total)), True)


def holm(p):
    """Adjusts the p values of several tests, so that the probability of any false rejection is at most the level at
    which they are compared (Holm 1979). Returns them in the order of `p`."""
    p = numpy.asarray(p, dtype=float)
    order = numpy.argsort(p, kind="stable")
    tests_left = numpy.arange(len(p), 0, -1)
    adjusted = numpy.empty_like(p)
    adjusted[order] = numpy.maximum.accumulate(numpy.minimum(1, tests_left * p[order]))
    return adjusted.tolist()
