"""Functions that are longer than a reader can follow at once: 99 of 100 have less than 400 tokens."""
import bisect
import pathlib
import re
import unittest

from cpp_definitions import SourceError, definitions_of
from cpp_tokens import tokens_of
from source_tree import FOLDERS

ROOT = pathlib.Path(__file__).resolve().parents[2]
TOKENS_MAX = 400
SHARE = 0.99


def functions_of(source):
    """The name and the number of tokens of each function."""
    begins = [token.begin for token in tokens_of(source) if token.kind != "directive"]
    for definition in definitions_of(source):
        head = source[definition.begin : definition.signature_end]
        if "(" not in head or "=" in head or re.match(r"\s*(class|struct|union|enum)\b", head):
            continue
        tokens = bisect.bisect_left(begins, definition.end) - bisect.bisect_left(begins, definition.begin)
        yield "::".join(name for name in definition.name if name), tokens


class FunctionSizesTest(unittest.TestCase):
    def test_functions_are_short(self):
        sizes = []
        for folder in FOLDERS:
            for path in sorted((ROOT / folder).rglob("*.[ch]pp")):
                try:
                    sizes += [(tokens, f"{path.relative_to(ROOT)}: {name}") for name, tokens in functions_of(path.read_text())]
                except SourceError as error:
                    self.fail(f"{path}: {error}")
        self.assertGreater(len(sizes), 5000)
        sizes.sort()
        tokens, _ = sizes[int(len(sizes) * SHARE)]
        longest = "\n".join(f"{tokens} {name}" for tokens, name in reversed(sizes[int(len(sizes) * SHARE) :]))
        self.assertLess(tokens, TOKENS_MAX, f"too many long functions; divide some of these:\n{longest}")

    def test_tokens_are_counted(self):
        source = "namespace a {\nint f(int b) { return b + 1; }\nstruct C { int g() const { return 2; } };\n}\n"
        self.assertEqual(dict(functions_of(source)), {"a::f": 13, "a::C::g": 10})


if __name__ == "__main__":
    unittest.main()
