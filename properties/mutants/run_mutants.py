"""Builds the library with one small fault after the other, and runs the tests that should notice it: ./dev mutants"""
import argparse
import collections
import contextlib
import datetime
import fcntl
import json
import os
import pathlib
import random
import shlex
import shutil
import signal
import subprocess
import sys
import time

import areas
import generator
import mutant
import report
import survivors
from edit import EditError
from source_programs import SourcePrograms, sources_of, users_of
from source_tree import SourceTree

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = ROOT / "build/release"
PASSED = ROOT / "build/passed_tests.json"  # seconds of the tests that pass without a mutant, for one commit
PAGE, RESULTS = ROOT / "reports/mutants.md", ROOT / "reports/results/mutants.json"
LEAST_SCORE = 95.0  # percent of the written mutants, killed by assertions
MOST_CRASHES = 20  # of one program, each without the tests that crashed before
LEAST_TO_SEPARATE = 3  # mutants of a source, so that compiling it apart from others saves time
PROGRAMS = SourcePrograms(ROOT, BUILD)


class Problem(Exception):
    """What the user can correct; ends the run with exit code 2."""


def say(text):
    print(f"[mutants] {text}", file=sys.stderr, flush=True)


def git(*arguments):
    done = subprocess.run(["git", "-C", str(ROOT), *arguments], capture_output=True, text=True)
    if done.returncode != 0:
        raise Problem(f"git {' '.join(arguments)}: {done.stderr.strip()}; mutants need a git checkout")
    return done.stdout


def check_is_clean():
    own = {str(path.relative_to(ROOT)) for path in (PAGE, RESULTS)}
    changed = [line[3:] for line in git("status", "--porcelain", "--untracked-files=no").splitlines() if line[3:] not in own]
    if changed:
        raise Problem(f"the work tree has changes: {', '.join(changed[:5])}; commit or stash them, since mutants change sources")


def written_mutants():
    try:
        return [mutant.read_mutant(path) for path in sorted((ROOT / "properties/mutants").glob("*/*.mutant"))]
    except ValueError as error:
        raise Problem(str(error)) from error


def apply_edits(mutants):
    """Fills in the changed sources of written mutants. Returns what is wrong with those that do not fit the sources."""
    tree, problems = SourceTree(ROOT), {}
    for one in mutants:
        try:
            one.contents = tree.changed(one.edits)
        except EditError as error:
            problems[one.title] = str(error)
    return problems


def choose(mutants, area, names):
    """Those of an area, or of some names in it. A misspelled name is an error, not a run of nothing."""
    if area is None:
        return mutants
    chosen = [one for one in mutants if one.area == area]
    if not chosen:
        raise Problem(f"unknown area '{area}'; expected one of {', '.join(areas.AREAS)}")
    unknown = [name for name in names if name not in {one.name for one in chosen}]
    if unknown:
        raise Problem(f"area {area} has no mutant {', '.join(unknown)}; expected some of {', '.join(one.name for one in chosen)}")
    return [one for one in chosen if not names or one.name in names]


def is_of_header(one):
    """Whether it is a generated mutant of a header, whose tests are sources."""
    return not one.edits and one.files[0].endswith(".hpp")


@contextlib.contextmanager
def changed(one):
    """The sources with the mutant; restores them however the block ends. A generated mutant of a header changes a copy of it."""
    if is_of_header(one):
        header = PROGRAMS.overlay / one.files[0]
        header.parent.mkdir(parents=True, exist_ok=True)
        header.write_text(one.contents[one.files[0]])
        try:
            yield
        finally:
            header.unlink()
        return
    before = {file: (ROOT / file).read_bytes() for file in one.files}
    try:
        for file, content in one.contents.items():
            (ROOT / file).write_text(content)
        yield
    finally:
        for file, content in before.items():
            (ROOT / file).write_bytes(content)


# --- building and running -----------------------------------------------------------------------------------------------


def target_of(program):
    return pathlib.Path(program).name.replace("-", "_")


def num_jobs():
    return int(os.environ.get("ACCEL_BUILD_JOBS", os.cpu_count()))


def build(targets):
    """Returns the compiler's first error, or ""."""
    jobs = str(num_jobs())
    done = subprocess.run(["cmake", "--build", str(BUILD), "-j", jobs, "--target", *sorted(targets)], capture_output=True, text=True)
    if done.returncode == 0:
        return ""
    errors = [line for line in done.stdout.splitlines() if "error" in line]
    return errors[0] if errors else done.stdout[-300:] + done.stderr[-300:]


def separate(sources):
    """Takes sources out of their unity units: a mutant then compiles in seconds, the first build in twice the time."""
    configured = subprocess.run(["cmake", f"-DACCEL_SEPARATE_SOURCES={';'.join(sources)}", str(BUILD)], capture_output=True, text=True)
    if configured.returncode != 0:
        raise Problem(f"cmake fails: {configured.stderr.strip()}")


def to_separate(chosen, tests):
    """The sources that are compiled often, and those that become part of test programs in place of the library's."""
    counts = collections.Counter(file for one in chosen for file in one.files)
    often = {file for file, count in counts.items() if count >= LEAST_TO_SEPARATE and file.endswith(".cpp")}
    of_headers = {source for file in counts if file.endswith(".hpp") for source in users_of(ROOT, file)}
    of_tests = {source for test in tests for source in sources_of(test) if not source.startswith(("tests/", "properties/"))}
    return sorted(often | of_headers | of_tests)


class Tests:
    """How tests are built and run, and how long each takes without a mutant. A test is a ctest entry, the command line of a
    program of the build, or the sources of a program; see SourcePrograms."""

    def __init__(self):
        self.entries = {}
        for file in BUILD.rglob("CTestTestfile.cmake"):
            self.entries.update(mutant.tests_in(file.read_text()))
        self.seconds = {}

    def entry(self, name):
        if name in self.entries:
            found = self.entries[name]
            return found | {"command": [*found["command"], "--gtest_fail_fast"]}
        program, *arguments = shlex.split(name)
        environment = {"OMP_NUM_THREADS": "1", "ACCEL_SOURCE_DIR": str(ROOT), "ACCEL_BIN_DIR": str(BUILD / "bin")}
        if sources_of(name):
            command = [str(PROGRAMS.program(name)), "--gtest_fail_fast"]
        elif arguments:
            command = [str(BUILD / "bin" / program), *arguments]
        else:
            raise Problem(f"unknown test '{name}'; expected an entry of ctest, a command of a program in build/release/bin, or sources")
        return {"command": command, "environment": environment, "timeout": 1200.0}

    def targets(self, names):
        programs = {name for name in names if sources_of(name)}
        return {target_of(self.entry(name)["command"][0]) for name in set(names) - programs} | {PROGRAMS.target(name) for name in programs}

    def build(self, name):
        return PROGRAMS.build_program(name, num_jobs()) if sources_of(name) else build(self.targets([name]))

    def run(self, name):
        """Runs one test. A mutant may make it slower, so the limit is ten times its time without one."""
        entry = self.entry(name)
        limit = min(entry["timeout"], max(60.0, 10 * self.seconds[name])) if name in self.seconds else entry["timeout"]
        command, crash = entry["command"], None
        for _ in range(MOST_CRASHES):
            code, output, timed_out = run_limited(command, entry["environment"], limit)
            if crash and mutant.ran_nothing(output):
                break
            verdict = mutant.classify(name, code, output, timed_out)
            if verdict.result != mutant.CRASH:
                return verdict if verdict.result == mutant.ASSERTION else crash or verdict
            crash = crash or verdict
            if verdict.test == name:  # not in a test of GoogleTest
                break
            command = mutant.without_test(command, verdict.test)
        return crash

    def measure(self, names, commit):
        """Runs tests without a mutant, once per commit. One that fails here would kill every mutant."""
        passed = json.loads(PASSED.read_text()) if PASSED.exists() else {}
        self.seconds = passed["seconds"] if passed.get("commit") == commit else {}
        for name in names:
            if name in self.seconds:
                continue
            if sources_of(name) and (error := self.build(name)):
                raise Problem(f"{name}: the build without a mutant fails: {error}")
            started = time.monotonic()
            verdict = self.run(name)
            if verdict.result != mutant.SURVIVED:
                raise Problem(f"{name} fails without a mutant ({verdict.result} {verdict.test} {verdict.message}); correct it first")
            self.seconds[name] = time.monotonic() - started
            PASSED.write_text(json.dumps({"commit": commit, "seconds": self.seconds}))
            say(f"{name}: {self.seconds[name]:.1f} s without a mutant")


def run_limited(command, environment, limit):
    """Exit code, output, and whether the time limit was reached. Nothing that the test has started outlives it."""
    process = subprocess.Popen(command, env=os.environ | environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                               stderr=subprocess.STDOUT, start_new_session=True, errors="replace", text=True)  # fmt: skip
    try:
        output, _ = process.communicate(timeout=limit)
        return process.returncode, output, False
    except subprocess.TimeoutExpired:
        end_session(process.pid)
        output, _ = process.communicate()
        return process.returncode, output, True
    finally:
        end_session(process.pid)


def end_session(session):
    """Kills the processes of a session: launchers put their ranks into process groups of their own."""
    for stat in pathlib.Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            fields = stat.read_text().rpartition(")")[2].split()
            if int(fields[3]) == session:
                os.kill(int(stat.parent.name), signal.SIGKILL)


def kill(one, tests, names):
    """Builds and runs one mutant; the sources are unchanged afterwards. After a crash, an assertion of another test of the
    same program or of another may still notice it."""
    crash = None
    with changed(one):
        for name in names:
            # One program after the other: mostly the first test kills the mutant, and the others need not be linked.
            if error := tests.build(name):
                return mutant.Verdict(mutant.UNCOMPILED, "", mutant.shortened(error))
            verdict = tests.run(name)
            if verdict.result == mutant.CRASH:
                crash = crash or verdict
            elif verdict.result != mutant.SURVIVED:
                return verdict
    return crash or mutant.Verdict(mutant.SURVIVED)


# --- results ------------------------------------------------------------------------------------------------------------


def stored_results():
    results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {"patches": [], "generated": []}
    return {"commands": {}} | results


def as_entry(one, verdict=None, seconds=0.0, commit=""):
    entry = {"area": one.area, "name": one.name, "what": one.what, "survives": one.survives, "result": "", "test": "", "message": ""}
    entry |= {"seconds": round(seconds, 1), "commit": commit, "date": str(datetime.date.today()) if verdict else ""}
    return entry | ({"result": verdict.result, "test": verdict.test, "message": verdict.message} if verdict else {})


def write_results(all_mutants, new, commands):
    """Keeps the results of earlier runs, except those of written mutants that no longer exist, and those of generated mutants in the
    groups of this run. `commands`: what repeats the run of a group; empty for written ones."""
    results = stored_results()
    kind = "generated" if commands else "patches"
    earlier = [] if commands else results[kind]
    others = [entry for entry in results[kind] if commands and areas.group_of(entry["area"]) not in (None, *commands)]
    known = {(e["area"], e["name"]): e for e in [*earlier, *new]}
    results[kind] = [known.get((one.area, one.name), as_entry(one)) | {"what": one.what, "survives": one.survives} for one in all_mutants]
    results[kind] += others
    results["commands"] |= commands
    RESULTS.parent.mkdir(parents=True, exist_ok=True)
    RESULTS.write_text(json.dumps(results, indent=1) + "\n")
    PAGE.write_text(report.render(results["patches"], results["generated"], results["commands"]))


def run(all_mutants, chosen, commands):
    if stale := apply_edits(one for one in chosen if not one.contents):
        raise Problem("; ".join(f"{title}: {problem}" for title, problem in stale.items()))
    tests = Tests()
    commit = git("rev-parse", "--short", "HEAD").strip()
    names_of = {one.title: one.tests or areas.AREAS[one.area] for one in chosen}
    needed = sorted({name for names in names_of.values() for name in names})
    targets = tests.targets(needed)
    new = []
    shutil.rmtree(PROGRAMS.overlay, ignore_errors=True)  # of a run that was killed
    try:
        separate(to_separate(chosen, needed))
        say(f"building {' '.join(sorted(targets))}")
        if error := build(targets):
            raise Problem(f"the build without a mutant fails: {error}")
        tests.measure(needed, commit)
        for place, one in enumerate(chosen, 1):
            started = time.monotonic()
            names = names_of[one.title]  # of a header: in the order of the table, since they take longer to build than to run
            verdict = kill(one, tests, names if is_of_header(one) else sorted(names, key=tests.seconds.get))
            new.append(as_entry(one, verdict, time.monotonic() - started, commit))
            say(f"{place}/{len(chosen)} {one.title}: {verdict.result} {verdict.test} ({new[-1]['seconds']:.0f} s)")
            write_results(all_mutants, new, commands)
    finally:
        say("rebuilding without a mutant")
        separate([])
        build(targets)
    return new


# --- checking -----------------------------------------------------------------------------------------------------------


def sources_to_compile(one):
    """Sources that show whether a mutant compiles: those that it changes, one that includes a changed header, or the first test."""
    if is_of_header(one):
        return sources_of(one.tests[0])
    return [source for file in one.files for source in (users_of(ROOT, file)[:1] if file.endswith(".hpp") else [file])]


def check(chosen):
    """Whether each mutant applies and its sources compile, or the first test of its header; runs no test."""
    if any(is_of_header(one) for one in chosen):
        build({"accel_test_pch"})
    stale = apply_edits(one for one in chosen if not one.contents)
    num_problems = 0
    for place, one in enumerate(chosen, 1):
        say(f"{place}/{len(chosen)} {one.title}")
        problem = stale.get(one.title, "")
        for edit in one.edits:
            if not problem and edit.file and edit.file not in one.contents:
                say(f"{one.title}: {edit.function} is not in {edit.file} any more, but in {' or '.join(one.files)}; correct 'file:'")
        if not problem:
            with changed(one):
                errors = [(source, PROGRAMS.check(source)) for source in sources_to_compile(one)]
            problem = next((f"{source} does not compile: {mutant.shortened(error, 1000)}" for source, error in errors if error), "")
        if problem:
            num_problems += 1
            print(f"{one.title}: {problem}")
    print(f"{len(chosen) - num_problems} of {len(chosen)} mutants apply and compile")
    return 1 if num_problems else 0


def summarize(entries, counts_uncompiled):
    results = [entry["result"] for entry in entries]
    for entry in entries:
        if entry["result"] != mutant.ASSERTION:
            print(f"{entry['area']}/{entry['name']}: {entry['result']} {entry['test']}: {entry['what']}")
    percent = mutant.score(results, counts_uncompiled)
    counts = ", ".join(f"{results.count(result)} {result}" for result in mutant.RESULTS)
    print(f"{len(results)} mutants: {counts}; score {percent:.1f} %")
    return percent


def show_survivors(chosen, entries):
    """Prints the lines of survivors.py for those that have no reason there."""
    survived = {(entry["area"], entry["name"]) for entry in entries if entry["result"] == mutant.SURVIVED and not entry["survives"]}
    for one in chosen:
        if one.lines and (one.area, one.name) in survived:
            print(f"    {(one.area, *one.lines)!r}: 'REASON',")


def parse(arguments):
    parser = argparse.ArgumentParser(prog="./dev mutants", description=__doc__)
    parser.add_argument("area", nargs="?", help=f"only the mutants of this area: {', '.join(areas.AREAS)}")
    parser.add_argument("names", nargs="*", metavar="name", help="only these mutants of the area")
    parser.add_argument("--check", action="store_true", help="only check that the mutants apply and compile; run no test")
    parser.add_argument("--generate", nargs="?", const="all", choices=["all", *areas.GROUPS], metavar="GROUP",
                        help=f"generated mutants instead of the written ones: {', '.join(areas.GROUPS)}, or all (default)")  # fmt: skip
    parser.add_argument("--limit", type=int, default=140, help="the number of generated mutants (default: 140)")
    parser.add_argument("--seed", type=int, help="the seed of the generated mutants (default: a new one, which is printed)")
    parser.add_argument("--list", action="store_true", help="print the mutants and end")
    options = parser.parse_args(arguments)
    if options.generate and options.area:
        parser.error(f"--generate: expected no area; the generated mutants are those of {' and '.join(areas.GROUPS)}")
    return options


def drawn(options):
    """Generated mutants, and the command that draws them again, per group."""
    seed = random.SystemRandom().randrange(1, 10**6) if options.seed is None else options.seed
    command = f"./dev mutants --generate {options.generate} --limit {options.limit} --seed {seed}"
    say(f"{command}  # draws these mutants of {git('rev-parse', '--short', 'HEAD').strip()} again")
    groups = areas.GROUPS if options.generate == "all" else [options.generate]
    tests_of = {file: tests for group in groups for file, tests in areas.GROUPS[group].items()}
    return generator.generate(ROOT, tests_of, options.limit, seed, survivors.SURVIVORS), dict.fromkeys(groups, command)


def main(arguments):
    options = parse(arguments)
    commands = {}
    if options.generate:
        all_mutants, commands = drawn(options)
        chosen = all_mutants
    else:
        all_mutants = written_mutants()
        chosen = choose(all_mutants, options.area, options.names)
    if options.list:
        for one in chosen:
            print(f"{one.title}: {one.what}")
        return 0
    check_is_clean()
    (ROOT / "build").mkdir(exist_ok=True)
    with (ROOT / "build/release.lock").open("w") as lock:  # of ./dev, which must not build mutated sources
        fcntl.flock(lock, fcntl.LOCK_EX)
        if options.check:
            return check(chosen)
        entries = run(all_mutants, chosen, commands)
    percent = summarize(entries, counts_uncompiled=not options.generate)
    show_survivors(chosen, entries)
    return 0 if options.generate or percent >= LEAST_SCORE else 1


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that `finally` restores the sources
    try:
        sys.exit(main(sys.argv[1:]))
    except Problem as problem:
        print(f"[mutants] error: {problem}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        print("[mutants] interrupted; the sources are unchanged", file=sys.stderr)
        sys.exit(130)
