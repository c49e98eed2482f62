"""Writes reports/accelerate_names.md from a table of names."""
import names

PATH = "reports/accelerate_names.md"
INTRODUCTION = """# The names of Accelerate

This page says for every public name of Accelerate 1.15 whether it is here, differs, or is refused: functions, classes with their members, parameters and fields, and
the flags of commands. `properties/names` writes it: the names are recorded from Accelerate itself, ours are read from the public headers and the programs' help, and
[classes.toml](../properties/names/classes.toml) decides the rest. A test fails if a name has no class. How to translate a program is on the page [Moving from
Python's Accelerate](../reference/guide/from_accelerate.md); differences in behaviour are in [differences.md](differences.md).

| class | names |
|---|---|
"""
HEADINGS = {
    "here": "Names with the same meaning. Parameters are those of a function, or fields of its struct of options. The second column is filled if the name or a parameter is another one.",
    "differs": "Names whose purpose is served in another way.",
    "refused": "Names without a counterpart, what they would need, and what happens to a program that uses them.",
}


def text_of(table):
    counts = table.counts()
    lines = [f"| {kind} | {counts[kind]} |" for kind in HEADINGS if counts[kind]] + [f"| all | {sum(counts.values())} |"]
    parts = [INTRODUCTION + "\n".join(lines)]
    for kind, purpose in HEADINGS.items():
        if counts[kind]:
            rows = rows_of_found(table) if kind == "here" else rows_of_entries(table, kind)
            parts.append(f"## {kind.capitalize()}\n\n{purpose}\n\n" + "\n".join(rows))
    return "\n\n".join(parts) + "\n"


def rows_of_found(table):
    """One row for each function, class, member or command, with those of its parameters that are here too."""
    ours = {name: classified.ours for name, classified in table.classified.items() if classified.kind == "here"}
    owners = {name: names.owner_of(name) for name in ours if is_parameter(name)}
    owners = {name: owner for name, owner in owners.items() if ours[name].startswith(ours.get(owner, owner))}
    lines = ["| Accelerate | accel |", "|---|---|"]
    for name in sorted({owners.get(name, name) for name in ours}):
        its = [parameter for parameter, owner in owners.items() if owner == name]
        both = signature(name, its), signature(ours.get(name, name), [ours[parameter] for parameter in its])
        lines.append(f"| `{both[0]}` | {f'`{both[1]}`' if both[0] != both[1] else ''} |")
    return lines


def is_parameter(name):
    return name.endswith(")") or " --" in name


def signature(name, parameters):
    """`function(a, b)`, or `accelerate command --a --b`."""
    own = [parameter.removeprefix(name).strip("() ") for parameter in parameters]
    return " ".join([name, *own]) if name.startswith("accelerate") else f"{name}({', '.join(own)})" if own else name


def rows_of_entries(table, kind):
    """One row for each entry. What belongs to a name of the same entry is left out."""
    decided = {}
    for name, classified in table.classified.items():
        if classified.kind == kind:
            decided.setdefault(id(classified.entry), []).append(name)
    lines = ["| Accelerate | accel | see |", "|---|---|---|"] if kind == "differs" else ["| Accelerate | reason |", "|---|---|"]
    for entry in table.entries:
        its = decided.get(id(entry), [])
        shown = ", ".join(f"`{name}`" for name in its if names.owner_of(name) not in its)
        link = f" [{entry.link}](../reference/guide/{entry.link}) |" if kind == "differs" else ""
        if its:
            lines.append(f"| {shown} | {entry.text} |{link}")
    return lines
