"""Mutants and what a test says about them: pure functions, tested by mutants_test.py."""
import dataclasses
import pathlib
import re

from edit import fields_of, read_edit

ASSERTION, CRASH, TIMEOUT, UNCOMPILED, SURVIVED = "assertion", "crash", "time-out", "does not compile", "survived"
RESULTS = (ASSERTION, CRASH, TIMEOUT, UNCOMPILED, SURVIVED)


@dataclasses.dataclass
class Mutant:
    area: str
    name: str
    what: str
    tests: list  # ctest entries, or commands of the build's programs; empty: those of the area
    edits: list = dataclasses.field(default_factory=list)  # of a written mutant
    survives: str = ""  # why no test can kill it
    contents: dict = dataclasses.field(default_factory=dict)  # the changed texts of files, by their paths relative to the root
    lines: tuple = ()  # that a generated mutant changes, before and after

    @property
    def title(self):
        return f"{self.area}/{self.name}"

    @property
    def files(self):
        return list(self.contents)


def read_mutant(path):
    """Reads a written mutant: a paragraph of "what: ...", "tests: ..." (any number) and "survives: ...", and one per edit."""
    path = pathlib.Path(path)
    header, *edits = re.split(r"\n(?:[ \t]*\n)+", path.read_text().strip("\n"))
    fields = {"what": [], "tests": [], "survives": []}
    try:
        for key, value in fields_of(header):
            if key not in fields or not value:
                raise ValueError(f"'{key}: {value}'; expected 'what: SENTENCE', 'tests: TEST' or 'survives: REASON'")
            fields[key].append(value)
        if len(fields["what"]) != 1 or not edits:
            raise ValueError("expected one line 'what: SENTENCE', and after an empty line 'in: FUNCTION', 'find: ...' and 'replace: ...'")
        return Mutant(
            area=path.parent.name,
            name=path.stem,
            what=fields["what"][0],
            tests=fields["tests"],
            edits=[read_edit(edit) for edit in edits],
            survives=" ".join(fields["survives"]),
        )
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


@dataclasses.dataclass
class Verdict:
    result: str
    test: str = ""  # that killed the mutant
    message: str = ""


def classify(entry, exit_code, output, timed_out=False):
    """What one run of a test says about a mutant. A negative exit code is a signal, as in subprocess."""
    failed = re.search(r"^\[  FAILED  \] ([^\s,(]+)", output, re.MULTILINE)
    started = re.findall(r"^\[ RUN      \] (\S+)", output, re.MULTILINE)
    last = started[-1] if started else entry
    # The equivalence suite prints the law and the first difference, and then reduces the case, which takes long.
    differs = re.search(r"^(\w+): case \d+ of \d+ differs$", output, re.MULTILINE)
    if differs:
        observed = re.search(r"^rank \d+, observation \d+:\n.*\n.*$", output, re.MULTILINE)
        return Verdict(ASSERTION, f"equivalence: {differs[1]}", shortened(observed[0] if observed else differs[0]))
    if timed_out:
        return Verdict(TIMEOUT, last)
    if exit_code == 0:
        if ran_nothing(output):
            raise ValueError(f"{entry} matches no test; correct its name in areas.py or in the mutant")
        return Verdict(SURVIVED)
    if exit_code < 0 or exit_code > 128:
        return Verdict(CRASH, last, f"signal {-exit_code if exit_code < 0 else exit_code - 128}")
    if failed:
        return Verdict(ASSERTION, failed[1], first_failure(output))
    return Verdict(CRASH, last, f"exit code {exit_code}: " + shortened(output.strip().rpartition("\n")[2]))


def ran_nothing(output):
    return re.search(r"^\[==========\] Running 0 tests", output, re.MULTILINE) is not None


def without_test(command, test):
    """The command line of a GoogleTest program, which then leaves out one more test."""
    options = [one for one in command if one.startswith("--gtest_filter=")]
    chosen = options[-1].removeprefix("--gtest_filter=") if options else "*"
    positive, dash, negative = chosen.partition("-")
    filtered = f"--gtest_filter={positive or '*'}-{negative + ':' if dash else ''}{test}"
    return [*(one for one in command if one not in options), filtered]


def first_failure(output):
    failure = re.search(r"^.*: Failure\n((?:.+\n?){1,3})", output, re.MULTILINE)
    return shortened(failure[1]) if failure else ""


def shortened(text, length=240):
    text = " ".join(text.split())
    return text if len(text) <= length else text[: length - 3] + "..."


def score(results, counts_uncompiled=True):
    """The percentage of mutants that an assertion killed."""
    counted = [result for result in results if counts_uncompiled or result != UNCOMPILED]
    return 100 * counted.count(ASSERTION) / len(counted) if counted else 100.0


def tests_in(text):
    """The ctest entries of a CTestTestfile.cmake: name to command, environment and time limit in seconds."""
    tests = {}
    for name, arguments in re.findall(r"^add_test\(\[=\[(.+?)\]=\] (.*)\)$", text, re.MULTILINE):
        tests[name] = {"command": re.findall(r'"([^"]*)"', arguments), "environment": {}, "timeout": 1200.0}
    for name, properties in re.findall(r"^set_tests_properties\(\[=\[(.+?)\]=\] PROPERTIES (.*)\)$", text, re.MULTILINE):
        environment = re.search(r'ENVIRONMENT "([^"]*)"', properties)
        timeout = re.search(r'TIMEOUT "([\d.]+)"', properties)
        if name in tests and environment:
            tests[name]["environment"] = dict(variable.split("=", 1) for variable in environment[1].split(";"))
        if name in tests and timeout:
            tests[name]["timeout"] = float(timeout[1])
    return tests
