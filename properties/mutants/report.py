"""reports/mutants.md from the results of all runs."""
from mutant import ASSERTION, CRASH, RESULTS, SURVIVED, TIMEOUT, UNCOMPILED, score

HEADER = """# Mutants

A mutant is the library with one small fault. A test suite is as good as the share of mutants that its assertions notice. Written by
`./dev mutants` (faults in `properties/mutants/`) and `./dev mutants --generate` (changes of the plan functions, from regular
expressions); `reports/results/mutants.json` holds the same with the message of each failed test.
"""


def table(header, rows):
    lines = ["| " + " | ".join(header) + " |", "|" + "---|" * len(header)]
    lines += ["| " + " | ".join(str(cell).replace("|", "\\|").replace("\n", " ") for cell in row) + " |" for row in rows]
    return "\n".join(lines) + "\n"


def totals(entries, counts_uncompiled):
    results = [entry["result"] for entry in entries if entry["result"]]
    percent = f"{score(results, counts_uncompiled):.1f} %" if results else "not run"
    return [len(entries)] + [results.count(result) for result in RESULTS] + [percent]


def result_of(entry):
    if not entry["result"]:
        return "not run"
    return f"killed by {entry['result']}" if entry["result"] in (ASSERTION, CRASH, TIMEOUT) else entry["result"]


def by_area(entries):
    areas = {}
    for entry in entries:
        areas.setdefault(entry["area"], []).append(entry)
    return areas


def render(patches, generated):
    """`patches` and `generated` are lists of the entries of mutants.json, in the order of the report."""
    header = ["", "mutants", *(f"killed by {r}" if r in (ASSERTION, CRASH, TIMEOUT) else r for r in RESULTS), "score"]
    text = [HEADER, "## Faults\n"]
    areas = by_area(patches)
    text.append(table(header, [[area, *totals(areas[area], True)] for area in areas] + [["**all**", *totals(patches, True)]]))
    text.append("The score is the share of mutants that an assertion killed.\n")
    for area, entries in areas.items():
        text.append(f"### {area}\n")
        rows = [[e["name"], e["what"], result_of(e), f"`{e['test']}`" if e["test"] else "", seconds(e)] for e in entries]
        text.append(table(["patch", "fault", "result", "test", "s"], rows))
    others = [e for e in patches if e["result"] in (SURVIVED, CRASH, TIMEOUT, UNCOMPILED)]
    text.append("### Not killed by an assertion\n")
    text.append(table(["mutant", "result", "reason"], [[f"{e['area']}/{e['name']}", result_of(e), e["survives"]] for e in others])
                if others else "None of those that were run.\n")  # fmt: skip
    if not generated:
        return "\n".join(text)
    text.append("## Generated changes of plans\n")
    areas = by_area(generated)
    text.append(table(header, [[area, *totals(areas[area], False)] for area in areas] + [["**all**", *totals(generated, False)]]))
    text.append("Changes that do not compile do not count. Some of the survivors cannot be noticed, because the changed plan is equal.\n")
    rows = [[f"{e['area']}:{e['name']}", e["what"], result_of(e)] for e in generated if e["result"] not in (ASSERTION, UNCOMPILED)]
    text.append(table(["place", "change", "result"], rows))
    return "\n".join(text)


def seconds(entry):
    return f"{entry['seconds']:.0f}" if entry["result"] else ""
