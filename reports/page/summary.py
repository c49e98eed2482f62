"""Prints the last lines of `./dev test` from the JUnit XML of its programs: "N passed, M failed".

The exit code is 1 if a test failed, no test passed, or a file cannot be read, which counts as a failed test.
"""
import argparse
import collections
import sys

import junit


def main():
    parser = argparse.ArgumentParser(prog="summary.py", description=__doc__)
    parser.add_argument("file", nargs="*", help="JUnit XML")
    counts = collections.Counter()
    for path in parser.parse_args().file:
        try:
            cases = junit.read(path)
        except junit.JUnitError as error:
            print(f"[dev] error: {error}; expected JUnit XML, see the output above for why it is missing or incomplete",
                  file=sys.stderr)  # fmt: skip
            counts[junit.FAILED] += 1
            continue
        counts.update(case.outcome for case in cases)
        for case in cases:
            if case.outcome == junit.SKIPPED:
                print(f"[dev] skipped on this machine: {case.name}", file=sys.stderr)
    print(f"{counts[junit.PASSED]} passed, {counts[junit.FAILED]} failed")
    return 0 if counts[junit.PASSED] > 0 and counts[junit.FAILED] == 0 else 1


if __name__ == "__main__":
    sys.exit(main())
