"""What the outputs of GoogleTest programs say about single tests, about injected faults and about known differences."""
import collections
import dataclasses
import re

FAULTS_OF_SEVERAL_KINDS = "generated or several"


@dataclasses.dataclass(frozen=True)
class GoogleTest:
    """`name` is SUITE.TEST without the names of instantiations; `parameter` is "" if the test has none."""

    entry: str  # of ctest
    name: str
    parameter: str
    has_passed: bool


@dataclasses.dataclass
class FaultRuns:
    """The runs of one test under an injected fault."""

    fault: str
    test: str
    passed: int = 0
    failed: int = 0


@dataclasses.dataclass
class Difference:
    """A known difference from Accelerate. `tests` hold our behaviour; the others count how these ended in this run."""

    area: str
    subject: str
    theirs: str
    ours: str
    threads: str
    tests: int = 0
    passed: int = 0
    failed: int = 0


# Failures are listed again at the end of a program's output, without the time in parentheses.
END_OF_TEST = re.compile(r"^\[ *(OK|FAILED) *\] (\S+?),? .*\(\d+ ms\)$", re.MULTILINE)


def tests_of(case):
    """The GoogleTest tests in the output of one entry of ctest."""
    return [GoogleTest(case.name, *parts_of(name), result == "OK") for result, name in END_OF_TEST.findall(case.output)]


def parts_of(full):
    """"Kinds/FaultFilesTest.Ends/jitter_on_4" is FaultFilesTest.Ends with a parameter, "TypedTest/0.Works" TypedTest.Works."""
    suite, _, test = full.partition(".")
    folders = suite.split("/")
    if len(folders) > 1 and folders[-1].isdigit():
        folders.pop()
    test, _, parameter = test.partition("/")
    return f"{folders[-1]}.{test}", parameter


def kind_of(parameter, kinds):
    """The longest kind that the parameter begins with."""
    return max((kind for kind in kinds if parameter == kind or parameter.startswith(kind + "_")), key=len, default="")


def fault_runs(tests, kinds):
    """Per kind of fault where a test has it as parameter, else per test."""
    runs = {}
    for test in tests:
        kind = kind_of(test.parameter, kinds)
        # Recorded faults are those of Accelerate, not injected ones.
        if kind or ("fault" in test.entry and not test.entry.startswith("recorded")):
            one = runs.setdefault((kind, test.name), FaultRuns(kind or FAULTS_OF_SEVERAL_KINDS, test.name))
            if test.has_passed:
                one.passed += 1
            else:
                one.failed += 1
    return [runs[key] for key in sorted(runs, key=lambda key: (key[0] == "", key))]


def differences(table, guide, tests):
    """The rows of reports/differences.md, with the area of each subject on the guide's page."""
    areas = areas_of(guide)
    outcomes = collections.defaultdict(set)  # a test that several builds or parameters ran passed if none of them failed
    for test in tests:
        outcomes[test.name].add(test.has_passed)
    rows = []
    for line in table.splitlines():
        cells = line[2:-2].split(" | ")
        if not line.startswith("| ") or line.startswith("| Subject ") or len(cells) != 5:
            continue
        subject, theirs, ours, threads, names = cells
        row = Difference(areas.get(subject, "Other"), *(text.replace("`", "") for text in (subject, theirs, ours)),
                         "none known" if threads == "-" else threads)  # fmt: skip
        for name in re.findall("`([^`]+)`", names):
            row.tests += 1
            row.failed += False in outcomes[name]
            row.passed += outcomes[name] == {True}
        rows.append(row)
    return rows


def areas_of(guide):
    """Subject to area, from the lines "## AREA" and "* **SUBJECT.** ...", whose subject may break into two lines."""
    areas, area = {}, ""
    for heading, subject in re.findall(r"\n## ([^\n]+)|\n\* \*\*((?:.|\n)+?)\.\*\*", guide):
        area = heading or area
        if subject:
            areas[re.sub(r"\s+", " ", subject)] = area
    return areas
