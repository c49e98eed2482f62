"""`@pytest.mark.ranks`."""

import os
import re
import subprocess
import sys

from conftest import run

TESTS = '''
import os, pytest, torch, torch.distributed as dist
from accelerate import Accelerator

@pytest.mark.ranks(4)
def test_passes():
    accelerator = Accelerator(cpu=True)
    total = accelerator.reduce(torch.ones(3) * accelerator.process_index, "sum")
    assert accelerator.num_processes == 4 and total.tolist() == [6, 6, 6]

@pytest.mark.ranks(4)
def test_fails():
    accelerator = Accelerator(cpu=True)
    assert accelerator.process_index != 2, "rank two"
    accelerator.wait_for_everyone()

@pytest.mark.ranks(2)
def test_hangs():
    accelerator = Accelerator(cpu=True)
    if accelerator.is_main_process:
        dist.barrier()

@pytest.mark.ranks(4)
@pytest.mark.parametrize("n", [1, 5])
def test_parameters(n, tmp_path):
    accelerator = Accelerator(cpu=True)
    (tmp_path / str(accelerator.process_index)).write_text(str(n))
    accelerator.wait_for_everyone()
    assert [file.read_text() for file in tmp_path.iterdir()] == [str(n)] * 4

@pytest.mark.ranks(3, schedule="random", seed_schedule=7)
def test_options():
    dist.init_process_group("gloo")
    dist.barrier()

@pytest.mark.ranks(2, schedul="random")
def test_wrong_option():
    pass

@pytest.mark.ranks("two")
def test_wrong_number():
    pass

@pytest.fixture(scope="session")
def folder():
    import tempfile
    with tempfile.TemporaryDirectory() as path:
        yield path

@pytest.mark.ranks(2)
def test_uses_a_folder_of_the_session(folder):
    assert os.path.isdir(folder)

def test_plain(folder):
    assert not dist.is_initialized()
    assert os.path.isdir(folder)  # the ranks that have ended did not remove it
'''

HANGS = '''
import time, pytest

@pytest.mark.ranks(2)
def test_sleeps():
    print("sleeping", flush=True)
    time.sleep(60)
'''

OUTCOMES = '''
import os, unittest, pytest, torch, torch.distributed as dist

def total():
    dist.init_process_group("gloo")
    value = torch.ones(1)
    dist.all_reduce(value)
    return value.item()

@pytest.mark.ranks(2)
def test_skips():
    pytest.skip("not here")

@pytest.mark.ranks(2)
def test_skips_by_unittest():
    raise unittest.SkipTest("not here either")

@pytest.mark.ranks(2)
def test_skips_on_one_rank():
    if os.environ["RANK"] == "1":
        pytest.skip("one is enough")

@pytest.mark.ranks(2)
def test_is_expected_to_fail():
    dist.init_process_group("gloo")
    if dist.get_rank() == 0:
        pytest.xfail("known")
    dist.barrier()

class Case(unittest.TestCase):
    def setUp(self):
        self.total = total()

    def tearDown(self):
        with open(os.environ["TORN_DOWN"], "a") as file:
            file.write(f"{self._testMethodName} {os.getpid()}\\n")

    @pytest.mark.ranks(2)
    def test_passes(self):
        self.assertEqual(self.total, 2)

    @pytest.mark.ranks(2)
    def test_fails_on_one_rank(self):
        with self.subTest("inner"):
            self.assertEqual(dist.get_rank(), 0, "rank one")

    @pytest.mark.ranks(2)
    def test_skips(self):
        self.skipTest("unavailable")

    @pytest.mark.ranks(2)
    @unittest.expectedFailure
    def test_is_expected_to_fail(self):
        self.assertEqual(self.total, 3)

@pytest.mark.ranks(3)
class MarkedCase(unittest.TestCase):
    def test_passes(self):
        self.assertEqual(total(), 3)
'''


def test_outcomes_of_ranks_are_those_of_the_test(tmp_path, no_leftovers):
    (tmp_path / "test_it.py").write_text(OUTCOMES)
    torn_down = tmp_path / "torn_down"
    words = [sys.executable, "-m", "pytest", "-q", "-rsx", "-p", "no:cacheprovider", tmp_path / "test_it.py"]
    done = run(words, TORN_DOWN=str(torn_down))
    assert "1 failed, 3 passed, 3 skipped, 2 xfailed" in done.output, done.output
    assert "sim-run: rank 1: AssertionError: 1 != 0 : rank one" in done.output, done.output
    assert "not here" in done.output and "not here either" in done.output and "known" in done.output, done.output
    processes = {line for line in torn_down.read_text().splitlines() if line.startswith("test_passes ")}
    assert len(processes) == 2


def test_marked_tests_run_on_ranks(tmp_path, no_leftovers):
    (tmp_path / "test_it.py").write_text(TESTS)
    done = run([sys.executable, "-m", "pytest", "-q", "--durations=0", "-p", "no:cacheprovider", tmp_path / "test_it.py"])
    assert "4 failed, 6 passed" in done.output, done.output
    assert "sim-run: rank 2: AssertionError: rank two" in done.output
    assert 'test_it.py", line 14, in test_fails' in done.output
    assert "rank 1 has ended its program, before any collective" in done.output
    assert "--schedul: unknown option" in done.output
    assert "ranks: expected the number of ranks" in done.output
    print("seconds:", re.findall(r"([0-9.]+)s call .*::(test_\w+(?:\[\d\])?)", done.output))


def test_a_conftest_that_computes_with_threads(tmp_path, no_leftovers):
    """pytest imports it before it configures plugins; the pools of numpy and torch would be missing in forked ranks."""
    (tmp_path / "conftest.py").write_text(
        "import numpy, torch\n"
        "numpy.ones((600, 600)) @ numpy.ones((600, 600))\n"
        "torch.ones(600, 600) @ torch.ones(600, 600)\n"
    )
    (tmp_path / "test_sum.py").write_text(
        "import numpy, pytest, torch, torch.distributed as dist\n"
        "@pytest.mark.ranks(2)\n"
        "def test_sum():\n"
        "    dist.init_process_group('gloo')\n"
        "    total = torch.ones(600, 600) @ torch.from_numpy(numpy.ones((600, 600)) @ numpy.ones((600, 600))).float()\n"
        "    dist.all_reduce(total)\n"
        "    assert total[0, 0] == 2 * 600 * 600\n"
    )
    environment = {name: value for name, value in os.environ.items() if not name.endswith("_NUM_THREADS")}
    done = subprocess.run([sys.executable, "-m", "pytest", "-q", tmp_path], capture_output=True, text=True, env=environment)
    assert "1 passed" in done.stdout, done.stdout


def test_nothing_outlives_a_killed_pytest(tmp_path, no_leftovers):
    (tmp_path / "test_it.py").write_text(HANGS)
    words = [sys.executable, "-m", "pytest", "-q", "-s", "-p", "no:cacheprovider", str(tmp_path / "test_it.py")]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
    while "sleeping" not in process.stdout.readline():
        assert process.poll() is None
    process.kill()
    process.wait()
