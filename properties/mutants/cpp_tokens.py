"""Tokens of C++ sources, so that white space, comments and line breaks do not matter."""
import re
import typing

PREFIX = r"(?:u8|[uUL])?"
TOKEN = re.compile(
    rf"""(?P<comment>//(?:\\\n|[^\n])*|/\*.*?\*/)
    |(?P<directive>\#(?:\\\n|/\*.*?\*/|[^\n])*)
    |(?P<raw>{PREFIX}R"(?P<mark>[^()\\\s]{{0,16}})\(.*?\)(?P=mark)")
    |(?P<string>{PREFIX}"(?:\\.|[^"\\\n])*")
    |(?P<character>{PREFIX}'(?:\\.|[^'\\\n])+')
    |(?P<word>[A-Za-z_]\w*)
    |(?P<number>\.?\d(?:[eEpP][+-]|'?[\w.])*)
    |(?P<symbol>::|->\*?|<=>|<<=|>=|[-+*/%&|^=!<]=|\+\+|--|&&|\|\||<<|\.\.\.|\S)""",
    re.VERBOSE | re.DOTALL,
)  # `>>` is two tokens, since it may close two templates


class Token(typing.NamedTuple):
    kind: str
    text: str
    begin: int  # in the source
    end: int


def tokens_of(source):
    """All tokens but comments. A preprocessor line is one token."""
    matches = ((match.lastgroup, match) for match in TOKEN.finditer(source))
    return [Token(kind, match[0], match.start(), match.end()) for kind, match in matches if kind != "comment"]


def first_branches(tokens):
    """Without what is between #else or #elif and its #endif."""
    kept, skips = [], []  # per open #if, whether its first branch has ended
    for token in tokens:
        word = re.match(r"#\s*(\w*)", token.text)[1] if token.kind == "directive" else ""
        if word.startswith("if"):
            skips.append(False)
        elif word.startswith("el") and skips:
            skips[-1] = True
        elif word == "endif" and skips:
            skips.pop()
        elif not any(skips):
            kept.append(token)
    return kept


def comparable(tokens):
    """The tokens in a form that is equal for equal code: a string that is cut into several, as formatters do, is one token."""
    joined = []
    for token in tokens:
        last = joined[-1] if joined else None
        if token.kind == "string" and last and last.kind == "string" and token.text[0] == last.text[0] == '"':
            joined[-1] = Token("string", last.text[:-1] + token.text[1:], last.begin, token.end)
        elif token.kind == "directive":
            text = re.sub(r"//.*|/\*.*?\*/|\\\n", " ", token.text, flags=re.DOTALL)
            joined.append(token._replace(text=" ".join(text.split())))
        else:
            joined.append(token)
    return joined


def is_same_code(a, b):
    return [token.text for token in comparable(tokens_of(a))] == [token.text for token in comparable(tokens_of(b))]
