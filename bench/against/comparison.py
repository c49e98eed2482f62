"""Compares the rows of two builds: verdicts and the table. Pure functions; sampling.py takes the samples.

    rows = compare([RowSamples("step/mlp", "s", blocks)])
    print(table(rows), end="")
    return 1 if has_regression(rows) else 0
"""
import dataclasses

import numpy

from significance import Block, holm, mann_whitney

# Note [Blocks]
# The speed of a cloud machine drifts by 20 to 30 % within an hour, far more than the slowdowns to find. So the samples
# of both commits are taken alternately within a few seconds, in the order A B B A, which cancels a linear drift. These
# four samples are a block, and only samples of the same block are compared: U is computed per block and summed. A
# Mann-Whitney U test over all samples would lose the difference in the drift. One over samples that were divided by
# their block's mean would reject too often, because such samples are not independent: with one pair per block, its
# variance is twice the assumed one.
#
# Each sample comes from a fresh process. The addresses that a process gets by chance change its speed by a percent or
# two for as long as it lives, so further samples of the same process are not independent.
#
# The test finds any stable difference, also one of 0.5 % from another alignment of the code, which no one would call
# a regression. A regression therefore also needs a ratio beyond NOISE.
LEVEL = 0.01  # probability of a false "slower" or "faster" among all rows of a run
NOISE = 0.03  # smaller differences are not reported

EQUAL, SLOWER, FASTER = "no difference", "slower", "faster"

SCALES = {"s": ((1, "s"), (1e-3, "ms"), (1e-6, "us"), (1e-9, "ns")),
          "bytes": ((1e9, "GB"), (1e6, "MB"), (1e3, "kB"), (1, "B"))}  # fmt: skip


@dataclasses.dataclass
class RowSamples:
    """The samples of one measurement under two commits; smaller values are better. `unit`: "s" or "bytes"."""

    name: str
    unit: str = "s"
    blocks: list[Block] = dataclasses.field(default_factory=list)


@dataclasses.dataclass
class RowComparison:
    name: str
    unit: str
    before: float  # medians of all samples
    after: float
    ratio: float  # median over the blocks of after / before
    p: float = 1.0  # Mann-Whitney U per block, corrected by Holm's method for the number of rows
    verdict: str = EQUAL


def verdict_of(ratio, p):
    if p >= LEVEL:
        return EQUAL
    if ratio > 1 + NOISE:
        return SLOWER
    return FASTER if ratio < 1 / (1 + NOISE) else EQUAL


def compare_row(row):
    before = [sample for block in row.blocks for sample in block.before]
    after = [sample for block in row.blocks for sample in block.after]
    with numpy.errstate(divide="ignore", invalid="ignore"):  # a size may be 0; the ratio is then infinite or NaN
        ratios = [numpy.median(block.after) / numpy.median(block.before) for block in row.blocks]
    return RowComparison(row.name, row.unit, *(float(numpy.median(values)) for values in (before, after, ratios)))


def compare(rows):
    compared = [compare_row(row) for row in rows]
    for row, p in zip(compared, holm([mann_whitney(row.blocks).p for row in rows]), strict=True):
        row.p, row.verdict = p, verdict_of(row.ratio, p)
    return compared


def has_regression(compared):
    return any(row.verdict == SLOWER for row in compared)


def with_unit(value, unit):
    """Formats a value with a fitting unit, for example "1.25 ms" or "3.1 MB"."""
    factor, name = next((scale for scale in SCALES[unit] if abs(value) >= scale[0]), (1, unit))
    return f"{value / factor:.4g} {name}"


def table(compared):
    """One line per row: name, medians, ratio, p and verdict."""
    width = max([3, *(len(row.name) for row in compared)])
    lines = [f"{'row':{width}} {'before':>12} {'after':>12} {'ratio':>7} {'p':>9}  verdict"]
    for row in compared:
        before, after = with_unit(row.before, row.unit), with_unit(row.after, row.unit)
        lines.append(f"{row.name:{width}} {before:>12} {after:>12} {row.ratio:>7.3f} {row.p:>9.2g}  {row.verdict}")
    return "".join(line + "\n" for line in lines)
