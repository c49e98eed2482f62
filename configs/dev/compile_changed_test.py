"""The sources that ./dev clang compiles: python3 -m unittest compile_changed_test"""
import json
import pathlib
import subprocess
import sys
import tempfile
import unittest

SCRIPT = pathlib.Path(__file__).with_name("compile_changed.py")

# A compiler that fails for a source without the word `valid`, and checks that it is asked for no object file.
COMPILER = """#!/bin/sh
case " $* " in *" -o "* | *" -c "*) echo "unexpected: $*"; exit 2 ;; *" -fsyntax-only "*) ;; esac
for file; do :; done
grep -q valid "$file" || { echo "error in $file"; exit 1; }
"""
FILES = {
    "base/leaf.hpp": "#pragma once\n",
    "base/middle.hpp": '#include "base/leaf.hpp"\n',
    "public/lib/entry.hpp": '#include "base/middle.hpp"\n',
    "base/near.hpp": "// #include is only read at the begin of a line\n",
    "direct.cpp": '#include "base/leaf.hpp"\n// valid\n',
    "indirect.cpp": "#  include <lib/entry.hpp>\n#include <vector>\n// valid\n",
    "base/sibling.cpp": '#include "near.hpp"\n// valid\n',
    "alone.cpp": '// #include "base/leaf.hpp"\n// valid\n',
    "broken.cpp": '#include "base/near.hpp"\n',
    "gpu/outside.cpp": "// no target of the preset compiles it\n",
}


class CompileChangedTest(unittest.TestCase):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.root = pathlib.Path(temporary.name).resolve()
        for name, text in FILES.items():
            self.write(name, text)
        self.write("compiler", COMPILER).chmod(0o755)
        sources = [name for name in FILES if name.endswith(".cpp") and not name.startswith("gpu/")]
        entries = [self.entry(name) for name in [*sources, "alone.cpp", "build/version.cpp"]]
        self.write("build/compile_commands.json", json.dumps(entries))

    def write(self, name, text):
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    def entry(self, name):
        source = self.root / name
        folders = f"-I{self.root} -I{self.root}/public -isystem /usr/include"
        command = f"../compiler -DX=1 {folders} -o x/{name}.o -c {source}"
        return {"directory": str(self.root / "build"), "command": command, "file": str(source)}

    def run_script(self, *changed):
        words = [sys.executable, "-B", SCRIPT, "--build", "build", "--jobs", "2", *changed]
        return subprocess.run(words, cwd=self.root, capture_output=True, text=True, check=False)

    def compiled(self, *changed):
        run = self.run_script(*changed)
        self.assertEqual(run.returncode, 0, run.stderr)
        return sorted(line.split()[2] for line in run.stderr.splitlines() if line.startswith("[dev] ok"))

    def test_a_changed_source_is_compiled_once(self):
        self.assertEqual(self.compiled("alone.cpp"), ["alone.cpp"])

    def test_sources_that_include_a_changed_header_are_compiled(self):
        self.assertEqual(self.compiled("base/leaf.hpp"), ["direct.cpp", "indirect.cpp"])
        self.assertEqual(self.compiled("base/middle.hpp"), ["indirect.cpp"])
        self.assertEqual(self.compiled("public/lib/entry.hpp", "alone.cpp"), ["alone.cpp", "indirect.cpp"])

    def test_a_source_that_does_not_compile_is_reported_with_its_errors(self):
        run = self.run_script("base/near.hpp")
        self.assertEqual((run.returncode, run.stdout), (1, "1 compiled, 1 failed\n"))
        self.assertIn("[dev] FAILED broken.cpp\n", run.stderr)
        self.assertIn(f"error in {self.root}/broken.cpp\n", run.stderr)
        self.assertIn("[dev] ok     base/sibling.cpp\n", run.stderr)

    def test_a_source_of_no_target_is_named(self):
        run = self.run_script("gpu/outside.cpp")
        self.assertEqual((run.returncode, run.stdout), (0, "0 compiled, 0 failed\n"))
        self.assertIn("[dev] not compiled by this preset: gpu/outside.cpp\n", run.stderr)


if __name__ == "__main__":
    unittest.main()
