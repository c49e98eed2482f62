"""Mutants generated from regular expressions: another operator or constant, a forced condition, a statement left out."""
import collections
import random
import re

import mutant

SWAPS = {" < ": " <= ", " <= ": " < ", " > ": " >= ", " >= ": " > ", " == ": " != ", " != ": " == ", " + ": " - ", " - ": " + ",
         " * ": " + ", " / ": " * ", " % ": " / ", " && ": " || ", " || ": " && ", " += ": " -= ", "std::min": "std::max",
         "std::max": "std::min", "true": "false", "false": "true"}  # fmt: skip
OPERATOR = re.compile("|".join(rf"(?<!\w){re.escape(text)}(?!\w)" if text[0] != " " else re.escape(text) for text in SWAPS))
CONSTANT = re.compile(r"(?<![\w.'<])\d+(?![\w.'])")  # not the argument of a template
NEGATION = re.compile(r"(?<!if \()!(?=[\w(*])")  # a condition that begins with it is forced below
CONDITION = re.compile(r"\bif \(")
DECLARATION = re.compile(r";| = ")  # in a condition, which then cannot become a constant
TERNARY = re.compile(r"(?:(?<=[=,:?] )|(?<=[({])|(?<=return ))[a-z*][\w.:>()*-]*(?= \? )")
EXCHANGE = re.compile(r"\bstd::exchange\(")
# A call, an assignment or an increment, on one or more lines. A removed check would need an error that a valid call cannot
# have; a name that begins with a capital letter declares a constructor.
STATEMENT = re.compile(r"^ +(?!check_|ensure|static_assert|return\b|throw\b|[A-Z~])"
                       r"(?:[\w.:>-]+\([^;]*\)|\*?[\w.>\[\]-]+ [-+|]?=\s[^;]*|(?:\+\+|--)[\w.>-]+);$", re.MULTILINE)  # fmt: skip
# Calls whose text, and what is formatted into it, only a person reads.
MESSAGE = re.compile(r"\b(?:check_\w+|ensure|warn_once|fmt::format|\w+Error)\(")
STRUCT = re.compile(r"\bstruct \w+ \{")
DEFAULT = re.compile(r"^[^\n(]* = [^\n(]*;", re.MULTILINE)  # of a field of a struct, which its users set
UNCHANGED = re.compile(r"^ *(?:template|requires|using|static_assert)\b[^\n]*|(?<=\)) (?:const )?= 0;", re.MULTILINE)


def blank(match):
    return re.sub(r'[^\n"]', " ", match[0])


def masked(source):
    """The source with blanks in place of comments, texts, messages, preprocessor lines and declarations; positions stay."""
    texts = r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])\'|^#[^\n]*'
    code = re.sub(texts, blank, source, flags=re.DOTALL | re.MULTILINE)
    for call in MESSAGE.finditer(code):
        end = closing(code, call.end())
        begin = code.find('"', call.end(), end)
        if begin != -1:
            code = code[:begin] + re.sub(r"[^\n]", " ", code[begin:end]) + code[end:]
    for struct in STRUCT.finditer(code):
        end = closing(code, struct.end(), "{}")
        code = code[: struct.end()] + DEFAULT.sub(blank, code[struct.end() : end]) + code[end:]
    return UNCHANGED.sub(blank, code)


def closing(code, begin, pair="()"):
    """The place of the parenthesis or brace that closes the one before `begin`."""
    depth = 1
    for place in range(begin, len(code)):
        depth += (code[place] == pair[0]) - (code[place] == pair[1])
        if depth == 0:
            return place
    return len(code)


def is_complete(statement):
    return all(statement.count(opened) == statement.count(closed) for opened, closed in ("()", "{}"))


def first_argument(arguments):
    """The end of the first argument of a call."""
    ends = (place for place, letter in enumerate(arguments) if letter == "," and is_complete(arguments[:place]))
    return next(ends, len(arguments))


def changes_of(source):
    """All changes of a source as (begin, end, replacement, kind), in the order of their places."""
    code = masked(source)
    changes = [(m.start(), m.end(), SWAPS[m[0]], "operator") for m in OPERATOR.finditer(code)]
    changes += [(m.start(), m.end(), str(int(m[0]) + 1), "constant") for m in CONSTANT.finditer(code)]
    # Negated twice, since the value may be no bool.
    changes += [(m.start(), m.end(), "!!", "negation") for m in NEGATION.finditer(code)]
    changes += [(m.start(), m.end(), f"!{m[0]}", "condition") for m in TERNARY.finditer(code)]
    # An empty statement, since it may be the only one after an `if`.
    changes += [(m.end() - len(m[0].lstrip()), m.end(), ";", "statement") for m in STATEMENT.finditer(code) if is_complete(m[0])]
    for m in CONDITION.finditer(code):
        end = closing(code, m.end())
        if not DECLARATION.search(code, m.end(), end):
            changes += [(m.end(), end, value, "condition") for value in ("false", "true")]
    for m in EXCHANGE.finditer(code):
        end = closing(code, m.end())
        first = source[m.end() : m.end() + first_argument(code[m.end() : end])]
        changes.append((m.start(), end + 1, first, "exchange"))
    return sorted(changes)


def mutants_of(file, source, tests, survivors):
    """All mutants of a file."""
    mutants, names = [], collections.Counter()
    for begin, end, replacement, kind in changes_of(source):
        first, last = source.rfind("\n", 0, begin) + 1, source.find("\n", end)
        name = f"{source.count(chr(10), 0, begin) + 1}-{begin - first + 1}"
        names[name] += 1
        before, after = (" ".join(text.split()) for text in (source[begin:end], replacement))
        lines = tuple(" ".join(text.split()) for text in (source[first:last], source[first:begin] + replacement + source[end:last]))
        mutants.append(mutant.Mutant(
            area=file, name=name + "abcd"[names[name] - 1].replace("a", ""), tests=list(tests),
            what=f"{kind} `{before}` " + ("removed" if after == ";" else f"becomes `{after}`"),
            survives=survivors.get((file, *lines), ""), contents={file: source[:begin] + replacement + source[end:]}, lines=lines))  # fmt: skip
    return mutants


def generate(root, tests_of, limit, seed, survivors):
    """`limit` mutants, drawn from all mutants of all files alike; the same ones for the same seed and sources."""
    mutants = [one for file, tests in tests_of.items() for one in mutants_of(file, (root / file).read_text(), tests, survivors)]
    places = random.Random(seed).sample(range(len(mutants)), min(limit, len(mutants)))
    return [mutants[place] for place in sorted(places)]
