"""The verdicts and the table: python3 -m unittest comparison_test"""
import random
import unittest

from comparison import EQUAL, FASTER, LEVEL, SLOWER, RowSamples, compare, has_regression, table, with_unit
from significance import Block


def samples_of(name, factor, seed, num_blocks=8):
    """Blocks of two samples per side with a noise of 1 % each, on a machine whose speed changes by up to 30 % between
    them."""
    draw = random.Random(seed)
    samples = RowSamples(name)
    for _ in range(num_blocks):
        level = 0.002 * draw.uniform(1, 1.3)
        samples.blocks.append(Block(*([level * side * draw.gauss(1, 0.01) for _ in range(2)] for side in (1, factor))))
    return samples


def ten_equal_rows(seed):
    return [samples_of("equal", 1, seed + number) for number in range(10)]


class ComparisonTest(unittest.TestCase):
    def test_a_slowdown_of_five_percent_is_a_regression(self):
        for seed in range(50):
            compared = compare([*ten_equal_rows(1000 * seed), samples_of("slow", 1.05, seed)])
            self.assertEqual(compared[-1].verdict, SLOWER, f"seed {seed}\n{table(compared)}")
            self.assertTrue(has_regression(compared))

    def test_equal_rows_are_no_regression(self):
        for seed in range(50):
            compared = compare(ten_equal_rows(1000 * seed))
            self.assertFalse(has_regression(compared), f"seed {seed}\n{table(compared)}")

    def test_a_speedup_is_no_regression(self):
        compared = compare([samples_of("fast", 0.9, 1)])
        self.assertEqual(compared[0].verdict, FASTER)
        self.assertFalse(has_regression(compared))

    def test_a_significant_difference_below_the_noise_threshold_is_no_regression(self):
        # Memory and file sizes have no noise, so that the test rejects equality for a single byte.
        compared = compare([RowSamples("size", "bytes", [Block([1000, 1000], [1010, 1010])] * 8)])
        self.assertLess(compared[0].p, LEVEL)
        self.assertEqual(compared[0].ratio, 1.01)
        self.assertEqual(compared[0].verdict, EQUAL)

    def test_a_large_ratio_without_significance_is_no_regression(self):
        for block in (Block([1, 9], [2, 8]), Block([1, 1.1], [2, 2.1])):
            self.assertEqual(compare([RowSamples("noisy", "s", [block])])[0].verdict, EQUAL)

    def test_p_is_corrected_for_the_number_of_rows(self):
        # Alone, the row has p = 2 / 6^3; among ten rows, ten times as much.
        slow = RowSamples("slow", "s", [Block([1, 1.1], [2, 2.1])] * 3)
        rows = [RowSamples("mixed", "s", [Block([1, 2.1], [2, 1.1])] * 3) for _ in range(10)]
        rows[3] = slow
        self.assertAlmostEqual(compare([slow])[0].p, 2 / 216, delta=1e-12)
        self.assertAlmostEqual(compare(rows)[3].p, 20 / 216, delta=1e-12)

    def test_sizes_of_zero_are_compared(self):
        rows = [RowSamples("size", "bytes", [Block([0, 0], [after, after])] * 8) for after in (0, 9)]
        self.assertEqual([row.verdict for row in compare(rows)], [EQUAL, SLOWER])

    def test_the_table_names_medians_ratio_and_verdict(self):
        text = table(compare([RowSamples("step/mlp", "s", [Block([0.001, 0.001], [0.002, 0.0021])] * 8)]))
        self.assertEqual(text, "row            before        after   ratio         p  verdict\n"
                               "step/mlp         1 ms      2.05 ms   2.050   7.7e-06  slower\n")  # fmt: skip

    def test_values_have_a_fitting_unit(self):
        cases = {(1.5, "s"): "1.5 s", (0.00025, "s"): "250 us", (0, "s"): "0 s", (640_000, "bytes"): "640 kB",
                 (0, "bytes"): "0 bytes"}  # fmt: skip
        for arguments, expected in cases.items():
            self.assertEqual(with_unit(*arguments), expected)


if __name__ == "__main__":
    unittest.main()
