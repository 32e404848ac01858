"""How fast is asyncrt, beside what, and how sure is that?

Each file answers one question and is run as ``python -m benchmarks.NAME``; ``python -m benchmarks`` runs them all, and
with ``--write`` writes ``docs/benchmarks.md``. The rules that they keep are in `benchmarks.measure`, and who is
compared in `benchmarks.peers`.
"""
