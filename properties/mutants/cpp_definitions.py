"""Finds functions, classes and variables in a C++ source by matching brackets. It knows declarations, not expressions: what is
inside a function belongs to the function."""
import dataclasses

from cpp_tokens import first_branches, tokens_of

CLOSING = {"(": ")", "[": "]", "{": "}"}
CLASS_KEYS = {"class", "struct", "union", "enum"}
ACCESS = {"public", "private", "protected"}
NO_NAMES = {"alignas", "decltype", "explicit", "noexcept", "requires", "throw"}  # before parentheses
AFTER_PARAMETERS = {"const", "noexcept", "override", "final", "try", "requires", "volatile"}
NO_VARIABLES = {"using", "typedef", "friend", "static_assert", "namespace", "extern"}


class SourceError(Exception):
    """A source that is not understood."""


@dataclasses.dataclass
class Definition:
    name: tuple  # of the namespaces and classes around it, and its own
    begin: int  # places in the source
    signature_end: int  # where its body begins
    end: int

    def is_named(self, names):
        """Whether the name ends in these names. The short name of a class is not that of its constructor."""
        is_constructor = self.name[-2:-1] == self.name[-1:]
        return self.name[-len(names) :] == tuple(names) and not (is_constructor and len(names) == 1)


@dataclasses.dataclass
class Part:
    """A token of a declaration, or a group in brackets: then the text is the pair of brackets."""

    text: str
    is_word: bool


@dataclasses.dataclass
class Scope:
    names: tuple
    is_class: bool = False
    first: int = 0  # token
    body: int = 0


def definitions_of(source):
    tokens = tokens_of(source)
    try:
        return Finder(source, tokens).definitions()
    except SourceError:  # an #if and its #else may each open a bracket that is closed once
        return Finder(source, first_branches(tokens)).definitions()


class Finder:
    def __init__(self, source, tokens):
        self.tokens = [token for token in tokens if token.kind != "directive"]
        self.texts = [token.text if token.kind in ("symbol", "word") else token.kind for token in self.tokens]
        self.closings = self._match_brackets(source)
        self.found = []

    def definitions(self):
        scopes = [Scope(())]
        first = place = 0  # of the declaration, and in it
        while place < len(self.tokens):
            text = self.texts[place]
            if text == "}":
                scope = scopes.pop()
                if scope.is_class:
                    self._add(scope.names, scope.first, scope.body, place)
                first = place + 1
            elif text == ";":
                self._add_variable(scopes[-1].names, first, place)
                first = place + 1
            elif text == ":" and place == first + 1 and self.texts[first] in ACCESS:
                first = place + 1
            elif text == "{":
                names, kind = self._opened(first, place)
                names = scopes[-1].names + names
                if kind in ("namespace", "class"):
                    scopes.append(Scope(names, kind == "class", first, place))
                    first = place + 1
                else:
                    last = self.closings[place]
                    if kind == "definition":
                        self._add(names, first, place, last)
                        first = last + 1
                    place = last
            elif text in CLOSING:
                place = self.closings[place]
            place += 1
        return self.found

    def _match_brackets(self, source):
        closings, opened = {}, []
        for place, text in enumerate(self.texts):
            if text in CLOSING:
                opened.append(place)
            elif text in CLOSING.values():
                if not opened or CLOSING[self.texts[opened[-1]]] != text:
                    raise SourceError(f"line {self._line(source, place)}: '{text}' closes no bracket")
                closings[opened.pop()] = place
        if opened:
            raise SourceError(f"line {self._line(source, opened[-1])}: '{self.texts[opened[-1]]}' is not closed")
        return closings

    def _line(self, source, place):
        return source.count("\n", 0, self.tokens[place].begin) + 1

    def _add(self, names, first, body, last):
        self.found.append(Definition(names, self.tokens[first].begin, self.tokens[body].begin, self.tokens[last].end))

    def _add_variable(self, scope, first, last):
        parts = self._parts(first, last)
        if not parts or parts[0].text in NO_VARIABLES or any(part.text in CLASS_KEYS for part in parts):
            return
        end = next((place for place, part in enumerate(parts) if part.text in ("=", "{}")), len(parts))
        before = without_macros(parts[:end])
        if any(part.text == "()" for part in before):  # a function without body, or with `= default`
            return
        if names := name_before(before, len(before)):
            self._add(scope + names, first, last, last)

    def _opened(self, first, place):
        """What begins with the brace at `place`, and its names."""
        parts = without_macros([part for part in self._parts(first, place) if part.text != "[]"])
        texts = [part.text for part in parts]
        if "namespace" in texts:
            return tuple(part.text for part in parts[texts.index("namespace") + 1 :] if part.is_word), "namespace"
        if texts[:2] == ["extern", "string"]:
            return (), "namespace"
        if "=" in texts:
            return (), "initializer"
        if names := class_name(parts):
            return names, "definition" if "enum" in texts else "class"
        parameters = parameters_of(parts)
        if parameters is None or texts[-3:] == ["requires", "requires", "()"]:
            return (), "initializer"
        if ":" in texts[parameters:] and (parts[-1].is_word or texts[-1] == "<>"):  # of a member, before the body of a constructor
            return (), "initializer"
        return name_before(parts, parameters), "definition"

    def _parts(self, first, last):
        """The tokens of a declaration with a part for each group in brackets."""
        parts, place, is_value = [], first, False
        while place < last:
            text, token = self.texts[place], self.tokens[place]
            if text == "operator":
                end = self._end_of_operator(place, last)
                name = "".join(self.texts[place + 1 : end])
                parts.append(Part(f"operator {name}" if name[:1].isalpha() else f"operator{name}", True))
                place = end
                continue
            end = self.closings.get(place)
            if text == "<" and not is_value:
                end = self._end_of_template(place, last)
            is_value = is_value or text == "="
            parts.append(Part(text + CLOSING.get(text, ">") if end else text, token.kind == "word"))
            place = (end or place) + 1
        return parts

    def _end_of_operator(self, place, last):
        """The place of the parameters."""
        begin = place + 3 if self.texts[place + 1] == "(" else place + 1
        return next((place for place in range(begin, last) if self.texts[place] == "("), last)

    def _end_of_template(self, place, last):
        """The place of the `>`; None if it is a comparison."""
        depth = 0
        while place < last:
            text = self.texts[place]
            depth += (text == "<") - (text == ">")
            if depth == 0:
                return place
            place = self.closings.get(place, place) + 1
        return None


def without_macros(parts):
    """Without alignas(64), and calls such as ACCEL_GUARDED_BY(mutex_) after a name. One that is first, as TEST(Sum, Adds), stays."""
    kept = []
    for part in parts:
        before = kept[-1].text if kept else ""
        if part.text == "()" and (before == "alignas" or len(kept) > 1 and "_" in before and before.isupper()):
            kept.pop()
        else:
            kept.append(part)
    return kept


def class_name(parts):
    """Empty if the parts declare no class; a class without name has the name ""."""
    texts = [part.text for part in parts]
    key = next((place for place, text in enumerate(texts) if text in CLASS_KEYS), None)
    if key is None:
        return ()
    base = texts.index(":", key) if ":" in texts[key:] else len(parts)
    after = [part for part in parts[key + 1 : base] if part.text not in ("final", *CLASS_KEYS)]
    if any(part.text == "()" for part in [*parts[:key], *after]):  # a function
        return ()
    return name_before(after, len(after)) or ("",)


def parameters_of(parts):
    """The place of the parameters of a function; None if there are none."""
    for place, part in enumerate(parts[1:], 1):
        name = parts[place - 1]
        if part.text == "()" and name.is_word and name.text not in NO_NAMES:
            after = parts[place + 1] if place + 1 < len(parts) else None
            if after and after.is_word and after.text not in AFTER_PARAMETERS and not after.text.isupper():
                continue  # of a macro before the declaration
            return place
    return None


def name_before(parts, end):
    """The qualified name that ends at a part, without the arguments of templates."""
    names, expects_name = [], True
    for part in reversed(parts[:end]):
        if part.text in ("<>", "[]"):
            continue
        if part.text == "~" and names:
            names[0] = "~" + names[0]
        elif part.text == "::" and not expects_name:
            expects_name = True
        elif part.is_word and expects_name:
            names.insert(0, part.text)
            expects_name = False
        else:
            break
    return tuple(names)
