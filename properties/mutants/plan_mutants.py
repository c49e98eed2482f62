"""Mutants of plan functions, generated from regular expressions: another operator or constant, or a call left out."""
import random
import re

import mutant

SWAPS = {" < ": " <= ", " <= ": " < ", " > ": " >= ", " >= ": " > ", " == ": " != ", " != ": " == ", " + ": " - ", " - ": " + ",
         " * ": " / ", " / ": " * ", " % ": " / ", " && ": " || ", " || ": " && ", " += ": " -= ", "std::min": "std::max",
         "std::max": "std::min", "true": "false", "false": "true"}  # fmt: skip
OPERATOR = re.compile("|".join(rf"(?<!\w){re.escape(text)}(?!\w)" if text[0] != " " else re.escape(text) for text in SWAPS))
CONSTANT = re.compile(r"(?<![\w.'])\d+(?![\w.'])")
NEGATION = re.compile(r"!(?=[a-z(])")
# A statement on one line that is only a call. A removed check would need an error that a valid plan cannot have.
CALL = re.compile(r"^ +(?!check_|ensure|return\b|throw\b)[\w.:>-]+\([^;{}]*\);$", re.MULTILINE)


def masked(source):
    """The source with blanks in place of comments, texts and preprocessor lines, so that positions stay."""
    def blank(match):
        return re.sub(r"[^\n]", " ", match[0])

    return re.sub(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])\'|^#[^\n]*', blank, source, flags=re.DOTALL | re.MULTILINE)


def changes_of(source):
    """All changes of a source as (begin, end, replacement, kind), in the order of their places."""
    code = masked(source)
    changes = [(m.start(), m.end(), SWAPS[m[0]], "operator") for m in OPERATOR.finditer(code)]
    changes += [(m.start(), m.end(), str(int(m[0]) + 1), "constant") for m in CONSTANT.finditer(code)]
    changes += [(m.start(), m.end(), "", "negation") for m in NEGATION.finditer(code)]
    changes += [(m.start(), m.end(), "", "call") for m in CALL.finditer(code) if is_complete(m[0])]
    return sorted(changes)


def is_complete(statement):
    return statement.count("(") == statement.count(")")


def generate(root, plans, limit, seed):
    """`limit` mutants, spread evenly over the plans; the same ones for the same seed and sources."""
    draw = random.Random(seed)
    mutants = []
    for place, (file, tests) in enumerate(plans.items()):
        source = (root / file).read_text()
        changes = changes_of(source)
        count = limit // len(plans) + (1 if place < limit % len(plans) else 0)
        for begin, end, replacement, kind in sorted(draw.sample(changes, min(count, len(changes)))):
            line = source.count("\n", 0, begin) + 1
            first = source.rfind("\n", 0, begin) + 1
            before = source[begin:end].strip()
            content = source[:begin] + replacement + source[end:]
            name = f"{line}-{begin - first + 1}"
            what = f"`{before}` removed" if replacement == "" else f"`{before}` becomes `{replacement.strip()}`"
            mutants.append(mutant.Mutant(area=file, name=name, what=f"{kind} {what}", tests=list(tests), files=[file], content=content))
    return mutants
