"""Prints the trace of an experiment under Hugging Face Accelerate, in the form of `sim-run --trace`: the lines of all ranks.
`sim-run compare --b python` runs it.

usage: trace.py [--ranks N] [--set key.path=value]... EXPERIMENT.yaml
"""
import argparse
import json
import os
import sys

import rank_group

DAY = 24 * 3600  # a training has no time limit; walk() requires one


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--set", action="append", default=[])
    parser.add_argument("experiment")
    arguments = parser.parse_args()
    item = {"file": os.path.abspath(arguments.experiment), "set": arguments.set}
    script = os.path.join(os.path.dirname(os.path.abspath(__file__)), "train.py")
    (answer,) = rank_group.walk(script, arguments.ranks, [item], timeout=DAY, is_launched=True)
    if isinstance(answer, dict):
        sys.exit(answer["failure"])
    for rank, lines in enumerate(answer):
        if isinstance(lines, dict):
            sys.exit(f"rank {rank}: {lines['error']}: {lines['message']}")
        for line in lines:
            print(json.dumps(line))


if __name__ == "__main__":
    main()
