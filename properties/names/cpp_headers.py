"""The names that C++ headers declare, found without a compiler: classes with their public members, enumerators, functions with their
parameters. The headers are those that a start header includes from this repository.

A reader of the declarations that clang-format leaves, not a parser of C++: templates are skipped, bodies and initializers are too.
"""
import dataclasses
import re

TOKEN = re.compile(r"::|->|\"(?:\\.|[^\"\\])*\"|'(?:\\.|[^'\\])*'|[A-Za-z_]\w*|\d[\w.']*|\S")
INCLUDE = re.compile(r'^#include (?:"([^"]+)"|<(accel/[^>]+)>)', re.MULTILINE)
UNUSED = re.compile(r"/\*(\w+)\*/")  # the name of a parameter that a default implementation ignores
NOISE = re.compile(r"//[^\n]*|/\*.*?\*/|^[ \t]*#(?:[^\n]*\\\n)*[^\n]*|\[\[\w[^\]]*\]\]", re.DOTALL | re.MULTILINE)
SCOPES = ("class", "struct", "union")
NO_NAMES = ("decltype", "explicit", "noexcept", "alignas", "requires")


@dataclasses.dataclass
class Function:
    scope: str  # the class that declares it
    parameters: list = dataclasses.field(default_factory=list)
    types: list = dataclasses.field(default_factory=list)  # of the parameters: their identifiers, and `Outer::Inner`


@dataclasses.dataclass
class Scope:
    """A class, or all namespaces together, which have one Scope."""

    bases: list = dataclasses.field(default_factory=list)
    fields: list = dataclasses.field(default_factory=list)
    functions: dict = dataclasses.field(default_factory=dict)  # overloads by name; constructors have the class's name


class Headers:
    def __init__(self, root, starts):
        self.root, self.paths = root, []
        self.classes, self.enums, self.aliases, self.free = {}, {}, {}, Scope()
        for start in starts:
            self._include(start)

    def _include(self, path):
        if path in self.paths:
            return
        self.paths.append(path)
        text = (self.root / path).read_text()
        for own, installed in INCLUDE.findall(text):
            if installed or (self.root / own).exists():
                self._include(own or f"reference/public/{installed}")
        text = UNUSED.sub(r"\1", text)
        Reader(TOKEN.findall(NOISE.sub("", text)), self).read(self.free)

    def struct(self, name, scope):
        """The fields of a struct that a function declared in `scope` accepts."""
        for full in (f"{scope}::{name}", name):
            full = self.aliases.get(full, full)
            if full in self.classes:
                return self.members(full).fields
        return []

    def members(self, name):
        """Fields and functions of a class and its bases."""
        scope = self.classes.get(name, Scope())
        fields, functions = list(scope.fields), {key: list(values) for key, values in scope.functions.items()}
        for base in scope.bases:
            of_base = self.members(base)
            fields += of_base.fields
            for key, values in of_base.functions.items():
                functions.setdefault(key, values)
        return Scope(fields=fields, functions=functions)


class Reader:
    def __init__(self, tokens, headers):
        self.tokens, self.at, self.headers, self.hidden = tokens, 0, headers, Scope()

    def read(self, scope, name=None, is_public=True):
        """Reads declarations into `scope` until it ends. `name` is that of a class."""
        head = []
        while self.at < len(self.tokens):
            token = self.tokens[self.at]
            if token == "}":
                self.at += 1
                return
            if token == ":" and head in (["public"], ["private"], ["protected"]):
                is_public, head = head == ["public"], []
                self.at += 1
            elif token == ";":
                self.at += 1
                self._declare(scope if is_public else self.hidden, head, name)
                head = []
            elif token == "{":
                head = self._braces(scope if is_public else self.hidden, head, name)
            elif token in ("(", "[") or token == "<" and head and (head[-1] == "template" or opens_arguments(head[-1])):
                group = self._group()
                is_kept = token in ("(", "<") and not (token == "<" and head[-1] == "template")
                head = head + [group] if is_kept else [word for word in head if word != "template"]
            else:
                head.append(token)
                self.at += 1

    def _group(self):
        """The tokens of a bracketed group, with both brackets. In code, < and > may be comparisons, so they only count in a group of theirs."""
        opening, closing = "({[", ")}]"
        if self.tokens[self.at] == "<":
            opening, closing = opening + "<", closing + ">"
        begin, depth = self.at, 0
        while True:
            depth += (self.tokens[self.at] in opening) - (self.tokens[self.at] in closing)
            self.at += 1
            if depth == 0:
                return tuple(self.tokens[begin : self.at])

    def _braces(self, scope, head, name):
        """What `head {` opens. The head of the statement that goes on after it."""
        words = [word for word in head if isinstance(word, str)]
        if "namespace" in words:
            self.at += 1
            self.read(self.hidden if "detail" in words else self.headers.free)
            return []
        if "enum" in words:
            self._enum(words, self._group())
            return []
        if set(SCOPES) & set(words) and "=" not in words and parameters_of(head) is None:
            self._class(scope, words[min(words.index(word) for word in SCOPES if word in words) :], name)
            return []
        if "operator" in words:
            self._group()
            return []
        parameters = parameters_of(head)
        starts_member = parameters is not None and ":" in head[parameters:] and isinstance(head[-1], str)
        group = self._group()
        if parameters is None or starts_member or "=" in words:
            return head + [group]
        self._declare(scope, head, name)
        return []

    def _enum(self, words, body):
        name = [word for word in words if word not in ("enum", "class", "struct", ":", "::")][0]
        self.headers.enums[name] = [part[0] for part in split(body[1:-1]) if part]

    def _class(self, scope, words, outer):
        words = [word for word in words if word != "final"]
        before, _, after = " ".join(words).partition(" : ")
        name = f"{outer}::{before.split()[-1]}" if outer else before.split()[-1]
        new = Scope(bases=[base for base in re.findall(r"\w+", after) if base not in (name, "public", "virtual", "private", "protected")])
        self.at += 1
        self.read(new, name, is_public=words[0] != "class")
        if scope is not self.hidden:
            self.headers.classes[name] = new

    def _alias(self, words, outer):
        """`using a::b;` or `using b = c::d::e;`, which may be the class `d::e` or `e`."""
        new, _, target = " ".join(words[1:]).partition(" = ")
        new, parts = new.split()[-1], [word for word in target.split() if word != "::"]
        known = [full for full in ("::".join(parts[-2:]), "".join(parts[-1:])) if full in self.headers.classes]
        self.headers.aliases[f"{outer}::{new}" if outer else new] = known[0] if known else target

    def _declare(self, scope, head, name):
        words = [word for word in head if isinstance(word, str)]
        if not words or words[0] in ("friend", "typedef", "static_assert", *SCOPES) or "operator" in words or "concept" in words:
            return
        if words[0] == "using":
            self._alias(words, name)
            return
        at = parameters_of(head)
        if at is None:
            scope.fields += variables(head)
            return
        function = Function(scope=name)
        for part in split(head[at][1:-1]):
            part = part[: part.index("=")] if "=" in part else part
            identifiers = [token for token in part if opens_arguments(token)]
            function.types += identifiers + [f"{before}::{after}" for before, colons, after in zip(part, part[1:], part[2:]) if colons == "::"]
            if len(identifiers) > 1 and part[-1] == identifiers[-1] and part[-2] != "::":
                function.parameters.append(identifiers[-1])
        scope.functions.setdefault(head[at - 1], []).append(function)


def opens_arguments(token):
    return isinstance(token, str) and re.match(r"[A-Za-z_]", token) is not None and token != "operator"


def parameters_of(head):
    """The place of a function's parameters in the head of a declaration; None if it declares no function."""
    for index, word in enumerate(head[1:], start=1):
        if word == "=":
            return None
        before = head[index - 1]
        if isinstance(word, tuple) and word[0] == "(" and opens_arguments(before) and before not in NO_NAMES and not before.isupper():
            return index
    return None


def variables(head):
    """The names in `type a = 1, b{2}`."""
    names = []
    for part in split(head):
        part = part[: part.index("=")] if "=" in part else part
        identifiers = [word for word in part if opens_arguments(word) and not word.isupper()]
        names += identifiers[-1:]
    return names


def split(tokens):
    """Divides tokens at the commas that no bracket encloses."""
    parts, depth = [[]], 0
    for token in tokens:
        depth += token in ("(", "{", "[", "<")
        depth -= token in (")", "}", "]", ">")
        if token == "," and depth == 0:
            parts.append([])
        else:
            parts[-1].append(token)
    return parts
