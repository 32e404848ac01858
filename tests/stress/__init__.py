"""The scheduler, the pool and the executor under any order of completions, cancellations and faults: docs/stress.md."""
