"""Prints the last lines of `./dev test` from the JUnit XML of its programs: the slowest tests and "N passed, M failed".

The exit code is 1 if a test failed, no test passed, or a file cannot be read, which counts as a failed test.
"""
import argparse
import collections
import sys

import junit

SLOW_SECONDS, SLOWEST_MAX = 30, 20


def print_slowest(cases):
    """In the form of tests/slow_tests.txt."""
    slow = sorted((case for case in cases if case.seconds > SLOW_SECONDS), key=lambda case: -case.seconds)
    if slow:
        print(f"[dev] tests above {SLOW_SECONDS} s, which tests/slow_tests.txt lists:", file=sys.stderr)
    for case in slow[:SLOWEST_MAX]:
        print(f"[dev]   {case.name} {case.seconds:.0f}", file=sys.stderr)


def main():
    parser = argparse.ArgumentParser(prog="summary.py", description=__doc__)
    parser.add_argument("file", nargs="*", help="JUnit XML")
    counts, all_cases = collections.Counter(), []
    for path in parser.parse_args().file:
        try:
            cases = junit.read(path)
        except junit.JUnitError as error:
            print(f"[dev] error: {error}; expected JUnit XML, see the output above for why it is missing or incomplete",
                  file=sys.stderr)  # fmt: skip
            counts[junit.FAILED] += 1
            continue
        counts.update(case.outcome for case in cases)
        all_cases += cases
        for case in cases:
            if case.outcome == junit.SKIPPED:
                print(f"[dev] skipped on this machine: {case.name}", file=sys.stderr)
    print_slowest(all_cases)
    print(f"{counts[junit.PASSED]} passed, {counts[junit.FAILED]} failed")
    return 0 if counts[junit.PASSED] > 0 and counts[junit.FAILED] == 0 else 1


if __name__ == "__main__":
    sys.exit(main())
