"""JUnit XML of ctest, pytest and live.py, and the last lines of ./dev test: python3 -m unittest junit_test"""
import pathlib
import subprocess
import sys
import tempfile
import unittest

import junit

# As ctest 3.25 writes it.
OF_CTEST = """<?xml version="1.0" encoding="UTF-8"?>
<testsuite name="release" tests="6" failures="2" disabled="1" skipped="2">
  <testcase name="data_test" classname="data_test" time="0.2" status="run"><system-out>[       OK ] A.B (0 ms)
</system-out></testcase>
  <testcase name="laws" classname="laws" time="9" status="fail"><failure message=""/><system-out>Timeout</system-out></testcase>
  <testcase name="machines_test" classname="machines_test" time="0" status="notrun">
    <skipped message="SKIP_RETURN_CODE=4"/><system-out>no network namespaces</system-out></testcase>
  <testcase name="absent" classname="absent" time="0" status="notrun"><skipped message="Unable to find executable"/></testcase>
  <testcase name="off" classname="off" time="0" status="disabled"><system-out>Disabled</system-out></testcase>
  <testcase name="rest" classname="rest" time="0" status="run"/>
</testsuite>
"""
OF_PYTEST = """<testsuites><testsuite name="pytest" errors="1" failures="1" skipped="1" tests="4">
  <testcase classname="ddp_test.TestRanks" name="test_sum" time="1"/>
  <testcase classname="ddp_test" name="test_hang" time="1"><failure message="assert 1 == 2">trace</failure></testcase>
  <testcase classname="ddp_test" name="test_setup" time="1"><error message="failed on setup">trace</error></testcase>
  <testcase classname="ddp_test" name="test_gpu" time="1"><skipped type="pytest.skip" message="no GPU"/></testcase>
</testsuite></testsuites>
"""


class JUnitTest(unittest.TestCase):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.folder = pathlib.Path(temporary.name)

    def write(self, name, text):
        path = self.folder / name
        path.write_text(text)
        return str(path)

    def summary(self, *paths):
        script = pathlib.Path(junit.__file__).with_name("summary.py")
        return subprocess.run([sys.executable, "-B", script, *paths], capture_output=True, text=True, check=False)

    def problem_of(self, path):
        with self.assertRaises(junit.JUnitError) as raised:
            junit.read(path)
        return str(raised.exception)

    def test_every_outcome_of_ctest_is_read(self):
        cases = junit.read(self.write("junit.xml", OF_CTEST))
        self.assertEqual({case.name: case.outcome for case in cases},
                         {"data_test": "passed", "laws": "failed", "machines_test": "skipped", "absent": "failed",
                          "off": "skipped", "rest": "passed"})  # fmt: skip
        self.assertEqual(cases[0].output, "[       OK ] A.B (0 ms)\n")

    def test_every_outcome_of_pytest_is_read(self):
        cases = junit.read(self.write("junit.xml", OF_PYTEST))
        self.assertEqual({case.name: case.outcome for case in cases},
                         {"ddp_test.TestRanks.test_sum": "passed", "ddp_test.test_hang": "failed",
                          "ddp_test.test_setup": "failed", "ddp_test.test_gpu": "skipped"})  # fmt: skip

    def test_an_error_names_the_file_and_the_problem(self):
        self.assertEqual(self.problem_of("/nowhere/junit.xml"), "/nowhere/junit.xml: No such file or directory")
        cut = self.write("cut.xml", OF_CTEST[:300])
        self.assertRegex(self.problem_of(cut), f"^{cut}: .*line 5")
        page = self.write("page.xml", "<html/>")
        self.assertEqual(self.problem_of(page), f"{page}: its root is <html>, expected <testsuites> or <testsuite>")
        unnamed = self.write("unnamed.xml", "<testsuite><testcase/></testsuite>")
        self.assertEqual(self.problem_of(unnamed), f"{unnamed}: a <testcase> lacks the attribute 'name'")

    def test_the_summary_counts_all_files_and_lists_what_was_skipped(self):
        run = self.summary(self.write("a.xml", OF_CTEST), self.write("b.xml", OF_PYTEST))
        self.assertEqual(run.stdout, "3 passed, 4 failed\n")
        self.assertEqual(run.stderr.splitlines(), [f"[dev] skipped on this machine: {name}"
                                                   for name in ("machines_test", "off", "ddp_test.test_gpu")])  # fmt: skip
        self.assertEqual(run.returncode, 1)

    def test_the_summary_lists_the_slowest_tests_as_the_table_of_slow_tests_does(self):
        times = {f"t{seconds}": seconds for seconds in range(26, 56)} | {"odd": "soon", "slowest": "207.46"}
        cases = "".join(f'<testcase name="{name}" time="{time}"/>' for name, time in times.items())
        run = self.summary(self.write("a.xml", f"<testsuite>{cases}</testsuite>"))
        self.assertEqual(run.stdout, "32 passed, 0 failed\n")
        expected = ["slowest 207"] + [f"t{seconds} {seconds}" for seconds in range(55, 36, -1)]
        self.assertEqual(run.stderr.splitlines(), ["[dev] tests above 30 s, which tests/slow_tests.txt lists:"]
                                                  + [f"[dev]   {line}" for line in expected])  # fmt: skip

    def test_the_summary_succeeds_only_if_a_test_passed_and_none_failed(self):
        passed = '<testsuite><testcase name="a"/></testsuite>'
        for text, expected, code in ((passed, "1 passed, 0 failed\n", 0), ("<testsuite/>", "0 passed, 0 failed\n", 1)):
            run = self.summary(self.write("a.xml", text))
            self.assertEqual((run.stdout, run.stderr, run.returncode), (expected, "", code))
        self.assertEqual((self.summary().stdout, self.summary().returncode), ("0 passed, 0 failed\n", 1))

    def test_a_file_that_cannot_be_read_is_a_failed_test(self):
        run = self.summary(self.write("a.xml", '<testsuite><testcase name="a"/></testsuite>'), "/nowhere/b.xml")
        self.assertEqual((run.stdout, run.returncode), ("1 passed, 1 failed\n", 1))
        self.assertRegex(run.stderr, r"^\[dev\] error: /nowhere/b\.xml: No such file or directory; expected JUnit XML")


if __name__ == "__main__":
    unittest.main()
