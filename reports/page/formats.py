"""Formats numbers and lists for reading: three significant digits and a unit."""
import math

MOST_LISTED = 20
SECONDS = ((1e-9, "ns"), (1e-6, "µs"), (1e-3, "ms"), (1, "s"))
BYTES = ((1, "B"), (1e3, "kB"), (1e6, "MB"), (1e9, "GB"), (1e12, "TB"), (1e15, "PB"))


def number_text(value):
    """0.0123, 1,234, 1.2e+09"""
    # Three significant digits would print 1234 as 1.23e+03.
    return f"{math.floor(value + 0.5):,}" if 999.5 <= value < 1e7 else f"{value:.3g}"


def count_text(count):
    return f"{count:,}"


def seconds_text(seconds):
    return "0 s" if seconds == 0 else in_units(seconds, SECONDS)


def bytes_text(count):
    return in_units(count, BYTES)


def in_units(value, units):
    """Uses the largest unit that gives at least 1 after rounding, so that 999.6 MB becomes 1 GB and not 1e+03 MB."""
    size, name = max((unit for unit in units if value >= 0.9995 * unit[0]), default=units[0])
    return f"{number_text(value / size)} {name}"


def percent_text(share):
    """One decimal below 10 %, where differences of a few tenths matter."""
    percent = 100 * share
    return f"{percent:.{1 if 0 < percent < 9.95 else 0}f} %"


def plural(count, noun):
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def listed(items, separator):
    """The first items and the number of the others: there may be any number of problems or names."""
    more = [f"and {len(items) - MOST_LISTED:,} more"] if len(items) > MOST_LISTED else []
    return separator.join(items[:MOST_LISTED] + more)
