"""The page as text; browser_test checks how it looks: python3 -m unittest page_test"""
import re
import unittest

import formats
import results
import sections
import write_page
from sample_results import full_results


def comparison(right="b", cells=(), **changes):
    values = {"law": "sharding", "left": "a", "right": right, "cases": 0} | changes
    return results.Comparison(**values, cells=[results.Cell(*cell) for cell in cells])


class FormatsTest(unittest.TestCase):
    def test_numbers_have_three_digits_and_a_unit(self):
        numbers = {0.01234: "0.0123", 999.6: "1,000", 1234: "1,234", 1.2e9: "1.2e+09", 0: "0"}
        self.assertEqual({value: formats.number_text(value) for value in numbers}, numbers)
        seconds = {0: "0 s", 0.0123: "12.3 ms", 4.2e-7: "420 ns", 0.9996: "1 s", 5000: "5,000 s", 1e-12: "0.001 ns"}
        self.assertEqual({value: formats.seconds_text(value) for value in seconds}, seconds)
        sizes = {0: "0 B", 838264: "838 kB", 999.6e6: "1 GB", 1.23e9: "1.23 GB"}
        self.assertEqual({value: formats.bytes_text(value) for value in sizes}, sizes)
        shares = {0: "0 %", 0.0004: "0.0 %", 0.042: "4.2 %", 0.0996: "10 %", 0.93: "93 %", 1: "100 %"}
        self.assertEqual({value: formats.percent_text(value) for value in shares}, shares)
        self.assertEqual([formats.plural(count, "rank") for count in (0, 1, 1234)], ["0 ranks", "1 rank", "1,234 ranks"])

    def test_long_lists_are_cut(self):
        self.assertEqual(formats.listed(["a", "b"], ", "), "a, b")
        self.assertRegex(formats.listed(["a"] * 1022, ", "), "^(a, ){20}and 1,002 more$")


class PageTest(unittest.TestCase):
    def test_every_section_shows_its_numbers_with_their_command(self):
        page = write_page.page_of(full_results())
        for text in ("✓ no difference between backends",
                     "960 cases of 2 laws on 3 pairs of backends, no difference.",
                     "160 cases, ✓ 0 differences, seed 20261121, 2026-11-25",
                     "./dev test equivalence_laws",
                     "Command: ./dev test; commit 0123456789abcdef; 2026-11-25T16:21:06Z.",
                     "pads: true<td>1,100<td>55 %",
                     "Assertions killed 50 % of these. Command: ./dev mutants.",
                     '<th scope="row">scaler<td>1<td>–<td>1',
                     "1 earlier measurement stored. 3 earlier files in a format without rows.",
                     "420 µs<td>1.01 times step/mlp/batch:32/libtorch",
                     "--out reports/results/step_bench.json",
                     "470 µs",
                     "ended as the test requires: 5 of 5",
                     "1 known difference in 1 area. Of the 3 tests that hold them, this run of the tests passed 2, failed 0 "
                     "and left out 1.",
                     "<b>960</b>cases compared between backends",
                     "<b>50 %</b>of the mutants that were run are killed"):  # fmt: skip
            self.assertIn(text, page)

    def test_a_section_without_data_names_the_command_that_produces_it(self):
        page = write_page.page_of(results.Results())
        for command in ("./dev test --label equivalence", "./dev test distribution_laws", "./dev mutants", "./dev bench",
                        "./dev test fault"):  # fmt: skip
            self.assertIn(command, page)
        self.assertEqual(page.count('class="empty"'), 6)
        self.assertIn("! no comparison of backends was run", page)
        for absent in ("✓", "<table", "<dl", "<ul"):
            self.assertNotIn(absent, page)

    def test_a_difference_is_the_verdict(self):
        shown = full_results()
        shown.comparisons[2].differences = 1
        shown.failed_tests = ["equivalence_laws", "fault_files_test"]
        page = write_page.page_of(shown)
        self.assertIn("✕ 1 difference between backends, failed tests: equivalence_laws, fault_files_test", page)
        self.assertIn("160 cases, ✕ 1 difference, seed", page)
        self.assertNotIn("✓ no difference between backends", page)

    def test_many_failed_tests_are_counted(self):
        style, _, text = sections.verdict(results.Results(failed_tests=["test"] * 200))
        self.assertEqual(style, "bad")
        self.assertRegex(text, "test, and 180 more$")

    def test_the_matrix_shows_differences_first_and_else_the_most_cases(self):
        """A newer run with a difference must not be hidden by an older and longer one."""
        few, many = comparison(cases=60), comparison(cases=600)
        shown = results.Results(comparisons=[few, many])
        self.assertIs(sections.comparison_of(shown, "sharding", "a", "b"), many)
        few.differences = 1
        self.assertIs(sections.comparison_of(shown, "sharding", "a", "b"), few)
        self.assertIsNone(sections.comparison_of(shown, "training", "a", "b"))

    def test_cells_that_another_comparison_reached_are_empty(self):
        """One rank never pads, so that cell is not empty but impossible; the cell of two ranks was only missed."""
        shown = results.Results(comparisons=[
            comparison("b", [(1, "padding", "false", 1), (2, "padding", "false", 1)]),
            comparison("c", [(1, "padding", "false", 1), (2, "padding", "false", 1), (2, "padding", "true", 1),
                             (3, "padding", "true", 1)])])  # fmt: skip
        self.assertEqual([sections.num_empty_cells(shown, one) for one in shown.comparisons], [1, 0])
        page = write_page.page_of(shown)
        self.assertIn("1 empty cell", page)
        self.assertIn("padding: true<td>–<td>0", page)

    def test_columns_of_many_ranks_are_ranges(self):
        names = {1: "1", 16: "16", 17: "17-32", 32: "17-32", 33: "33-64", 64: "33-64"}
        self.assertEqual({ranks: sections.column_name(sections.last_of_column(ranks)) for ranks in names}, names)

    def test_bars_are_divided_by_the_shares(self):
        generator = full_results().generators[0]
        wide, narrow = (sections.chart_of(generator, "id", width) for width in (920, 340))
        self.assertEqual([(part["left"], part["width"], part["style"], part["tooltip"]) for part in wide["rows"][0]["parts"]],
                         [("0", "414", "value-even", "pads false: 45 %"), ("414", "506", "value-odd", "pads true: 55 %")])  # fmt: skip
        self.assertEqual((wide["height"], wide["rows"][1]["top"], wide["rows"][1]["numbers"]),
                         (92, 46, "3 values, rarest 6.0 %"))  # fmt: skip
        self.assertEqual(wide["rows"][1]["name"], "source of the samples that the loader reads")
        self.assertEqual(narrow["rows"][1]["name"], "source of the samples t…"[: 45 - 22 - 1] + "…")

    def test_the_page_has_no_external_content_and_escapes_text(self):
        """A page is mailed and archived as one file, and names come from files."""
        shown = full_results()
        text = "<script>&\"'"
        shown.facts[0] = (text, text)
        shown.comparisons[0].right = shown.mutants[0].what = shown.benchmarks[0].name = text
        shown.faults[0].fault = shown.differences[0].subject = shown.tests.command = shown.generators[0].name = text
        shown.generators[0].features[text] = {text: 1}
        page = write_page.page_of(shown, title=text)
        for forbidden in ("http:", "https:", "<script", "<link", "<img", "src=", "href", "url("):
            self.assertNotIn(forbidden, page)
        self.assertGreater(page.count("&lt;script&gt;&amp;&#34;&#39;"), 10)

    def test_ids_are_unique_and_pages_equal(self):
        page = write_page.page_of(full_results())
        ids = re.findall(' id="([^"]+)"', page)
        self.assertEqual(len(ids), len(set(ids)))
        self.assertEqual(page, write_page.page_of(full_results()))

    def test_a_generator_without_features_has_no_chart(self):
        page = write_page.page_of(results.Results(generators=[results.Generator("empty", 3, {}),
                                                              results.Generator("none", 1, {"a": {}, "b": {"c": 0}})]))  # fmt: skip
        self.assertIn("empty: no features were counted.", page)
        self.assertIn("0 values, ", page)
        self.assertIn("b: c<td>0<td>0 %", page)


if __name__ == "__main__":
    unittest.main()
