"""The process that forks the ranks of a Python program. `sim-run --ranks 8 -- python train.py` starts it as

    python -m simranks -- train.py

with the descriptors of the shared memory and of the ranks' output. It imports what the ranks have in common, so that
they share its memory, forks them while it has one thread, and records how each of them ends.
"""

import sys

from simranks.launch import main

sys.exit(main(sys.argv[1:]))
