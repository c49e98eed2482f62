"""`@pytest.mark.ranks(4)` runs a test on 4 simulated ranks.

    @pytest.mark.ranks(4)
    def test_mean():
        accelerator = Accelerator(cpu=True)
        ...

The ranks are forked from pytest's process: what the test's module has imported, the test's parameters and its fixtures
are there already. A rank that fails, fails the test with its traceback; ranks that hang fail it with the diagnosis.
A test that every rank skips is skipped. Of a unittest.TestCase, each rank also runs setUp, tearDown and cleanups.
Further arguments are options of sim-run: `ranks(4, schedule="random", seed_schedule=7)`, and an option
without a value is `map_cuda=True`.
"""

import functools
import json
import os
import subprocess
import sys
import tempfile
import unittest

import pytest


# A pool of threads that is made before the fork would be missing in the ranks. Set here, since pytest imports each
# conftest.py, which may compute, before it configures plugins.
for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_name, "1")


def pytest_configure(config):
    config.addinivalue_line("markers", "ranks(number, **options): run the test on simulated ranks; see simranks")


def pytest_itemcollected(item):
    cls = getattr(item, "cls", None)
    if cls is not None and issubclass(cls, unittest.TestCase) and item.get_closest_marker("ranks"):
        item.runtest = functools.partial(_run_case_on_ranks, item)  # unittest calls no pytest_pyfunc_call


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem):
    if pyfuncitem.get_closest_marker("ranks") is None:
        return None
    names = pyfuncitem._fixtureinfo.argnames
    arguments = {name: pyfuncitem.funcargs[name] for name in names}
    _run_marked(pyfuncitem, lambda: pyfuncitem.obj(**arguments))
    return True


def _run_case_on_ranks(item):
    def body():
        result = _CaseResult()
        item.instance(result)
        result.raise_outcome()

    _run_marked(item, body)


def _run_marked(item, body):
    mark = item.get_closest_marker("ranks")
    if len(mark.args) != 1 or not isinstance(mark.args[0], int):
        pytest.fail("ranks: expected the number of ranks, as in @pytest.mark.ranks(4)", pytrace=False)
    num_ranks = mark.args[0]
    with _Outcomes() as outcomes:
        problem = run_on_ranks(lambda: outcomes.record(body), num_ranks, mark.kwargs, item.path)
        xfailed, skipped = outcomes.reasons()
    if xfailed:  # the other ranks may have failed for the same reason
        pytest.xfail(xfailed[0])
    if problem:
        pytest.fail(problem, pytrace=False)
    if len(skipped) == num_ranks:
        pytest.skip(skipped[0])


class _Outcomes:
    """What the ranks report to pytest's process, in a file that they inherit: why they skip the test, or expect it to fail."""

    def __enter__(self):
        self._file = tempfile.TemporaryFile()
        return self

    def __exit__(self, *_):
        self._file.close()

    def record(self, body):
        """Calls the test in a rank."""
        try:
            body()
        except pytest.xfail.Exception as outcome:
            self._write("xfail", outcome)
        except (pytest.skip.Exception, unittest.SkipTest) as outcome:
            self._write("skip", outcome)

    def _write(self, kind, outcome):
        os.write(self._file.fileno(), json.dumps([kind, str(outcome)]).encode() + b"\n")

    def reasons(self):
        self._file.seek(0)
        lines = [json.loads(line) for line in self._file]
        return [[reason for kind, reason in lines if kind == wanted] for wanted in ("xfail", "skip")]


class _CaseResult(unittest.TestResult):
    """The outcome of a unittest.TestCase as an exception."""

    def __init__(self):
        super().__init__()
        self._outcome = None

    def _keep(self, error):
        if self._outcome is None or isinstance(self._outcome, unittest.SkipTest):
            self._outcome = error

    def _keep_info(self, info):
        _, error, traceback = info
        while traceback is not None and "__unittest" in traceback.tb_frame.f_globals:
            traceback = traceback.tb_next
        self._keep(error.with_traceback(traceback))

    def addError(self, test, info):
        self._keep_info(info)

    addFailure = addError

    def addSubTest(self, test, subtest, info):
        if info is not None:
            self._keep_info(info)

    def addSkip(self, test, reason):
        self._keep(unittest.SkipTest(reason))

    def addExpectedFailure(self, test, info):
        self._keep(pytest.xfail.Exception("expectedFailure"))

    def addUnexpectedSuccess(self, test):
        self._keep(AssertionError("the test passed, but is marked as an expected failure"))

    def raise_outcome(self):
        if self._outcome is not None:
            raise self._outcome


class _Function:
    """A program of simranks.ranks that is a function of this process."""

    def __init__(self, body, source):
        self.run, self._source = body, str(source)

    def source(self):
        return self._source


def run_on_ranks(body, num_ranks, options, source):
    """Calls the function on simulated ranks. Returns what went wrong; "" if nothing did."""
    import simranks
    from simranks import channel
    from simranks.ranks import Problem, Ranks

    simranks.check_torch()
    try:
        area = channel.SharedArea.create(num_ranks)
        ranks = Ranks(_Function(body, source), area, request={"map_cuda": options.get("map_cuda", False)})
    except (Problem, RuntimeError) as problem:
        return str(problem)
    environment = {**os.environ, "ACCEL_STARTER": str(os.getpid())}
    words = [simranks.sim_run(), "attach", str(area.descriptor), "--ranks", str(num_ranks)]
    for name, value in options.items():
        flag = f"--{name.replace('_', '-')}"
        for one in value if isinstance(value, (list, tuple)) else [value]:
            if one is not False:
                words += [flag] if one is True else [flag, str(one)]
    with tempfile.TemporaryFile() as text:
        start = {"pass_fds": [area.descriptor], "stdin": subprocess.DEVNULL, "stderr": text, "env": environment}
        with ranks, subprocess.Popen(words, **start) as engine:
            try:
                ranks.supervise(engine)
            except BaseException:
                engine.kill()
                raise
        text.seek(0)
        said = text.read().decode(errors="replace").strip()
    if engine.returncode != 0:
        return said or f"sim-run ended with code {engine.returncode}"
    if said:
        print(said, file=sys.stderr)
    return ""
