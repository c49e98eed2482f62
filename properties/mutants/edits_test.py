"""Tests that functions and expressions are found in C++ sources however these are written: python3 -m unittest edits_test"""
import pathlib
import shutil
import subprocess
import tempfile
import textwrap
import unittest

import cpp_definitions
import cpp_tokens
import edit
from source_tree import SourceTree

CLANG_FORMAT = shutil.which("clang-format-16") or shutil.which("clang-format")
SHARDS = """#include "reference/shards.hpp"

#include <algorithm>

#include "reference/core/errors.hpp"
#include "reference/tree/value.hpp"

namespace accel {
namespace {
constexpr int kLimit = 1 << 20;

int divided(int length, int num_ranks) { return (length + num_ranks - 1) / num_ranks; }
}  // namespace

Shard::Shard(const Options& options, std::vector<int> order) : options_{options}, order_(std::move(order)) {
  check_argument(options.size > 0, "Shard: expected a size above 0, got {}; a longer text to fill the line", options.size);
}

// Shard::size() { is not a function here.
int Shard::size() const {
  const auto text = R"({ "not": code } )";  // }
  if (text[0] == '}' || text[1] == '"') return 0;
  return options_.drop_last ? length() / options_.num_ranks : divided(length(), options_.num_ranks);
}

void Shard::advance(int steps) {
  place_ += steps;
}

void Shard::advance(const Position& position) { place_ = position.steps * options_.num_ranks + position.steps; }
}  // namespace accel
"""
DEFINITIONS = {
    "namespace a::b { int f() { return 1; } }": ["a::b::f"],
    "int A::f(int a = {1}) const noexcept { return a; }": ["A::f"],
    "template <typename T, int kSize = 3> auto A<T>::f(T t) -> std::vector<T> { if (t < 3) {} return {}; }": ["A::f"],
    "std::function<void(int)> f(int a) { return {}; }": ["f"],
    "A::A(int a) : B<int>{a}, b_(a), c_{[] { return 1; }()} { run(); } A::~A() { end(); }": ["A::A", "A::~A"],
    "bool operator==(A a, A b) { return true; } A::operator bool() const { return 1; } void A::operator()(int) {}":
        ["operator==", "A::operator bool", "A::operator()"],
    "class ACCEL_CAPABILITY(\"mutex\") A final : public B<C> { public: A() = default; int f() { return a_; } int a_ = 1; struct D {}; };":
        ["A::f", "A::a_", "A::D", "A"],
    "enum class E : int { kOne, kTwo }; constexpr E kAll[] = {E::kOne}; const auto kF = [](int a) { return a; };": ["E", "kAll", "kF"],
    "int f(); class A; using B = int; extern int c; template class A<int>; static_assert(sizeof(int) == 4);": [],
    "template <typename T> requires(!std::is_same_v<T, int> && (kN < 3)) void f(T) requires requires(T t) { t.g(); } { h(); }": ["f"],
    "struct alignas(64) A { int a ACCEL_GUARDED_BY(mutex_) {}; void lock() ACCEL_ACQUIRE() { } };": ["A::a", "A::lock", "A"],
    "#define BEGIN {\nextern \"C\" { void f() {} }\n#if X  // it's\nint g() {\n#else\nint g(int) {\n#endif\n}": ["f", "g"],
    "struct A { using B::operator=; A(int a) { } }; TEST(A, B) { } void g() {}": ["A::A", "A", "TEST", "g"],
    "auto f = a < b ? 1 : 2; auto g = 1'000'000; auto h = \"{\" \"\\\"{\" u8R\"x( )\" { )x\";": ["f", "g", "h"],
}  # fmt: skip


class TokensTest(unittest.TestCase):
    def test_comments_and_line_breaks_do_not_matter(self):
        self.assertTrue(cpp_tokens.is_same_code("f(a,\n  /*b=*/2);  // { \n", "f(a, 2);"))
        self.assertTrue(cpp_tokens.is_same_code('g("one "\n  "two", A<B<int> >());', 'g("one two", A<B<int>>());'))
        self.assertTrue(cpp_tokens.is_same_code("#include  <a>  // b\nint a;", "#include <a>\nint a ;"))

    def test_different_code_is_different(self):
        for a, b in (("a + b", "a - b"), ("a++ + b", "a + ++b"), ('"a b"', '"ab"'), ('R"(a b)"', 'R"(a  b)"'), ("ab", "a b"), ("1e-3", "1e - 3")):
            self.assertFalse(cpp_tokens.is_same_code(a, b), a)


class DefinitionsTest(unittest.TestCase):
    def test_every_kind_of_definition_is_found(self):
        for source, names in DEFINITIONS.items():
            self.assertEqual(["::".join(one.name) for one in cpp_definitions.definitions_of(source)], names, source)

    def test_a_bracket_without_its_partner_is_an_error(self):
        for source, problem in (("\nint f() {", "line 2: '{' is not closed"), ("int a;\n}", "line 2: '}' closes no bracket")):
            with self.assertRaisesRegex(cpp_definitions.SourceError, problem):
                cpp_definitions.definitions_of(source)


class EditsTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = pathlib.Path(folder.name)
        self.write("reference/shards.cpp", SHARDS)

    def write(self, file, text):
        (self.root / file).parent.mkdir(parents=True, exist_ok=True)
        (self.root / file).write_text(text)

    def changed(self, *edits):
        return SourceTree(self.root).changed([edit.read_edit(textwrap.dedent(text).strip("\n")) for text in edits])

    def expect_change(self, before, after, *edits, file="reference/shards.cpp"):
        text = (self.root / file).read_text()
        self.assertEqual(text.count(before), 1)
        self.assertEqual(self.changed(*edits), {file: text.replace(before, after)})

    def expect_error(self, problem, *edits):
        with self.assertRaisesRegex(edit.EditError, problem):
            self.changed(*edits)

    TAIL = "file: reference/shards.cpp\nin: Shard::size\nfind: divided(length(), options_.num_ranks)\nreplace: 0"

    def test_an_expression_is_replaced_in_its_function(self):
        self.expect_change("divided(length(), options_.num_ranks)", "0", self.TAIL)
        self.expect_change("num_ranks - 1)", "num_ranks)", "in: divided\nfind: (length + num_ranks - 1)\nreplace: (length + num_ranks)")
        self.expect_change("  place_ += steps;", "  ", "in: accel::Shard::advance\nsignature: (int steps)\nfind: place_ += steps;\nreplace:")

    def test_constants_initializers_and_classes_are_named_like_functions(self):
        self.expect_change("1 << 20", "1 << 10", "in: kLimit\nfind: 1 << 20\nreplace: 1 << 10")
        self.expect_change("std::move(order)", "order", "in: Shard::Shard\nfind: order_(std::move(order))\nreplace: order_(order)")
        self.write("reference/options.hpp", "struct Options {\n  int size = 1;\n};\n")
        for name in ("Options", "Options::size"):
            self.expect_change("= 1", "= 2", f"in: {name}\nfind: size = 1\nreplace: size = 2", file="reference/options.hpp")

    def test_braces_in_texts_and_comments_do_not_end_a_function(self):
        self.expect_change("text[0] == '}'", "false", "in: Shard::size\nfind: text[0] == '}'\nreplace: false")
        self.expect_change('R"({ "not": code } )"', '""', 'in: Shard::size\nfind: R"({ "not": code } )"\nreplace: ""')

    def test_a_moved_function_is_found(self):
        begin, end = SHARDS.index("int Shard::size"), SHARDS.index("void Shard::advance(int")
        self.write("reference/shards.cpp", SHARDS[:begin] + SHARDS[end:] + SHARDS[begin:end])
        self.expect_change("divided(length(), options_.num_ranks)", "0", self.TAIL)
        self.write("reference/shards.cpp", SHARDS[:begin] + SHARDS[end:])
        self.write("sim/sizes/shard_size.hpp", "namespace accel {\n" + SHARDS[begin:end] + "}\n")
        self.expect_change("divided(length(), options_.num_ranks)", "0", self.TAIL, file="sim/sizes/shard_size.hpp")
        (self.root / "reference/shards.cpp").unlink()
        self.expect_change("divided(length(), options_.num_ranks)", "0", self.TAIL, file="sim/sizes/shard_size.hpp")

    def test_the_expression_tells_functions_of_several_files_apart(self):
        self.write("sim/divided.cpp", "int divided(int length) { return length / 2; }\n")
        self.expect_change("length / 2", "length", "in: divided\nfind: length / 2\nreplace: length", file="sim/divided.cpp")
        self.expect_change("length / 2", "0", "file: sim/divided.cpp\nin: divided\nfind: length / 2\nreplace: 0", file="sim/divided.cpp")
        problem = "2 definitions of 'divided': reference/shards.cpp:12 'int divided.*sim/divided.cpp:1 'int divided"
        self.expect_error(problem, "in: divided\nfind: int\nreplace: long")

    @unittest.skipUnless(CLANG_FORMAT, "clang-format is missing")
    def test_a_source_may_be_formatted_with_another_width(self):
        edits = [self.TAIL, "in: Shard::advance\nsignature: const Position&\nfind: position.steps * options_.num_ranks + position.steps\nreplace: 0",
                 'in: Shard::Shard\nfind: "Shard: expected a size above 0, got {}; a longer text to fill the line"\nreplace: ""']  # fmt: skip
        expected = self.changed(*edits)["reference/shards.cpp"]
        for width in (40, 200):
            style = f"{{BasedOnStyle: Google, ColumnLimit: {width}, SortIncludes: Never}}"
            formatted = subprocess.run([CLANG_FORMAT, f"--style={style}"], input=SHARDS, capture_output=True, text=True, check=True).stdout
            self.assertNotEqual(formatted, SHARDS)
            self.write("reference/shards.cpp", formatted)
            self.assertTrue(cpp_tokens.is_same_code(self.changed(*edits)["reference/shards.cpp"], expected))

    def test_several_edits_change_one_or_several_files(self):
        self.write("sim/twice.cpp", "int twice(int a) { return 2 * a; }\n")
        changed = self.changed(self.TAIL, "in: divided\nfind: length + num_ranks\nreplace: length", "in: twice\nfind: 2 * a\nreplace: a")
        self.assertEqual(changed["sim/twice.cpp"], "int twice(int a) { return a; }\n")
        expected = SHARDS.replace("divided(length(), options_.num_ranks)", "0").replace("length + num_ranks", "length")
        self.assertEqual(changed["reference/shards.cpp"], expected)
        overlapping = "in: Shard::size\nfind: length(), options_.num_ranks\nreplace: 1, 1"
        self.expect_error("reference/shards.cpp: two changes overlap", self.TAIL, overlapping)

    def test_a_replacement_of_several_lines_keeps_its_indentation(self):
        self.expect_change("place_ += steps;", "if (steps > 0)\n  place_ = steps;\nelse\n  run();", """
            in: Shard::advance
            signature: int steps
            find:
              place_
                += steps;
            replace:
              if (steps > 0)
                place_ = steps;
              else
                run();
            """)  # fmt: skip

    def test_a_header_is_included_once_in_the_order_of_names(self):
        core, value = '\n#include "reference/core/errors.hpp"\n', '#include "reference/tree/value.hpp"\n'
        for header, before in (("reference/files/files.hpp", value), ("<limits>", core), ("<vector>", core)):
            line = f"#include {header}\n" if header[0] == "<" else f'#include "{header}"\n'
            text = SHARDS.replace(before, line + before).replace("1 << 20", "1")
            self.assertEqual(self.changed(f"in: kLimit\nfind: 1 << 20\nreplace: 1\ninclude: {header}"), {"reference/shards.cpp": text})
        self.expect_change("1 << 20", "1", "in: kLimit\nfind: 1 << 20\nreplace: 1\ninclude: reference/tree/value.hpp")

    def test_an_expression_that_occurs_twice_needs_its_number(self):
        second = "in: Shard::advance\nsignature: Position\nfind: position.steps\nreplace: 1"
        self.expect_error(r"Shard::advance \(reference/shards.cpp:30\) contains 'position.steps' 2 times \(lines 30, 30\)", second)
        self.expect_change("+ position.steps", "+ 1", second + "\noccurrence: 2")
        self.expect_error("2 times; expected occurrence 3", second + "\noccurrence: 3")

    def test_what_is_not_found_is_an_error_with_its_name(self):
        nothing = "no function, class or variable "
        self.expect_error(f"{nothing}'Shard::length' in reference/, backends/, sim/", "in: Shard::length\nfind: a\nreplace: b")
        self.expect_error(f"{nothing}'divided' with 'double' in its signature", "in: divided\nsignature: double\nfind: 1\nreplace: 2")
        longer = "in: Shard::size\nfind:\n  length()\n  * 2\nreplace: 1"
        self.expect_error(r"Shard::size \(reference/shards.cpp:20\) does not contain 'length\(\) \* 2'", longer)
        overloaded = "in: Shard::advance\nfind: place_\nreplace: b"
        self.expect_error("2 definitions of 'Shard::advance': .*'void Shard::advance.int steps.'; .*signature: PART", overloaded)

    def test_an_edit_is_read_strictly(self):
        right = "in: f\nfind: a\nreplace: b"
        wrong = ["in: f\nfind: a", "in: f\nfind:\nreplace: a", "find: a\nreplace: b", "in: f\nfind: a\n  b\nreplace: c"]
        wrong += [right + "\n" + line for line in ("where: c", "in: g", "occurrence: 0", "no key")]
        for text in wrong:
            with self.assertRaises(ValueError, msg=text):
                edit.read_edit(text)
        self.assertEqual(edit.read_edit(right), edit.Edit("f", "a", "b"))


if __name__ == "__main__":
    unittest.main()
