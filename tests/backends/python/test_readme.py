"""README.md shows a Python program and what it prints."""

import re

from conftest import ROOT, launch, simulate

PROGRAM = ROOT / "reference/examples/python/train.py"


def block_after(text, start):
    return re.compile(r"```\w+\n(.*?)```", re.DOTALL).search(text, text.index(start)).group(1)


def test_the_program_is_the_example_and_prints_what_is_shown():
    readme = (ROOT / "README.md").read_text()
    assert block_after(readme, "## Example in Python") == PROGRAM.read_text()
    shown = [line for line in block_after(readme, "run by tests/backends/python/test_readme.py").splitlines() if line[0] != "$"]
    simulated = simulate(8, PROGRAM)
    assert simulated.code == 0, simulated.error
    assert simulated.output.splitlines() == shown
    assert launch(8, PROGRAM).output.splitlines() == [line.removeprefix("[rank 0] ") for line in shown]
