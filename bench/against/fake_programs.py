"""Programs that answer as the benchmarks with --serve do (bench/serving.hpp), for tests."""
import json
import pathlib

from sampling import PROGRAMS

ORIGIN = {"machine": {"cpu": "fake", "cores": 2}, "commit": "", "compiler": "none", "command": "", "date": ""}

# Appends its own name and each request to a log.
SCRIPT = """#!/bin/sh
while read -r request; do
  printf '%s %s\\n' "$0" "$request" >>'{log}'
  case $request in
    rows) echo '{rows}' ;;
    origin) echo '{origin}' ;;
    *) {sample} ;;
  esac
done
"""


def write(folder, log, rows, sample="echo 1", programs=PROGRAMS):
    """Writes programs into a new folder. The first has `rows`, the others have none."""
    folder = pathlib.Path(folder)
    folder.mkdir()
    for program in programs:
        names = [{"name": name, "unit": "s"} for name in (rows if program == PROGRAMS[0] else ())]
        path = folder / program
        path.write_text(SCRIPT.format(log=log, rows=json.dumps(names), origin=json.dumps(ORIGIN), sample=sample))
        path.chmod(0o755)
    return str(folder)
