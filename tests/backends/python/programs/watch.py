"""Runs another program with `simranks.watch()` before its first line: `watch.py PROGRAM ARGUMENTS`."""

import os
import runpy
import sys

import simranks

simranks.watch()
sys.argv = sys.argv[1:]
sys.path.insert(0, os.path.dirname(os.path.abspath(sys.argv[0])))
runpy.run_path(sys.argv[0], run_name="__main__")
