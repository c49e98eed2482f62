"""Generated mutants that no test can notice: (file, the changed lines before, the same lines after) and the reason."""

SURVIVORS = {
    ('reference/data/batch_stream.cpp', 'for (int worker = 0; worker < num_workers; ++worker)', 'for (int worker = 0; worker <= num_workers; ++worker)'):
        'appends an undefined state, for a worker that does not exist',
}  # fmt: skip
