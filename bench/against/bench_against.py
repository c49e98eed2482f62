"""Compares the benchmarks of two builds. Exits with 1 if a row is slower in the second build."""
# `./dev bench --against COMMIT` builds both and starts this program.
import argparse
import datetime
import json
import math
import os
import pathlib
import re
import signal
import sys
import tempfile

import comparison
import sampling

SUCCESS, FAILURE, USAGE = 0, 1, 2  # as sim/programs/rehearsal/exit_code.hpp


def positive(text):
    if not text.isdecimal() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"'{text}' is not a number of blocks; expected 1 or more")
    return int(text)


def regular_expression(text):
    try:
        return re.compile(text)
    except re.error as error:
        raise argparse.ArgumentTypeError(f"'{text}' is not a regular expression: {error}") from error


# Checked before the measurement: a run of several minutes must not fail at its end for a wrong path.
def file_to_write(text):
    folder = os.path.dirname(text) or "."
    if not os.path.isdir(folder):
        raise argparse.ArgumentTypeError(f"{folder} is not a folder; create it first")
    if not os.access(folder, os.W_OK) or os.path.isdir(text):
        raise argparse.ArgumentTypeError(f"{text} cannot be written; expected a file in a folder that can be written to")
    return pathlib.Path(text)


def parse(words):
    parser = argparse.ArgumentParser(prog="bench_against", description=__doc__, allow_abbrev=False)
    parser.add_argument("--before", default="", help="Folder of the programs of the first build")
    parser.add_argument("--after", default="", help="Folder of the programs of the second build")
    parser.add_argument("--before-commit", default="before", help="The commit of the first build, for the output")
    parser.add_argument("--after-commit", default="after", help="The commit of the second build, for the output")
    parser.add_argument("--rows", type=regular_expression, default=".*",
                        help="Regular expression that selects rows by PROGRAM:ROW")  # fmt: skip
    parser.add_argument("--blocks", type=positive, default=8, help="Number of blocks, each with two samples of either build")
    parser.add_argument("--out", type=file_to_write, help="Write every sample to this file, as JSON")
    return parser.parse_args(words)


def finite(value):
    """JSON has no infinite numbers and no NaN."""
    return value if math.isfinite(value) else None


def row_json(row, samples):
    return {"name": row.name, "unit": row.unit, "before": row.before, "after": row.after, "ratio": finite(row.ratio),
            "p": row.p, "verdict": row.verdict, "blocks": [block._asdict() for block in samples.blocks]}  # fmt: skip


def record_of(origin, options, samples, compared):
    return {"machine": origin["machine"], "commit": options.after_commit, "compiler": origin["compiler"],
            "command": " ".join(sys.argv),
            "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
            "before": options.before_commit,
            "rows": [row_json(row, of_row) for row, of_row in zip(compared, samples, strict=True)]}  # fmt: skip


def write_text(path, text):
    """Writes the file atomically. A pipe or /dev/stdout is written directly, because a rename would replace it."""
    if path.exists() and not path.is_file():
        path.write_text(text, encoding="utf-8")
        return
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=path.name) as folder:
        temporary = pathlib.Path(folder) / path.name
        temporary.write_text(text, encoding="utf-8")
        temporary.replace(path)


def run(options):
    try:
        samples = sampling.take_samples(options.before, options.after, options.rows, options.blocks)
        if not samples:
            print(f"bench_against: no row of both builds matches '{options.rows.pattern}'; "
                  "expected a part of a name such as step_bench:step/mlp/accelerator", file=sys.stderr)  # fmt: skip
            return USAGE
        with sampling.Server(f"{options.after}/{sampling.PROGRAMS[0]}") as server:
            origin = server.origin()
    except sampling.SamplingError as error:
        print(f"bench_against: {error}", file=sys.stderr)
        return FAILURE
    compared = comparison.compare(samples)
    print(comparison.table(compared), end="")
    print(f"before: {options.before_commit}; after: {options.after_commit}; slower or faster: p < {comparison.LEVEL} and a "
          f"ratio beyond {1 + comparison.NOISE}, {options.blocks} blocks", flush=True)  # fmt: skip
    if options.out:
        record = record_of(origin, options, samples, compared)
        try:
            write_text(options.out, json.dumps(record, indent=1, ensure_ascii=False) + "\n")
        except OSError as error:
            print(f"bench_against: {options.out}: {error.strerror}", file=sys.stderr)
            return FAILURE
    return FAILURE if comparison.has_regression(compared) else SUCCESS


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    sys.exit(run(parse(sys.argv[1:])))
