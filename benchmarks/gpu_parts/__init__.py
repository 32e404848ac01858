"""The parts of `benchmarks.gpu`: one question about a GPU each."""
