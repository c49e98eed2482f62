"""What each part of the page shows, as text, tables and charts; page.html.j2 draws them."""
import dataclasses
import math

from formats import bytes_text, count_text, listed, number_text, percent_text, plural, seconds_text

LAST_SINGLE_COLUMN = 16  # further numbers of ranks share columns
KILLED_BY_ASSERTION = "assertion"
WIDTHS = {"wide": 920, "narrow": 340}  # two drawings of each chart: scaling would shrink the letters on a phone
ROW_HEIGHT = 46


@dataclasses.dataclass
class Paragraph:
    text: str
    kind: str = "paragraph"


@dataclasses.dataclass
class Table:
    """`summary`: the table is folded under this line. `wraps`: cells hold sentences, which break into lines."""

    columns: list[str]
    rows: list[list[str]] = dataclasses.field(default_factory=list)
    summary: str | None = None
    wraps: bool = False
    kind: str = "table"


@dataclasses.dataclass
class Distribution:
    """The charts of a generator, with their numbers as a table."""

    summary: str
    charts: dict[str, dict]  # by the class that the style sheet shows on some screens
    table: Table
    kind: str = "distribution"


@dataclasses.dataclass
class Section:
    id: str
    heading: str
    blocks: list
    is_empty: bool = False


def sections_of(results):
    return [part(results) for part in (equivalence, generators, mutants, benchmarks, faults, differences)]


def empty(section_id, heading, why):
    """Kept on the page instead of left out: a reader sees that the data was not recorded."""
    return Section(section_id, heading, [Paragraph(why)], is_empty=True)


def origin_line(origin):
    parts = [f"Command: {origin.command or 'unknown'}", origin.commit and f"commit {origin.commit}", origin.date]
    return Paragraph("; ".join(part for part in parts if part) + ".")


# --- the head of the page --------------------------------------------------------------------------------------------


def verdict(results):
    """Style, symbol and text of the result."""
    differences = sum(one.differences for one in results.comparisons)
    bad = []
    if differences > 0:
        bad.append(f"{plural(differences, 'difference')} between backends")
    # A program that ran out of time leaves comparisons out, so that the others alone prove little.
    if results.failed_tests:
        bad.append(f"failed tests: {listed(results.failed_tests, ', ')}")
    if bad:
        return "bad", "✕", ", ".join(bad)
    if not results.comparisons:
        return "warn", "!", "no comparison of backends was run"
    return "good", "✓", "no difference between backends"


def figures(results):
    """The numbers that a reader looks for first, with their names."""
    cases = sum(one.cases for one in results.comparisons)
    runs = sum(one.passed + one.failed for one in results.faults)
    shown = [
        (cases, count_text(cases), "cases compared between backends"),
        (num_run(results.mutants), percent_text(score(results.mutants)), "of the mutants that were run are killed"),
        (runs, count_text(runs), "test runs under faults"),
        (len(results.differences), count_text(len(results.differences)), "differences from Accelerate"),
    ]
    return [(text, name) for count, text, name in shown if count]


# --- equivalence of the backends -------------------------------------------------------------------------------------


def last_of_column(ranks):
    """The upper end of the column of `ranks`, so that columns sort by number."""
    return ranks if ranks <= LAST_SINGLE_COLUMN else 1 << (ranks - 1).bit_length()


def column_name(last):
    return str(last) if last <= LAST_SINGLE_COLUMN else f"{last // 2 + 1}-{last}"


def cells_of(comparison):
    """(dimension, value) and column to cases."""
    cells = {}
    for cell in comparison.cells:
        key = (cell.dimension, cell.value), last_of_column(cell.ranks)
        cells[key] = cells.get(key, 0) + cell.cases
    return cells


def possible_cells(results, comparison):
    """The cells that any comparison of the law reached, on the numbers of ranks of this one. Others may be impossible: one
    rank never pads."""
    last = max((column for _, column in cells_of(comparison)), default=0)
    return {(row, column) for other in results.comparisons if other.law == comparison.law
            for row, column in cells_of(other) if column <= last}  # fmt: skip


def num_empty_cells(results, comparison):
    return len(possible_cells(results, comparison) - cells_of(comparison).keys())


def comparison_of(results, law, left, right):
    """The comparison that stands for a law and two sides: one with a difference, else the one with the most cases."""
    candidates = [one for one in results.comparisons if (one.law, one.left, one.right) == (law, left, right)]
    return max(candidates, key=lambda one: (one.differences > 0, one.cases), default=None)


def name_of_sides(left, right):
    return f"{left} ↔ {right}"


def text_of_cell(comparison):
    found = comparison.differences
    return (f"{plural(comparison.cases, 'case')}, {'✕' if found else '✓'} {plural(found, 'difference')}, "
            f"seed {comparison.seed}, {comparison.origin.date[:10]}")  # fmt: skip


def cells_table(results, comparison):
    cells, possible = cells_of(comparison), possible_cells(results, comparison)
    columns = sorted({column for _, column in possible})
    rows = [[f"{row[0]}: {row[1]}"] + [count_text(cells[row, column]) if (row, column) in cells
                                       else "0" if (row, column) in possible else "–" for column in columns]
            for row in sorted({row for row, _ in possible})]  # fmt: skip
    num_empty = num_empty_cells(results, comparison)
    num_empty_text = plural(num_empty, "empty cell") if num_empty else "no empty cell"
    return Table(["dimension and ranks", *map(column_name, columns)], rows,
                 summary=f"{comparison.law}: {name_of_sides(comparison.left, comparison.right)} by ranks and dimension, "
                 f"{num_empty_text}")  # fmt: skip


def equivalence(results):
    section_id, heading = "equivalence", "Equivalence of the backends"
    if not results.comparisons:
        return empty(section_id, heading, "No results. ./dev test --label equivalence produces them.")
    laws = sorted({one.law for one in results.comparisons})
    pairs = sorted({(one.left, one.right) for one in results.comparisons})
    matrix = [[comparison_of(results, law, *sides) for law in laws] for sides in pairs]
    shown = [one for row in matrix for one in row if one is not None]
    found = sum(one.differences for one in shown)
    summary = (f"Generated programs ran on both backends, which must observe the same bits on every rank: "
               f"{plural(sum(one.cases for one in shown), 'case')} of {plural(len(laws), 'law')} on "
               f"{plural(len(pairs), 'pair')} of backends, {plural(found, 'difference') if found else 'no difference'}.")  # fmt: skip
    rows = [[name_of_sides(*sides)] + [text_of_cell(one) if one else "not run" for one in row]
            for sides, row in zip(pairs, matrix)]  # fmt: skip
    origins = [[one.law, name_of_sides(one.left, one.right), count_text(one.cases), count_text(one.differences),
                str(one.seed), one.origin.date, one.origin.commit, one.origin.command]
               for one in results.comparisons]  # fmt: skip
    return Section(section_id, heading, [
        Paragraph(summary),
        Table(["backends", *laws], rows, wraps=True),
        Table(["law", "backends", "cases", "differences", "seed", "date", "commit", "command"], origins,
              summary="Commands, commits and seeds"),
        *(cells_table(results, one) for one in shown),
    ])  # fmt: skip


# --- distributions of the generators ---------------------------------------------------------------------------------


def generators(results):
    section_id, heading = "generators", "Distributions of the generators"
    if not results.generators:
        return empty(section_id, heading, "No distributions. ./dev test distribution_laws produces them.")
    return Section(section_id, heading, [
        Paragraph("A property proves little if its cases never reach what it is about. Each bar divides the cases of a "
                  "generator by the values of one feature."),
        origin_line(results.tests),
        *(distribution(one, index) for index, one in enumerate(results.generators)),
    ])  # fmt: skip


def distribution(generator, index):
    if not generator.features:
        return Paragraph(f"{generator.name}: no features were counted.")
    rows = [[f"{feature}: {value}", count_text(cases), percent_text(share)]
            for feature, values in generator.features.items() for value, cases, share in shares_of(values)]  # fmt: skip
    ids = {"wide": f"generator-{index}-chart", "narrow": f"generator-{index}-narrow-chart"}
    charts = {style: chart_of(generator, ids[style], width) for style, width in WIDTHS.items()}
    return Distribution(f"{generator.name}: {plural(generator.cases, 'case')}", charts,
                        Table(["feature and value", "cases", "share"], rows))  # fmt: skip


def shares_of(values):
    """Value, cases and share. A feature may count several values per case, such as the operations of a program."""
    total = sum(values.values())
    return [(value, cases, cases / total if total else 0) for value, cases in values.items()]


def chart_of(generator, chart_id, width):
    """One bar per feature, divided by the shares of its values."""
    rows = []
    for index, (feature, values) in enumerate(generator.features.items()):
        numbers = f"{plural(len(values), 'value')}, {rarest_text(values)}"
        name = shortened(feature, int(width / 7.5) - min(len(numbers), 30))
        row = {"name": name, "numbers": numbers, "top": ROW_HEIGHT * index, "parts": []}
        left = 0
        for value, _, share in shares_of(values):
            row["parts"].append({"left": coordinate(left), "width": coordinate(width * share),
                                 "style": "value-odd" if len(row["parts"]) % 2 else "value-even",
                                 "tooltip": f"{feature} {value}: {percent_text(share)}"})  # fmt: skip
            left += width * share
        rows.append(row)
    return {"id": chart_id, "title": f"Distribution of {generator.name}", "width": width,
            "description": f"Shares of the values of {plural(len(rows), 'feature')}.",
            "height": ROW_HEIGHT * len(rows), "rows": rows}  # fmt: skip


def rarest_text(values):
    """The rarest value shows whether the generator reaches everything."""
    return f"rarest {percent_text(min(share for _, _, share in shares_of(values)))}" if values else ""


def shortened(words, most):
    return words if len(words) <= most else words[: most - 1] + "…"


def coordinate(pixels):
    """To a tenth of a pixel, which is enough and keeps the page small."""
    tenths = math.floor(pixels * 10 + 0.5)
    return f"{tenths / 10:.1f}" if tenths % 10 else str(tenths // 10)


# --- mutants ---------------------------------------------------------------------------------------------------------


def num_run(mutants_of):
    return sum(one.result != "" for one in mutants_of)


def score(mutants_of):
    """The share of the mutants that were run that an assertion killed; 0 if none was run."""
    killed = sum(one.result == KILLED_BY_ASSERTION for one in mutants_of)
    return killed / num_run(mutants_of) if num_run(mutants_of) else 0


def mutants(results):
    section_id, heading = "mutants", "Mutants"
    if num_run(results.mutants) == 0:
        return empty(section_id, heading, "No mutant was run. ./dev mutants builds and tests them.")
    was_run = [[f"{one.area}/{one.name}", one.what, one.result, one.survives or one.test, one.commit, one.date]
               for one in results.mutants if one.result]  # fmt: skip
    return Section(section_id, heading, [
        Paragraph(f"The library with one planted fault each: {plural(len(results.mutants), 'mutant')}, of which "
                  f"{count_text(len(was_run))} were run. Assertions killed {percent_text(score(results.mutants))} of "
                  "these. Command: ./dev mutants."),
        mutants_by_area(results.mutants),
        Table(["mutant", "fault", "result", "test or reason", "commit", "date"], was_run,
              summary="The mutants that were run"),
    ])  # fmt: skip


def mutants_by_area(mutants_of):
    outcomes = sorted({one.result for one in mutants_of if one.result})
    groups = {area: [one for one in mutants_of if one.area == area] for area in sorted({one.area for one in mutants_of})}
    rows = []
    for area, group in [*groups.items(), ("all", mutants_of)]:
        counts = [count_text(sum(one.result == outcome for one in group)) for outcome in ("", *outcomes)]
        rows.append([area, count_text(len(group)), percent_text(score(group)) if num_run(group) else "–", *counts])
    return Table(["area", "mutants", "score", "not run", *outcomes], rows)


# --- benchmarks ------------------------------------------------------------------------------------------------------


def measured(value, unit):
    if unit == "s":
        return seconds_text(value)
    if unit in ("bytes", "B"):
        return bytes_text(value)
    return f"{number_text(value)} {unit}".strip()


def ratio_text(one):
    return "" if one.ratio is None else f"{number_text(one.ratio)} times {one.beside}"


def benchmarks(results):
    section_id, heading = "benchmarks", "Benchmarks"
    by_name = {}
    for one in sorted(results.benchmarks, key=lambda one: one.origin.date, reverse=True):
        by_name.setdefault(one.name, []).append(one)
    if not by_name:
        history = history_text(0, results.unread_benchmark_files)
        return empty(section_id, heading, f"No measurements. ./dev bench writes them to reports/results. {history}")
    newest, earlier = [], []
    for name, (first, *others) in sorted(by_name.items()):
        newest.append([name, measured(first.median, first.unit), ratio_text(first), first.origin.date,
                       first.origin.commit, first.machine, first.origin.command])  # fmt: skip
        earlier += [[name, one.origin.date, one.origin.commit, one.machine, measured(one.median, one.unit), ratio_text(one)]
                    for one in others]  # fmt: skip
    blocks = [
        Paragraph(f"{plural(len(newest), 'benchmark')}. {history_text(len(earlier), results.unread_benchmark_files)}"),
        Table(["benchmark", "median", "ratio", "date", "commit", "machine", "command"], newest),
    ]
    if earlier:
        blocks.append(Table(["benchmark", "date", "commit", "machine", "median", "ratio"], earlier,
                            summary="Earlier measurements"))  # fmt: skip
    return Section(section_id, heading, blocks)


def history_text(num_earlier, num_unread):
    text = f"{plural(num_earlier, 'earlier measurement')} stored." if num_earlier else "No earlier measurements are stored."
    return text + (f" {plural(num_unread, 'earlier file')} in a format without rows." if num_unread else "")


# --- faults and differences ------------------------------------------------------------------------------------------


def faults(results):
    section_id, heading = "faults", "Faults survived"
    if not results.faults:
        return empty(section_id, heading, "No test under faults was run. ./dev test fault runs them.")
    passed, failed = (sum(getattr(one, outcome) for one in results.faults) for outcome in ("passed", "failed"))
    rows = [[one.fault, one.test, count_text(one.passed), count_text(one.failed)] for one in results.faults]
    return Section(section_id, heading, [
        Paragraph(f"Runs under injected faults that ended as the test requires: {count_text(passed)} of "
                  f"{count_text(passed + failed)}."),
        origin_line(results.tests),
        Table(["fault", "test", "passed", "failed"], rows),
    ])  # fmt: skip


def differences(results):
    section_id, heading = "differences", "Differences from Accelerate"
    if not results.differences:
        return empty(section_id, heading, "None are listed in reports/differences.md.")
    areas = {}  # in the order of the list, which is that of the guide
    for one in results.differences:
        areas.setdefault(one.area, []).append(
            [one.subject, one.theirs, one.ours, one.threads,
             f"{one.passed} of {one.tests}" + (f", {one.failed} failed" if one.failed else "")])  # fmt: skip
    tests, passed, failed = (sum(getattr(one, key) for one in results.differences) for key in ("tests", "passed", "failed"))
    columns = ["subject", "Accelerate", "accel", "threads", "tests that passed"]
    return Section(section_id, heading, [
        Paragraph(f"{plural(len(results.differences), 'known difference')} in {plural(len(areas), 'area')}. Of the "
                  f"{plural(tests, 'test')} that hold them, this run of the tests passed {count_text(passed)}, failed "
                  f"{count_text(failed)} and left out {count_text(tests - passed - failed)}. The list is "
                  "reports/differences.md."),
        origin_line(results.tests),
        *(Table(columns, rows, summary=f"{area}: {plural(len(rows), 'difference')}", wraps=True)
          for area, rows in areas.items()),
    ])  # fmt: skip
