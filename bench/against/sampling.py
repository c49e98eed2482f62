"""Takes samples from the benchmark programs of two builds, alternately."""
import contextlib
import json
import subprocess
import sys
import time

from comparison import RowSamples
from significance import Block

# Rows of these programs are compared if both builds have them.
PROGRAMS = ("step_bench", "collectives_bench", "loader_bench", "checkpoint_bench", "launch_bench")


class SamplingError(Exception):
    """A program cannot be run, ended, or answered with an error."""


def why_not(error):
    """Describes why a program cannot be run, and what to do about it."""
    if isinstance(error, PermissionError):
        return error.strerror + "; expected a file that may be executed (chmod +x)"
    if isinstance(error, FileNotFoundError):
        return error.strerror + "; expected the path of a program, or the name of a program in PATH"
    return error.strerror


class Server:
    """A benchmark program that stays alive and takes single samples on request (bench/serving.hpp), so that two of them
    can alternate within a fraction of a second. At the end of its block the program's input is closed, and it ends.

    with Server("build/release/bin/step_bench") as server:
        for name in server.rows():
            print(server.sample(name))
    """

    def __init__(self, program):
        self._program = program
        try:
            self._process = subprocess.Popen([program, "--serve"], text=True,
                                             stdin=subprocess.PIPE, stdout=subprocess.PIPE)  # fmt: skip
        except OSError as error:
            raise SamplingError(f"cannot run '{program}': {why_not(error)}") from error

    def __enter__(self):
        return self

    def __exit__(self, *_):
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        self._process.stdout.close()
        self._process.wait()

    def rows(self):
        """The units of the compared rows, by name."""
        return {row["name"]: row["unit"] for row in self._ask_json("rows")}

    def origin(self):
        """The machine and the compiler of the program, among others."""
        return self._ask_json("origin")

    def sample(self, name):
        return self._parsed(float, name)

    def _ask_json(self, request):
        return self._parsed(json.loads, request)

    def _parsed(self, parse, request):
        answer = self._ask(request)
        try:
            return parse(answer)
        except ValueError as error:
            message = f"{self._program} answered '{request}' with '{answer}'; expected a number or JSON"
            raise SamplingError(message) from error

    def _ask(self, request):
        try:
            self._process.stdin.write(request + "\n")
            self._process.stdin.flush()
        except BrokenPipeError as error:
            raise SamplingError(f"{self._program} has ended; see its message above") from error
        line = self._process.stdout.readline().removesuffix("\n")
        if not line:
            raise SamplingError(f"{self._program} ended without an answer to '{request}'")
        if line.startswith("error: "):
            raise SamplingError(f"{self._program}, row {request}: {line.removeprefix('error: ')}")
        return line


def common_rows(before, after, program, pattern):
    """The rows that both builds have and `pattern` selects. It is matched with "step_bench:step/mlp" for the row
    "step/mlp" of step_bench."""
    with Server(f"{before}/{program}") as server:
        known = server.rows()
    with Server(f"{after}/{program}") as server:
        return [RowSamples(name, unit) for name, unit in server.rows().items()
                if name in known and pattern.search(f"{program}:{name}")]  # fmt: skip


def add_block(before, after, program, number, rows):
    """Adds one block to every row (Note [Blocks] in comparison.py). Each of the four processes gives one sample. For short
    rows that is the mean of two, taken in the order A B B A A B B A. Half of the blocks begin with B."""
    begins_with_after = number % 2 == 1
    is_after = [second != begins_with_after for second in (False, True, True, False)]
    with contextlib.ExitStack() as stack:
        servers = [stack.enter_context(Server(f"{after if second else before}/{program}")) for second in is_after]
        for row in rows:
            start = time.monotonic()
            samples = [server.sample(row.name) for server in servers]
            if time.monotonic() - start < 2:
                again = [server.sample(row.name) for server in reversed(servers)]
                samples = [(one + other) / 2 for one, other in zip(samples, reversed(again), strict=True)]
            of_side = {side: [sample for sample, second in zip(samples, is_after, strict=True) if second == side]
                       for side in (False, True)}  # fmt: skip
            row.blocks.append(Block(before=of_side[False], after=of_side[True]))


def take_samples(before, after, pattern, num_blocks):
    """The samples of all common rows of two folders of programs. Prints the progress on standard error."""
    all_rows = []
    for program in PROGRAMS:
        rows = common_rows(before, after, program, pattern)
        for number in range(num_blocks if rows else 0):
            print(f"{program}: {len(rows)} rows, block {number + 1} of {num_blocks}", file=sys.stderr)
            add_block(before, after, program, number, rows)
        for row in rows:
            row.name = f"{program}:{row.name}"
        all_rows += rows
    return all_rows
