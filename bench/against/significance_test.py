"""The statistics, against SciPy for one block and against counting for several: python3 -m unittest significance_test"""
import itertools
import random
import unittest

from scipy import stats

from significance import Block, holm, mann_whitney, probabilities_of_u


def counted_p(blocks):
    """The two-sided p of U, from all ways to exchange the samples within the blocks."""

    def u_of(before, after):
        return sum(b > a for a in before for b in after)

    sums = {0: 1}
    for before, after in blocks:
        values, next_sums = [*before, *after], {}
        for chosen in itertools.combinations(range(len(values)), len(after)):
            u = u_of([v for i, v in enumerate(values) if i not in chosen], [values[i] for i in chosen])
            for total, count in sums.items():
                next_sums[total + u] = next_sums.get(total + u, 0) + count
        sums = next_sums
    observed, number = sum(u_of(*block) for block in blocks), sum(sums.values())
    below = sum(count for u, count in sums.items() if u <= observed)
    above = sum(count for u, count in sums.items() if u >= observed)
    return min(1, 2 * min(below, above) / number)


class MannWhitneyTest(unittest.TestCase):
    def check_with_scipy(self, before, after, method):
        test = mann_whitney([Block(before, after)])
        expected = stats.mannwhitneyu(after, before, method=method)
        self.assertEqual((test.u, test.exact), (expected.statistic, method == "exact"))
        self.assertAlmostEqual(test.p, expected.pvalue, delta=1e-12)

    def test_small_samples_without_ties_are_exact(self):
        draw = random.Random(1)
        for _ in range(50):
            values = draw.sample(range(1000), draw.randint(2, 40))
            size = draw.randint(1, len(values) - 1)
            self.check_with_scipy(values[:size], values[size:], "exact")

    def test_ties_use_the_normal_approximation(self):
        self.check_with_scipy([1, 2, 2, 3, 4, 4, 4, 5], [2, 3, 4, 5, 5, 6, 6], "asymptotic")

    def test_many_samples_use_the_normal_approximation(self):
        self.check_with_scipy([i * 37 % 211 for i in range(120)], [i * 53 % 223 + 9.5 for i in range(100)], "asymptotic")

    def test_separate_samples_have_the_smallest_p(self):
        # One of the 252 ways to choose 5 of 10 ranks, on both sides.
        low, high = [1, 2, 3, 4, 5], [6, 7, 8, 9, 10]
        for block in (Block(low, high), Block(high, low)):
            self.assertAlmostEqual(mann_whitney([block]).p, 2 / 252, delta=1e-12)

    def test_equal_values_show_no_difference(self):
        self.assertEqual(mann_whitney([Block([2, 2, 2], [2, 2])]).p, 1)
        self.assertEqual(mann_whitney([]).p, 1)

    def test_only_samples_of_the_same_block_are_compared(self):
        blocks = [Block([1, 2.5], [2, 3]), Block([10, 12, 11], [14, 13]), Block([5, 6], [7, 4])]
        test = mann_whitney(blocks)
        self.assertEqual((test.u, test.exact), (11, True))
        self.assertAlmostEqual(test.p, 60 / 360, delta=1e-12)
        draw = random.Random(2)
        for _ in range(20):
            blocks = []
            for _ in range(draw.randint(1, 4)):
                values = draw.sample(range(100), draw.randint(2, 5))
                size = draw.randint(1, len(values) - 1)
                blocks.append(Block(values[:size], values[size:]))
            self.assertAlmostEqual(mann_whitney(blocks).p, counted_p(blocks), delta=1e-12)

    def test_a_difference_is_found_despite_a_drift_between_blocks(self):
        # The drift is ten times the difference. Without blocks the test does not see the difference.
        levels = [100 + 10 * (number % 3) for number in range(6)]
        blocks = [Block([level, level + 0.3], [level + 1, level + 1.2]) for level in levels]
        together = Block([value for block in blocks for value in block.before],
                         [value for block in blocks for value in block.after])  # fmt: skip
        self.assertLess(mann_whitney(blocks).p, 0.001)
        self.assertGreater(mann_whitney([together]).p, 0.1)

    def test_large_samples_keep_the_sum_of_the_probabilities(self):
        self.assertAlmostEqual(sum(probabilities_of_u(100, 100)), 1, delta=1e-12)

    def test_a_block_without_samples_of_one_side_is_an_error(self):
        with self.assertRaisesRegex(ValueError, "a block has 2 and 0 samples; expected at least one on each side"):
            mann_whitney([Block([1, 2], [])])


class HolmTest(unittest.TestCase):
    def test_the_smallest_p_is_multiplied_by_the_number_of_tests(self):
        # 0.01 * 4, 0.02 * 3, 0.03 * 2 and 0.04 * 1, each at least as large as the one before.
        for got, expected in zip(holm([0.03, 0.01, 0.04, 0.02]), [0.06, 0.04, 0.06, 0.06], strict=True):
            self.assertAlmostEqual(got, expected, delta=1e-12)
        self.assertEqual(holm([0.5, 0.9]), [1, 1])
        self.assertEqual(holm([]), [])


if __name__ == "__main__":
    unittest.main()
