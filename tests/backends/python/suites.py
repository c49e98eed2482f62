"""Runs test suites of other projects on simulated ranks and on real processes over Gloo, and prints how they differ:

    python suites.py FOLDER [NAME ...]

FOLDER receives the projects, unless they are there. Needs pytest and what the projects' tests import. The numbers in
reports/python_suites.md are those of this program.
"""

import os
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree
from dataclasses import dataclass, field
from pathlib import Path

import simranks

LIMIT = int(os.environ.get("ACCEL_SUITE_SECONDS", "1800"))  # for one suite

# The tests of torch.testing, whose processes are forked instead of spawned: a test takes seconds less.
TORCH_TESTS = '''
import torch
from torch.testing._internal.distributed.distributed_test import DistributedTest, TestDistBackend

class TestDistBackendWithFork(TestDistBackend, DistributedTest._DistTestBase):
    def setUp(self):
        super().setUp()
        self._start_processes(torch.multiprocessing.get_context("fork").Process)
'''


@dataclass
class Suite:
    words: list  # of pytest
    repository: str = ""
    folder: str = ""  # of the tests, in that of the project
    environment: dict = field(default_factory=dict)


SUITES = {
    "torch": Suite(["test_torch.py"], environment={"BACKEND": "gloo", "WORLD_SIZE": "2"}),
    "accelerate": Suite(
        [f"tests/test_{name}.py" for name in ("cpu", "grad_sync", "scheduler", "metrics", "multidevice")],
        "https://github.com/huggingface/accelerate",
    ),
    "torchmetrics": Suite(
        ["unittests/bases/test_ddp.py"],
        "https://github.com/Lightning-AI/torchmetrics", "tests", {"USE_PYTEST_POOL": "1"},
    ),
    "torcheval": Suite(
        ["tests/metrics/test_toolkit.py", "tests/metrics/test_synclib.py"], "https://github.com/pytorch/torcheval",
    ),
    "pytorch-metric-learning": Suite(
        ["tests/utils/test_distributed.py"], "https://github.com/KevinMusgrave/pytorch-metric-learning",
        environment={"TEST_DEVICE": "cpu", "TEST_DTYPES": "float32"},
    ),
}


def prepare(folder, name):
    """Returns the folder to run the suite in."""
    suite, place = SUITES[name], folder / name
    if suite.repository and not place.exists():
        subprocess.run(["git", "clone", "-q", "--depth", "1", suite.repository, place], check=True)
    place.mkdir(exist_ok=True)
    if name == "torch":
        (place / "test_torch.py").write_text(TORCH_TESTS)
    return place / suite.folder


def run(folder, name, prefix):
    """Returns by test: the outcome and the error; and the seconds. What an interrupted run has not reported is missing."""
    suite = SUITES[name]
    with tempfile.TemporaryDirectory() as temporary:
        report = Path(temporary) / "report.xml"
        (Path(temporary) / "barrier").touch()
        words = [*prefix, sys.executable, "-m", "pytest", "-q", "-p", "no:warnings",
                 f"--junitxml={report}", *suite.words]
        paths = [str(folder / "src"), str(folder), str(folder.parent / "src"), *os.environ.get("PYTHONPATH", "").split(":")]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "TEMP_DIR": temporary,
                       "PYTHONPATH": ":".join(path for path in paths if path), **suite.environment}
        started = time.monotonic()
        log = folder / f"{'simulated' if prefix else 'real'}.log"
        with open(log, "w", encoding="utf-8") as file:
            try:
                subprocess.run(words, cwd=folder, env=environment, stdout=file, stderr=file, timeout=LIMIT, check=False)
            except subprocess.TimeoutExpired:
                print(f"{name}: not finished after {LIMIT} s, see {log}", file=sys.stderr)
        seconds = time.monotonic() - started
        return read(report) if report.exists() else {}, seconds


def read(report):
    outcomes = {}
    for case in xml.etree.ElementTree.parse(report).iter("testcase"):
        children = {child.tag: child for child in case}
        problem = children.get("failure", children.get("error"))
        outcome = "failed" if problem is not None else "skipped" if "skipped" in children else "passed"
        text = "" if problem is None else problem.text or problem.get("message", "")
        lines = [line.removeprefix("E").strip() for line in text.splitlines() if "Error" in line]
        outcomes[f"{case.get('classname').rpartition('.')[2]}::{case.get('name')}"] = outcome, lines[-1] if lines else ""
    return outcomes


def describe(outcomes, seconds):
    count = [sum(outcome == wanted for outcome, _ in outcomes.values()) for wanted in ("passed", "failed", "skipped")]
    return f"{count[0]} passed, {count[1]} failed, {count[2]} skipped | {seconds:.0f} s"


def main(words):
    folder, names = Path(words[0]).absolute(), words[1:] or list(SUITES)
    folder.mkdir(exist_ok=True)
    print("| suite | simulated | time | real processes | time |\n|---|---|---|---|---|")
    differences = []
    for name in names:
        place = prepare(folder, name)
        simulated, seconds = run(place, name, [simranks.sim_run(), "--"])
        real, real_seconds = run(place, name, [])
        print(f"| {name} | {describe(simulated, seconds)} | {describe(real, real_seconds)} |", flush=True)
        for test in sorted({*simulated, *real}):
            ours, theirs = simulated.get(test, ("missing", "")), real.get(test, ("missing", ""))
            if ours[0] != theirs[0] or ours[0] == "failed":
                differences.append((name, test, ours, theirs))
    print("\n| suite | test | simulated | real processes |\n|---|---|---|---|")
    for name, test, ours, theirs in differences:
        print(f"| {name} | {test} | {ours[0]} {ours[1]} | {theirs[0]} {theirs[1]} |")


if __name__ == "__main__":
    main(sys.argv[1:])
