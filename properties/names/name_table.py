"""Classifies every name of Accelerate: it is here, it differs, or it is refused.

usage: name_table.py --bin FOLDER [--write]   prints the problems of classes.toml; with --write also writes reports/accelerate_names.md
"""
import argparse
import collections
import dataclasses
import fnmatch
import pathlib
import re
import sys
import tomllib

import names
import page

ROOT = pathlib.Path(__file__).resolve().parents[2]
CLASSES = "properties/names/classes.toml"
GUIDE = "reference/guide"
HERE, DIFFERS, REFUSED = "here", "differs", "refused"
OUR_NAME = re.compile(r"accel::(?:[a-z_]\w*::)*(\w+)|\b([A-Z]\w+)::(\w+)")  # in the texts of entries


@dataclasses.dataclass
class Entry:
    """What classes.toml says of some names."""

    kind: str
    names: list
    text: str
    link: str = ""


@dataclasses.dataclass
class Classified:
    kind: str
    ours: str = ""  # our name, if it is here
    entry: Entry = None


class Table:
    """`classes` is the content of classes.toml; `theirs` and `ours` are names; `literals` are the strings of our sources."""

    def __init__(self, classes, theirs, ours, literals=()):
        self.theirs, self.ours, self.literals = theirs, ours, set(literals)
        self.renamed, self.synonyms, self.values = (classes.get(key, {}) for key in ("here", "parameters", "values"))
        self.entries = [Entry(DIFFERS, entry["names"], entry["accel"], entry["link"]) for entry in classes.get(DIFFERS, [])]
        self.entries += [Entry(REFUSED, entry["names"], entry["reason"]) for entry in classes.get(REFUSED, [])]
        self.entry_of = {name: entry for entry in self.entries for name in entry.names}
        self.patterns = [name for name in self.entry_of if "*" in name]
        self.used = set()
        self.classified = {name: self._classify(name) for name in theirs}

    def _classify(self, name):
        """An entry of exactly this name, else our name, else a pattern, else what decides the name that it belongs to."""
        if name in self.entry_of:
            return self._decided(name)
        if (found := self.found(name)) is not None:
            return Classified(HERE, ours=found)
        for pattern in self.patterns:
            if fnmatch.fnmatchcase(name, pattern):
                return self._decided(pattern)
        owner = names.owner_of(name)
        decided = self._classify(owner) if owner else None
        return decided if decided and decided.entry else None

    def _decided(self, name):
        self.used.add(name)
        return Classified(self.entry_of[name].kind, entry=self.entry_of[name])

    def found(self, name):
        """Our name for one of Accelerate's, if it exists."""
        return next((ours for ours in self._candidates(name) if ours in self.ours or ours in self.accepted_values()), None)

    def _candidates(self, name):
        if name in self.renamed:
            self.used.add(name)
            return [self.renamed[name]]
        if name in self.values:
            return [self.values[name]["option"]]
        owner = names.owner_of(name)
        if owner is None:
            return [name]
        rest = name[len(owner) :]
        if owner in self.values:
            return [value_of(self.values[owner]["option"], value) for value in self.values[owner]["values"] if value.upper() == rest[1:]]
        rests = [rest] + [f"({synonym})" for synonym in self.synonyms.get(rest.strip("()"), []) if rest.startswith("(")]
        return [candidate + suffix for candidate in self._candidates(owner) for suffix in rests]

    def accepted_values(self):
        return {value_of(entry["option"], value) for entry in self.values.values() for value in entry["values"] if value in self.literals}

    def counts(self):
        return collections.Counter(classified.kind for classified in self.classified.values() if classified)

    def problems(self):
        """What is wrong with classes.toml."""
        found = [name for name in self.theirs if name in self.entry_of and self.entry_of[name].kind != DIFFERS and self.found(name)]
        listed = collections.Counter([*self.renamed, *self.values, *(name for entry in self.entries for name in entry.names)])
        return [
            *(f"{name}: no class; add an entry to {CLASSES}" for name, classified in self.classified.items() if classified is None),
            *(f"{name} = {ours}: there is no such name in our headers and programs" for name, ours in self.renamed.items() if ours not in self.ours),
            *(f"{name}: {self.entry_of[name].kind}, but {self.found(name)} exists; remove the entry" for name in found),
            *(f"{name}: decides no name of Accelerate; remove it" for name in [*self.renamed, *self.entry_of] if name not in self.used),
            *(f"{name}: has {count} entries; keep one" for name, count in listed.items() if count > 1),
            *(f"{name}: its text names {ours}, which does not exist" for entry in self.entries for name in entry.names[:1] for ours in named(entry.text) - self.ours),
        ]


def value_of(option, value):
    return f'{option} = "{value}"'


def named(text):
    return {free or f"{owner}.{member}" for free, owner, member in OUR_NAME.findall(text)}


# --- links -----------------------------------------------------------------------------------------------------------


def link_problems(table, guide):
    """Links that name no page of the guide, or no heading of it."""
    return [f"{entry.link}: no such heading" for entry in table.entries if entry.kind == DIFFERS and not resolves(entry.link, guide)]


def resolves(link, guide):
    page, _, anchor = link.partition("#")
    path = guide / page
    return path.is_file() and (not anchor or anchor in {anchor_of(line) for line in path.read_text().splitlines() if line.startswith("#")})


def anchor_of(heading):
    """GitHub's anchor of a heading."""
    return re.sub(r"[^\w-]", "", heading.lstrip("#").strip().lower().replace(" ", "-"))


# --- this repository -------------------------------------------------------------------------------------------------


def table_of_repository(programs):
    classes = tomllib.loads((ROOT / CLASSES).read_text())
    return Table(classes, names.of_accelerate(ROOT), names.ours(ROOT, programs), names.literals(ROOT))


def main():
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("--bin", required=True, type=pathlib.Path)
    parser.add_argument("--write", action="store_true")
    arguments = parser.parse_args()
    table = table_of_repository(arguments.bin)
    problems = table.problems() + link_problems(table, ROOT / GUIDE)
    print(*problems, sep="\n")
    if arguments.write and not problems:
        (ROOT / page.PATH).write_text(page.text_of(table))
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
