"""One change of a source: an expression in a function, and what replaces it."""
import dataclasses
import re
import textwrap

from cpp_tokens import comparable, tokens_of

KEYS = ("file", "in", "signature", "find", "occurrence", "replace", "include")
FIELD = re.compile(r"(\w+):[ \t]*([^\n]*)((?:\n[ \t]+[^\n]*)*)")


class EditError(Exception):
    """A change that does not fit the sources of today."""


@dataclasses.dataclass
class Edit:
    function: str  # or class, or variable
    find: str
    replace: str
    file: str = ""  # where the function is searched first
    signature: str = ""  # a part of it, to choose an overload
    occurrence: int = 0  # of the expression in the function; 0: the only one
    include: str = ""  # a header that the replacement needs


def fields_of(paragraph):
    """The pairs of "key: value" of a paragraph. A value of several lines begins on the next line and is indented."""
    fields, place = [], 0
    while place < len(paragraph):
        match = FIELD.match(paragraph, place)
        if not match:
            raise ValueError(f"'{paragraph[place:].splitlines()[0]}'; expected 'KEY: VALUE', or an indented line of a value")
        if match[2] and match[3]:
            raise ValueError(f"'{match[1]}: {match[2]}' continues on the next line; begin a value of several lines on that line")
        fields.append((match[1], match[2].strip() or textwrap.dedent(match[3].lstrip("\n"))))
        place = match.end() + 1
    return fields


def read_edit(paragraph):
    pairs = fields_of(paragraph)
    fields = dict(pairs)
    for key, _ in pairs:
        if key not in KEYS:
            raise ValueError(f"unknown key '{key}'; expected some of {', '.join(KEYS)}")
    if len(fields) != len(pairs):
        raise ValueError("a key occurs twice in one paragraph; separate changes by an empty line")
    if not fields.get("in") or not tokens_of(fields.get("find", "")) or "replace" not in fields:
        raise ValueError("a change lacks something; expected 'in: FUNCTION', 'find: EXPRESSION' and 'replace: EXPRESSION'")
    if not re.fullmatch("[1-9][0-9]*", fields.get("occurrence", "1")):
        raise ValueError(f"occurrence: {fields['occurrence']}; expected a number from 1")
    return Edit(
        function=fields["in"],
        find=fields["find"],
        replace=fields["replace"],
        file=fields.get("file", ""),
        signature=fields.get("signature", ""),
        occurrence=int(fields.get("occurrence", 0)),
        include=fields.get("include", ""),
    )


def places_of(expression, source, begin=0, end=None):
    """Where an expression is in a part of a source, as (begin, end). White space and comments do not matter."""
    searched = [token.text for token in comparable(tokens_of(expression))]
    tokens = comparable(tokens_of(source[begin:end]))
    texts = [token.text for token in tokens]
    length = len(searched)
    return [(begin + tokens[place].begin, begin + tokens[place + length - 1].end)
            for place in range(len(texts) - length + 1) if texts[place : place + length] == searched]  # fmt: skip


def span_of(edit, source, definition, where):
    """The part of the source that the edit replaces."""
    places = places_of(edit.find, source, definition.begin, definition.end)
    expression = f"'{' '.join(edit.find.split())}'"
    if not places:
        raise EditError(f"{where} does not contain {expression}; write the same fault for the function of today")
    if len(places) > 1 and not edit.occurrence:
        lines = ", ".join(str(source.count("\n", 0, begin) + 1) for begin, _ in places)
        raise EditError(f"{where} contains {expression} {len(places)} times (lines {lines}); find a longer expression, or add 'occurrence: N'")
    if edit.occurrence > len(places):
        raise EditError(f"{where} contains {expression} {len(places)} times; expected occurrence {edit.occurrence}")
    return places[max(edit.occurrence, 1) - 1]


def include_span(header, source):
    """Where the line of a header belongs, and the line; nothing if the source includes it. `header` is a path or <name>."""
    written = header if header.startswith("<") else f'"{header}"'
    lines = list(re.finditer(rf"^#include {written[0]}[^\n]*\n", source, re.MULTILINE))
    line = f"#include {written}\n"
    if any(match[0].startswith(line.rstrip()) for match in lines):
        return []
    others = lines if header.startswith("<") else lines[1:]  # the first one is the header of the source itself
    after = next((match.start() for match in others if match[0] > line), lines[-1].end() if lines else 0)
    return [(after, after, line)]
