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
    """A program of accel_sim.launch that is a function of this process."""

    def __init__(self, body, source):
        self.run, self._source = body, str(source)

    def source(self):
        return self._source


def run_on_ranks(body, num_ranks, options, source):
    """Calls the function on simulated ranks. Returns what went wrong; "" if nothing did."""
    import accel_sim
    from accel_sim import launch

    accel_sim.check_torch()
    from accel_sim import _native, backend, observation

    try:
        launch.check_memory(num_ranks)
        launch.warm_up_once()
        launch.check_threads()
        area = _native.SharedArea.create(num_ranks)
    except (launch.Problem, RuntimeError) as problem:
        return str(problem)
    store = os.memfd_create("accel-store", 0)
    program, port = _Function(body, source), launch.free_port()
    owners = launch.owners_of(program)

    def install():
        backend.install(f"/proc/self/fd/{store}")
        observation.install()

    words = [accel_sim.sim_run(), "attach", str(area.descriptor), "--ranks", str(num_ranks)]
    for name, value in options.items():
        words += [f"--{name.replace('_', '-')}", str(value)]
    with tempfile.TemporaryFile() as text:
        engine = subprocess.Popen(words, pass_fds=[area.descriptor], stdin=subprocess.DEVNULL, stderr=text)
        sys.stdout.flush()
        sys.stderr.flush()
        pids = launch.fork_ranks(program, area, port, owners, install=install)
        launch.supervise(pids, area, engine)
        code = engine.wait()
        text.seek(0)
        said = text.read().decode(errors="replace").strip()
    os.close(store)
    if code != 0:
        return said or f"sim-run ended with code {code}"
    if said:
        print(said, file=sys.stderr)
    return ""
