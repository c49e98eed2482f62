"""reports/mutants.md from the results of all runs."""
import areas
from mutant import ASSERTION, CRASH, RESULTS, SURVIVED, TIMEOUT, UNCOMPILED, score

HEADER = """# Mutants

A mutant is the library with one small fault. A test suite is as good as the share of mutants that its assertions notice. Written by
`./dev mutants` (faults in `properties/mutants/`) and `./dev mutants --generate` (changes of plan functions and of loaders, from
regular expressions); `reports/results/mutants.json` holds the same with the message of each failed test.
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
    found = {}
    for entry in entries:
        found.setdefault(entry["area"], []).append(entry)
    return found


def scores(entries, counts_uncompiled):
    header = ["", "mutants", *(f"killed by {r}" if r in (ASSERTION, CRASH, TIMEOUT) else r for r in RESULTS), "score"]
    rows = [[area, *totals(of_area, counts_uncompiled)] for area, of_area in by_area(entries).items()]
    return table(header, [*rows, ["**all**", *totals(entries, counts_uncompiled)]])


def generated_changes(group, entries, command):
    """The section of a group of generated mutants."""
    text = [f"## Generated changes of {group}\n", f"Command: `{command}`.\n" if command else "", scores(entries, False)]
    text.append("Changes that do not compile do not count. A survivor with a reason is a change that no test can notice.\n")
    rows = [[f"{e['area']}:{e['name']}", e["what"], result_of(e), e["survives"]] for e in entries if e["result"] not in (ASSERTION, UNCOMPILED)]
    text.append(table(["place", "change", "result", "reason"], rows))
    return text


def render(patches, generated, commands):
    """`patches` and `generated` are lists of the entries of mutants.json, in the order of the report; `commands` repeat the runs
    of the groups of generated mutants."""
    text = [HEADER, "## Faults\n", scores(patches, True)]
    text.append("The score is the share of mutants that an assertion killed.\n")
    for area, entries in by_area(patches).items():
        text.append(f"### {area}\n")
        rows = [[e["name"], e["what"], result_of(e), f"`{e['test']}`" if e["test"] else "", seconds(e)] for e in entries]
        text.append(table(["patch", "fault", "result", "test", "s"], rows))
    others = [e for e in patches if e["result"] in (SURVIVED, CRASH, TIMEOUT, UNCOMPILED)]
    text.append("### Not killed by an assertion\n")
    text.append(table(["mutant", "result", "reason"], [[f"{e['area']}/{e['name']}", result_of(e), e["survives"]] for e in others])
                if others else "None of those that were run.\n")  # fmt: skip
    for group in areas.GROUPS:
        if entries := [entry for entry in generated if areas.group_of(entry["area"]) == group]:
            text += generated_changes(group, entries, commands.get(group, ""))
    return "\n".join(text)


def seconds(entry):
    return f"{entry['seconds']:.0f}" if entry["result"] else ""
