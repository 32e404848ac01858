"""How fast is asyncrt, beside what, and how sure is that?

Each file answers one question and is run as ``python -m benchmarks.NAME``; ``python -m benchmarks`` runs them all, and
with ``--write`` writes ``docs/benchmarks.md``. The rules that they keep are in `benchmarks.measure`, and who is
compared in `benchmarks.peers`.
"""

import os

# What is measured is the device, not what answers while its kernels are being built.
os.environ.setdefault("ASYNCRT_WITHOUT", "stand_in")
