"""`@pytest.mark.ranks(4)` runs a test on 4 simulated ranks.

    @pytest.mark.ranks(4)
    def test_mean():
        accelerator = Accelerator(cpu=True)
        ...

The ranks are forked from pytest's process: what the test's module has imported, the test's parameters and its fixtures
are there already. A rank that fails, fails the test with its traceback; ranks that hang fail it with the diagnosis.
Further arguments are options of sim-run: `ranks(4, schedule="random", seed_schedule=7)`.
"""

import os
import subprocess
import sys
import tempfile

import pytest


def pytest_configure(config):
    config.addinivalue_line("markers", "ranks(number, **options): run the test on simulated ranks; see accel_sim")
    # A thread pool made before the fork would hang the ranks.
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ.setdefault(name, "1")


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem):
    mark = pyfuncitem.get_closest_marker("ranks")
    if mark is None:
        return None
    if len(mark.args) != 1 or not isinstance(mark.args[0], int):
        pytest.fail("ranks: expected the number of ranks, as in @pytest.mark.ranks(4)", pytrace=False)
    names = pyfuncitem._fixtureinfo.argnames
    arguments = {name: pyfuncitem.funcargs[name] for name in names}
    problem = run_on_ranks(lambda: pyfuncitem.obj(**arguments), mark.args[0], mark.kwargs, pyfuncitem.path)
    if problem:
        pytest.fail(problem, pytrace=False)
    return True


class _Function:
    """A program of accel_sim.ranks that is a function of this process."""

    def __init__(self, body, source):
        self.run, self._source = body, str(source)

    def source(self):
        return self._source


def run_on_ranks(body, num_ranks, options, source):
    """Calls the function on simulated ranks. Returns what went wrong; "" if nothing did."""
    import accel_sim
    from accel_sim import channel
    from accel_sim.ranks import Problem, Ranks

    accel_sim.check_torch()
    try:
        area = channel.SharedArea.create(num_ranks)
        ranks = Ranks(_Function(body, source), area)
    except (Problem, RuntimeError) as problem:
        return str(problem)
    environment = {**os.environ, "ACCEL_STARTER": str(os.getpid())}
    words = [accel_sim.sim_run(), "attach", str(area.descriptor), "--ranks", str(num_ranks)]
    for name, value in options.items():
        words += [f"--{name.replace('_', '-')}", str(value)]
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
