"""Records the bits of the real Gloo of the installed torch in recorded_bits.json: `python record_bits.py`. Simulated ranks are
compared with them by test_bits.py, and reports/python_bits.md says where versions of torch differ."""

import json
from pathlib import Path

import torch
from conftest import PROGRAMS, ROOT, launch

RECORD = Path(__file__).parent / "recorded_bits.json"
RANKS = (2, 3, 4, 8)
BASE = "2.11"  # its record is complete, those of other versions have what differs


def bits_of(output):
    """By `RANKS OPERATION REDUCTION DTYPE`."""
    lines = [line[line.index("bits ") :].split() for line in output.splitlines() if "bits " in line]
    return {" ".join(words[1:-1]): words[-1] for words in lines}


def version():
    return ".".join(torch.__version__.split(".")[:2])


def record():
    return json.loads(RECORD.read_text())


def recorded_bits():
    """What simulated ranks of the installed torch compute; None: never recorded. Where the version's Gloo adds whatever the
    reduction, it is what the base computes."""
    versions = record()
    if version() not in versions:
        return None
    adds = version() in ("2.4", "2.6", "2.8")
    own = {case: bits for case, bits in versions[version()].items() if not (adds and "reduce_scatter" in case and bits != "error")}
    return versions[BASE] | own


def page(record):
    """A row for each case in which a version differs from the base, ranks and dtypes joined."""
    versions = sorted(record, key=lambda name: [int(number) for number in name.split(".")])
    rows = {}
    for case, base in record[BASE].items():
        ranks, operation, reduction, dtype = case.split()
        bits = [record[name].get(case, base) for name in versions]
        marks = tuple("error" if one == "error" else "equal" if one == base else "differs" for one in bits)
        if len(set(bits)) > 1:
            rows.setdefault((operation, reduction, marks), []).append((dtype, ranks))
    lines = [
        "# Bits of Gloo by version of torch",
        "",
        "Recorded by `tests/backends/python/record_bits.py` from real Gloo processes: every reduction of float32, float64, float16, bfloat16",
        f"and int64 on {', '.join(map(str, RANKS))} ranks, {len(record[BASE])} cases. Simulated ranks are compared with the record of the installed torch.",
        "A row is a case in which a version does not have the bits of 2.11; all other cases are equal in all versions.",
        "",
        "| operation | reduction | dtypes | ranks | " + " | ".join(versions) + " |",
        "|" + "---|" * (4 + len(versions)),
    ]
    for (operation, reduction, marks), cases in rows.items():
        dtypes = ", ".join(dict.fromkeys(dtype for dtype, _ in cases))
        ranks = ", ".join(sorted({ranks for _, ranks in cases}, key=int))
        lines.append(f"| {operation} | {reduction} | {dtypes} | {ranks} | " + " | ".join(marks) + " |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    versions, bits = record(), {}
    for ranks in RANKS:
        real = launch(ranks, PROGRAMS / "reductions.py")
        assert real.code == 0, real.error
        bits |= bits_of(real.output)
    base = {} if version() == BASE else versions[BASE]
    versions[version()] = {case: one for case, one in bits.items() if base.get(case) != one}
    RECORD.write_text(json.dumps(versions, indent=1, sort_keys=True) + "\n")
    (ROOT / "reports/python_bits.md").write_text(page(versions))
