"""Reads what the tests, the mutants and the benchmarks left, for the page of `./dev report`."""
import dataclasses
import json
import re

import googletest
import junit
from formats import listed

LARGEST = 1e300  # excludes infinity, and what would overflow in a sum


@dataclasses.dataclass
class Origin:
    """What repeats a result. Empty texts: unknown."""

    command: str = ""
    commit: str = ""
    date: str = ""


@dataclasses.dataclass
class Cell:
    """The compared cases on a number of ranks that have a value in one dimension, such as num_workers = 2."""

    ranks: int
    dimension: str
    value: str
    cases: int


@dataclasses.dataclass
class Comparison:
    """One law on two backends."""

    law: str
    left: str
    right: str
    cases: int
    differences: int = 0
    seed: int = 0
    origin: Origin = dataclasses.field(default_factory=Origin)
    cells: list[Cell] = dataclasses.field(default_factory=list)


@dataclasses.dataclass
class Generator:
    """How often a generator of cases drew each value of each feature."""

    name: str
    cases: int
    features: dict[str, dict[str, int]]


@dataclasses.dataclass
class Mutant:
    """A version of the library with one planted fault. `result` is "" if it was not run."""

    area: str
    name: str
    what: str
    result: str
    test: str
    survives: str
    commit: str
    date: str


@dataclasses.dataclass
class Benchmark:
    """`ratio` is relative to the benchmark `beside`, or None."""

    name: str
    median: float
    unit: str
    ratio: float | None
    beside: str
    machine: str
    origin: Origin


@dataclasses.dataclass
class Results:
    """Contents of the page. What was not run is empty."""

    facts: list[tuple[str, str]] = dataclasses.field(default_factory=list)
    tests: Origin = dataclasses.field(default_factory=Origin)
    failed_tests: list[str] = dataclasses.field(default_factory=list)
    comparisons: list[Comparison] = dataclasses.field(default_factory=list)
    generators: list[Generator] = dataclasses.field(default_factory=list)
    mutants: list[Mutant] = dataclasses.field(default_factory=list)
    benchmarks: list[Benchmark] = dataclasses.field(default_factory=list)  # of one name: measurements of several commits
    unread_benchmark_files: int = 0  # earlier files in a format that the page does not show
    faults: list[googletest.FaultRuns] = dataclasses.field(default_factory=list)
    differences: list[googletest.Difference] = dataclasses.field(default_factory=list)


class ResultsError(Exception):
    """Files that are missing or cannot be read; the message lists all of them."""


def read(source, artifacts, history=None):
    """The results in the repository `source` and in the folder `artifacts` of ./dev test. `history` has earlier files of
    benchmarks, COMMIT-NAME_bench.json."""
    problems = []
    results = Results()
    stored = source / "reports/results"
    cases = read_tests(artifacts, problems)
    tests = [test for case in cases for test in googletest.tests_of(case)]
    results.failed_tests = [case.name for case in cases if case.outcome == junit.FAILED]
    results.generators = read_all(artifacts / "distributions", ".json", "./dev test distribution_laws", generator, problems)
    if tests or results.generators:
        read_run(artifacts / "run.yaml", results, problems)
    for folder in (artifacts / "equivalence", stored / "equivalence"):  # the second has long runs
        results.comparisons += read_all(folder, ".json", "./dev test --label equivalence", comparison, problems)
    if (stored / "mutants.json").exists():
        results.mutants = read_json(stored / "mutants.json", "./dev mutants", mutants, problems) or []
    read_benchmarks(stored, history, results, problems)
    results.faults = googletest.fault_runs(tests, kinds_of_faults(source / "configs/sim/faults", problems))
    table = read_text(source / "reports/differences.md", problems) or ""
    guide = read_text(source / "reference/guide/differences.md", problems) or ""
    results.differences = googletest.differences(table, guide, tests)
    if problems:
        raise ResultsError(listed(problems, "\n"))
    return results


# --- files -----------------------------------------------------------------------------------------------------------


def files_in(folder, ending):
    """Sorted; none if the folder is missing."""
    return sorted(path for path in folder.glob("*") if path.name.endswith(ending))


def read_text(path, problems):
    """The content, or None after adding a problem."""
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        problems.append(f"{path}: {error.strerror}")
    except UnicodeDecodeError as error:
        problems.append(f"{path}: {error}; expected UTF-8")
    return None


def read_json(path, writer, parse, problems):
    """What `parse` returns for the content, or None after adding a problem that says how to write the file again."""
    try:
        return parse(Fields(json.loads(path.read_bytes(), parse_constant=refuse_constant)))
    except OSError as error:
        problems.append(f"{path}: {error.strerror}")
    except (ValueError, RecursionError) as error:  # JSONDecodeError and UnicodeDecodeError are ValueErrors
        problems.append(f"{path}: {error}; expected a file that {writer} wrote, run it again or remove the file")
    return None


def read_all(folder, ending, writer, parse, problems):
    parsed = [read_json(path, writer, parse, problems) for path in files_in(folder, ending)]
    return [one for one in parsed if one is not None]


def refuse_constant(name):
    raise ValueError(f"the number {name} is not finite")


class Fields:
    """A JSON value whose members are read with a check of their type. The place is part of every error."""

    def __init__(self, value, place="the file"):
        self.value = value
        self.place = place

    def __contains__(self, key):
        return key in self.members()

    def members(self):
        return self.checked(isinstance(self.value, dict), "an object")

    def checked(self, is_right, expected):
        if not is_right:
            shown = json.dumps(self.value)
            raise ValueError(f"{self.place} is {shown if len(shown) <= 80 else shown[:80] + '...'}, expected {expected}")
        return self.value

    def __getitem__(self, key):
        if key not in self.members():
            raise ValueError(f"{self.place} lacks {key}")
        return Fields(self.value[key], key if self.place == "the file" else f"{self.place}.{key}")

    def items(self):
        return [(key, self[key]) for key in self.members()]

    def entries(self):
        values = self.checked(isinstance(self.value, list), "a list")
        return [Fields(value, f"{self.place}[{index}]") for index, value in enumerate(values)]

    def text(self):
        return self.checked(isinstance(self.value, str), "a text")

    def count(self, least=0):
        is_integer = isinstance(self.value, int) and not isinstance(self.value, bool)
        return self.checked(is_integer and least <= self.value < LARGEST, f"an integer of {least} or more")

    def amount(self):
        is_number = isinstance(self.value, (int, float)) and not isinstance(self.value, bool)
        return self.checked(is_number and 0 <= self.value < LARGEST, "a finite number of 0 or more")


# --- formats ---------------------------------------------------------------------------------------------------------


def comparison(json_file):
    sides = json_file["sides"].entries()
    if len(sides) != 2:
        raise ValueError(f"sides has {len(sides)} entries, expected 2")
    cells = [Cell(cell["ranks"].count(least=1), cell["dimension"].text(), cell["value"].text(), cell["cases"].count())
             for cell in json_file["cells"].entries()]  # fmt: skip
    return Comparison(json_file["law"].text(), sides[0].text(), sides[1].text(), json_file["cases"].count(),
                      json_file["differences"].count(), json_file["seed"].count(), origin(json_file), cells)  # fmt: skip


def origin(json_file):
    return Origin(*(json_file[key].text() for key in ("command", "commit", "date")))


def generator(json_file):
    counts = {feature: {value: cases.count() for value, cases in values.items()}
              for feature, values in json_file["counts"].items()}  # fmt: skip
    return Generator(json_file["generator"].text(), json_file["cases"].count(), counts)


def mutants(json_file):
    keys = [field.name for field in dataclasses.fields(Mutant)]
    return [Mutant(**{key: entry[key].text() for key in keys})
            for part in ("patches", "generated") for entry in json_file[part].entries()]  # fmt: skip


def benchmarks(json_file):
    """The rows of one file; None if it has another format, as the first versions of the benchmarks wrote."""
    machine = json_file["machine"]
    name = f"{machine['cpu'].text()}, {machine['cores'].count()} cores"
    return [Benchmark(row["name"].text(), row["median"].amount(), row["unit"].text(),
                      row["ratio"].amount() if "ratio" in row else None,
                      row["beside"].text() if "ratio" in row else "", name, origin(json_file))
            for row in json_file["rows"].entries()]  # fmt: skip


def earlier_benchmarks(json_file):
    """[] for files of the first versions of the benchmarks, which have no rows and no origin."""
    return benchmarks(json_file) if "rows" in json_file else []


def read_benchmarks(current, history, results, problems):
    files = read_all(current, "_bench.json", "./dev bench", benchmarks, problems)
    if history is not None:
        earlier = read_all(history, "_bench.json", "git", earlier_benchmarks, problems)
        results.unread_benchmark_files = earlier.count([])
        files += earlier
    # The newest earlier file is the current one if that was committed.
    known = set()
    for row in (row for rows in files for row in rows):
        if (row.name, row.origin.date) not in known:
            known.add((row.name, row.origin.date))
            results.benchmarks.append(row)


def read_tests(artifacts, problems):
    cases = []
    for path in files_in(artifacts, ".xml"):
        if path.name.startswith("junit-"):
            try:
                cases += junit.read(path)
            except junit.JUnitError as error:
                problems.append(f"{error}; expected a file that ./dev test wrote, run it again or remove the file")
    return cases


def read_run(path, results, problems):
    """What ./dev test wrote about itself: lines KEY: VALUE, where the value may be in single quotes."""
    text = read_text(path, problems)
    if text is None:
        return
    values = {}
    for key, value in re.findall(r"^(\w+): (.+)$", text, re.MULTILINE):
        values[key] = value[1:-1].replace("''", "'") if re.fullmatch("'.*'", value) else value
    needed = ("command", "commit", "date", "budget", "property_seed", "processors")
    missing = [key for key in needed if key not in values]
    if missing:
        problems.append(f"{path}: lacks {', '.join(missing)}; "
                        "expected the file that ./dev test writes beside its results, run it again")  # fmt: skip
        return
    results.tests = Origin(values["command"], values["commit"], values["date"])
    results.facts += [(key, values[key]) for key in ("budget", "property_seed", "processors")]


def kinds_of_faults(folder, problems):
    kinds = [path.stem for path in files_in(folder, ".yaml")]
    if not kinds:
        problems.append(f"{folder}: contains no .yaml; expected one file per kind of fault")
    return kinds
