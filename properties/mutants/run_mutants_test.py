"""Runs the runner on a project of one source: python3 -m unittest run_mutants_test"""
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest

HERE = pathlib.Path(__file__).resolve().parent
SOURCE = """#include <cstdio>
int sum(int a, int b) { return a + b; }
int main() {
  std::puts("[==========] Running 1 test from 1 test suite.");
  if (sum(2, 1) == 3) return 0;
  std::puts("sum.cpp:5: Failure\\nExpected 3\\n[  FAILED  ] SumTest.Adds");
  return 1;
}
"""
CMAKE = """cmake_minimum_required(VERSION 3.25)
project(sums CXX)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/bin)
enable_testing()
add_executable(sum_test reference/sum.cpp)
add_test(NAME sum_test COMMAND sum_test)
add_test(NAME product_test COMMAND product_test)
add_library(products STATIC reference/double.cpp)
add_executable(product_test tests/other_test.cpp tests/product_test.cpp)
target_link_libraries(product_test products)
include_directories(.)
"""
# A header that a source of the library includes too. The other source of the test program contains the unchanged function, which
# a linker would prefer.
HEADER = "inline int product(int a, int b) { return a * b; }\n"
DOUBLE = '#include "reference/product.hpp"\nint twice(int a) { return product(2, a); }\n'
OTHER_TEST = '#include "reference/product.hpp"\nint other() { return product(1, 1); }\n'
PRODUCT_TEST = """#include <cstdio>
#include "reference/product.hpp"
int twice(int a);
int main() {
  std::puts("[==========] Running 1 test from 1 test suite.");
  if (product(2, 3) != 6 || twice(2) != 4) std::puts("[  FAILED  ] ProductTest.Multiplies");
  return product(2, 3) != 6 || twice(2) != 4;
}
"""
AREAS = """AREAS = {"sums": ["sum_test"]}
GROUPS = {"sums": {"reference/sum.cpp": ["sum_test"]}, "products": {"reference/product.hpp": ["tests/product_test.cpp"]}}
def group_of(file):
    return "products" if file.endswith(".hpp") else "sums"
"""
FAULTS = {"crash": "__builtin_trap(), 0", "difference": "a - b", "equal": "b + a", "error": "a + c", "hang": "({ for (;;) {} }), 0"}


def mutant_of(expression):
    return f"what: The sum is {expression}.\n\nin: sum\nfind: a + b\nreplace: {expression}\n"


@unittest.skipUnless(shutil.which("cmake") and shutil.which("ninja") and shutil.which("git"), "cmake, ninja or git is missing")
class RunTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = pathlib.Path(folder.name)
        texts = {"CMakeLists.txt": CMAKE, "reference/sum.cpp": SOURCE, ".gitignore": "/build/\n"}
        texts |= {"reference/product.hpp": HEADER, "reference/double.cpp": DOUBLE, "tests/product_test.cpp": PRODUCT_TEST}
        texts |= {"tests/other_test.cpp": OTHER_TEST}
        texts |= {f"properties/mutants/{file.name}": file.read_text() for file in HERE.glob("*.py")}
        texts |= {f"properties/mutants/sums/{name}.mutant": mutant_of(text) for name, text in FAULTS.items()}
        texts["properties/mutants/areas.py"] = AREAS
        for name, text in texts.items():
            (self.root / name).parent.mkdir(parents=True, exist_ok=True)
            (self.root / name).write_text(text)
        commit = ["-c", "user.name=test", "-c", "user.email=test@example.org", "commit", "--quiet", "-m", "all"]
        for command in (["init", "--quiet"], ["add", "."], commit):
            subprocess.run(["git", "-C", str(self.root), *command], check=True, capture_output=True)
        configure = ["cmake", "-G", "Ninja", "-S", str(self.root), "-B", str(self.root / "build/release")]
        subprocess.run(configure, check=True, capture_output=True)

    def start(self, *arguments):
        command = [sys.executable, "-B", str(self.root / "properties/mutants/run_mutants.py"), *arguments]
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def run_mutants(self, *arguments):
        process = self.start(*arguments)
        output, error = process.communicate(timeout=100)
        return process.returncode, output, error

    def expect_sources_unchanged(self):
        self.assertEqual((self.root / "reference/sum.cpp").read_text(), SOURCE)

    def test_each_kind_of_fault_gets_its_result_and_earlier_results_are_kept(self):
        self.assertEqual(self.run_mutants("sums", "difference")[0], 0)  # 100 % killed
        code, output, _ = self.run_mutants("sums", "crash", "equal", "error")
        self.assertEqual(code, 1)
        self.assertIn("score 0.0 %", output)
        entries = json.loads((self.root / "reports/results/mutants.json").read_text())["patches"]
        expected = {"crash": "crash", "difference": "assertion", "equal": "survived", "error": "does not compile", "hang": ""}
        self.assertEqual({entry["name"]: entry["result"] for entry in entries}, expected)
        page = (self.root / "reports/mutants.md").read_text()
        self.assertIn("| difference | The sum is a - b. | killed by assertion | `SumTest.Adds` |", page)
        self.expect_sources_unchanged()
        bin_folder = self.root / "build/release/bin"
        self.assertEqual(subprocess.run([bin_folder / "sum_test"], capture_output=True).returncode, 0)  # built without a mutant

    def test_an_interrupted_run_restores_the_sources(self):
        process = self.start("sums", "hang")
        source = self.root / "reference/sum.cpp"
        deadline = time.monotonic() + 60
        while source.read_text() == SOURCE and time.monotonic() < deadline:
            time.sleep(0.05)
        os.kill(process.pid, signal.SIGTERM)
        process.communicate(timeout=60)
        self.assertEqual(process.returncode, 143)
        self.expect_sources_unchanged()

    def test_generated_mutants_are_reported_by_group_and_survivors_can_be_explained(self):
        code, output, error = self.run_mutants("--generate", "sums", "--limit", "3")
        self.assertEqual(code, 0)
        self.assertIn("3 mutants", output)
        seed = re.search(r"\./dev mutants --generate sums --limit 3 --seed (\d+)", error)[1]
        code, output, _ = self.run_mutants("--generate", "products", "--seed", "1")
        self.assertIn("1 mutants: 1 assertion", output)
        page = (self.root / "reports/mutants.md").read_text()
        self.assertIn("## Generated changes of sums", page)
        self.assertIn(f"Command: `./dev mutants --generate sums --limit 3 --seed {seed}`.", page)
        self.assertIn("## Generated changes of products", page)
        self.assertEqual(self.run_mutants("--generate", "sums", "--limit", "3", "--seed", seed, "--list")[1].count("\n"), 3)
        self.expect_sources_unchanged()

    def test_a_mutant_of_a_header_changes_neither_the_checkout_nor_the_build(self):
        subprocess.run(["cmake", "--build", str(self.root / "build/release")], check=True, capture_output=True)
        programs = [self.root / "build/release/bin/product_test", self.root / "build/release/libproducts.a"]
        before = [program.read_bytes() for program in programs]
        _, output, _ = self.run_mutants("--generate", "products", "--seed", "1")
        self.assertIn("1 mutants: 1 assertion", output)
        self.assertEqual([program.read_bytes() for program in programs], before)
        self.assertEqual((self.root / "reference/product.hpp").read_text(), HEADER)
        self.assertEqual(list((self.root / "build/release/mutants/include").rglob("*.hpp")), [])

    def test_a_written_mutant_of_a_header_is_built_like_others(self):
        text = "what: A product is a sum.\ntests: product_test\n\nin: product\nfind: a * b\nreplace: a + b\n"
        (self.root / "properties/mutants/sums/product.mutant").write_text(text)
        self.assertIn("1 mutants: 1 assertion", self.run_mutants("sums", "product")[1])
        self.assertEqual((self.root / "reference/product.hpp").read_text(), HEADER)

    def test_check_finds_what_does_not_compile_or_apply(self):
        (self.root / "properties/mutants/sums/stale.mutant").write_text(mutant_of("a").replace("in: sum", "in: total"))
        code, output, _ = self.run_mutants("--check")
        self.assertEqual(code, 1)
        self.assertIn("sums/error: reference/sum.cpp does not compile", output)
        self.assertIn("sums/stale: no function, class or variable 'total' in reference/", output)
        self.assertIn("4 of 6 mutants apply and compile", output)
        code, _, error = self.run_mutants("sums", "stale")
        self.assertEqual(code, 2)
        self.assertIn("sums/stale: no function, class or variable 'total'", error)

    def test_a_changed_work_tree_a_wrong_name_and_a_failing_test_are_refused(self):
        self.assertEqual(self.run_mutants("products")[0], 2)
        self.assertIn("expected some of crash", self.run_mutants("sums", "diference")[2])
        source = self.root / "reference/sum.cpp"
        source.write_text(SOURCE.replace("a + b", "a + b + 1"))
        code, _, error = self.run_mutants("sums")
        self.assertEqual(code, 2)
        self.assertIn("the work tree has changes: reference/sum.cpp", error)
        subprocess.run(["git", "-C", str(self.root), "-c", "user.name=t", "-c", "user.email=t@t", "commit", "-qam", "wrong"], check=True)
        code, _, error = self.run_mutants("sums", "crash")
        self.assertEqual(code, 2)
        self.assertIn("sum_test fails without a mutant", error)


if __name__ == "__main__":
    unittest.main()
