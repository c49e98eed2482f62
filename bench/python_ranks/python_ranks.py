"""Python on simulated ranks, beside torchrun over Gloo: time to the first step, memory, and a small collective.

    python bench/python_ranks/python_ranks.py --sim-run build/release/bin/sim-run [--rounds 3]

Run it with a Python that has torch and Accelerate. Rounds alternate, so that a slow phase of the machine affects both.
Prints one line of JSON per row, with the median and all samples.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
PROGRAMS = os.path.join(HERE, "programs.py")


def numbers_of(words):
    """Runs a program; returns what it printed by name, and when it began."""
    environment = {**os.environ, "ACCELERATE_USE_CPU": "true", "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
    began = time.time()
    done = subprocess.run(words, capture_output=True, text=True, env=environment)
    is_torchrun = "torch.distributed.run" in words  # Gloo aborts now and then at the end of a program
    if done.returncode != 0 and not (is_torchrun and "first_step" in done.stdout):
        sys.exit(f"{' '.join(words)} ended with code {done.returncode}:\n{done.stderr}")
    numbers = {}
    for line in done.stdout.splitlines():
        name, _, value = line.split("] ")[-1].partition(" ")
        if name in ("first_step", "memory", "all_reduce"):
            numbers[name] = float(value)
    return numbers, began


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sim-run", required=True)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()

    def simulated(ranks, name):
        return numbers_of([options.sim_run, "--ranks", str(ranks), "--", sys.executable, PROGRAMS, name])

    def real(ranks, name):
        torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
        return numbers_of([*torchrun, "--nproc_per_node", str(ranks), PROGRAMS, name])

    rows = {}

    def add(row, value):
        rows.setdefault(row, []).append(value)

    for _ in range(options.rounds):
        for name, run in (("simulated", simulated), ("torchrun", real)):
            numbers, began = run(4, "first_step")
            add(f"first step of 4 ranks, {name}, seconds", numbers["first_step"] - began)
        numbers, began = simulated(64, "first_step")
        add("first step of 64 ranks, simulated, seconds", numbers["first_step"] - began)
        add("memory of 64 ranks, simulated, GB", numbers["memory"] / 1e9)
        add("4 KiB all_reduce of 64 ranks, simulated, ms", 1e3 * simulated(64, "all_reduce")[0]["all_reduce"])
    medians = {row: statistics.median(values) for row, values in rows.items()}
    for row, values in rows.items():
        print(json.dumps({"row": row, "median": round(medians[row], 3), "samples": [round(v, 3) for v in values]}))
    four = "first step of 4 ranks, {}, seconds"
    ratio = medians[four.format("torchrun")] / medians[four.format("simulated")]
    print(json.dumps({"row": "first step of 4 ranks, torchrun / simulated", "median": round(ratio, 2)}))


if __name__ == "__main__":
    main()
