"""The sources of the library: finds functions in them, and changes them in memory."""
import functools
import pathlib

import cpp_definitions
from edit import EditError, include_span, places_of, span_of

FOLDERS = ("reference", "backends", "sim")
SHOWN_CANDIDATES = 5


class SourceTree:
    def __init__(self, root):
        self.root = pathlib.Path(root)
        self.texts, self.definitions = {}, {}

    def changed(self, edits):
        """The texts of the files that the edits change, by file. Throws EditError if an edit does not fit."""
        spans = {}
        for edit in edits:
            file, definition = self.find(edit)
            source = self.text(file)
            begin, end = span_of(edit, source, definition, f"{edit.function} ({self._place(file, definition)})")
            spans.setdefault(file, set()).add((begin, end, edit.replace))
            if edit.include:
                spans[file].update(include_span(edit.include, source))
        return {file: replaced(self.text(file), sorted(of_file), file) for file, of_file in spans.items()}

    def find(self, edit):
        """The only function, class or variable with a name, in the file of the edit or, if it is not there, in all files. Of
        functions in several files it is the one that contains the expression."""
        found = self._candidates(edit, [edit.file]) if edit.file in self.files else []
        if not found:
            found = self._candidates(edit, self.files)
            if len({file for file, _ in found}) > 1:
                found = [(file, one) for file, one in found if places_of(edit.find, self.text(file), one.begin, one.end)] or found
        described = f"'{edit.function}'" + (f" with '{edit.signature}' in its signature" if edit.signature else "")
        if not found:
            searched = ", ".join(f"{folder}/" for folder in FOLDERS)
            raise EditError(f"no function, class or variable {described} in {searched}; correct its name, or write the fault for what replaced it")
        if len(found) > 1:
            shown = "; ".join(f"{self._place(*one)} {self._signature(*one)}" for one in found[:SHOWN_CANDIDATES])
            raise EditError(f"{len(found)} definitions of {described}: {shown}; add its class or namespace, 'signature: PART' or 'file: FILE'")
        return found[0]

    @functools.cached_property
    def files(self):
        paths = (path for folder in FOLDERS for path in (self.root / folder).rglob("*.[ch]pp"))
        return sorted(str(path.relative_to(self.root)) for path in paths)

    def text(self, file):
        if file not in self.texts:
            self.texts[file] = (self.root / file).read_text()
        return self.texts[file]

    def definitions_of(self, file):
        if file not in self.definitions:
            try:
                self.definitions[file] = cpp_definitions.definitions_of(self.text(file))
            except cpp_definitions.SourceError as error:
                raise EditError(f"{file}: {error}") from error
        return self.definitions[file]

    def _candidates(self, edit, files):
        names = tuple(edit.function.split("::"))
        word = names[-1].split("operator")[0].lstrip("~")  # most files lack it, so their definitions need not be found
        found = [(file, one) for file in files if word in self.text(file) for one in self.definitions_of(file) if one.is_named(names)]
        return [(file, one) for file, one in found
                if not edit.signature or places_of(edit.signature, self.text(file), one.begin, one.signature_end)]  # fmt: skip

    def _place(self, file, definition):
        return f"{file}:{self.text(file).count(chr(10), 0, definition.begin) + 1}"

    def _signature(self, file, definition):
        return "'" + " ".join(self.text(file)[definition.begin : definition.signature_end].split())[:100] + "'"


def replaced(source, spans, file):
    """The source with other texts in place of (begin, end, text)."""
    parts, last = [], 0
    for begin, end, text in spans:
        if begin < last:
            raise EditError(f"{file}: two changes overlap at '{' '.join(source[begin:last].split())}'; write them as one")
        parts += [source[last:begin], text]
        last = end
    return "".join([*parts, source[last:]])
