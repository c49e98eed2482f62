"""README.md shows what a Python program prints."""

import re

from conftest import ROOT, launch, simulate

PROGRAM = "reference/examples/python/train.py"


def test_the_example_prints_what_is_shown(monkeypatch):
    monkeypatch.chdir(ROOT)
    block = re.search(r"```console\n(?P<command>[^\n]*" + PROGRAM + r")\n(?P<output>.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert block["command"].endswith(f"sim-run --ranks 8 -- python {PROGRAM}")
    simulated = simulate(8, PROGRAM)
    assert simulated.code == 0, simulated.error
    assert block["output"] and simulated.output.startswith(block["output"])
    printed = [line for line in launch(8, PROGRAM).output.splitlines() if not line.startswith("[Gloo]")]  # as torch 2.8 does
    assert printed == [line.removeprefix("[rank 0] ") for line in simulated.output.splitlines()]
