"""Generated mutants that no test can notice: (file, the changed lines before, the same lines after) and the reason."""

SURVIVORS = {}
