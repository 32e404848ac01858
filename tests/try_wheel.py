"""Install a wheel as users do, into an empty environment, and run the README's quick start there.

    python tests/try_wheel.py dist/asyncrt-0.1.0-cp311-abi3-linux_x86_64.whl

`make dist` runs it on the wheel that it has built. Unlike `tests/wheel.py`, it takes every dependency from the package
index. On machines for which there is Intel's OpenCL runtime the extra `cpu` is installed as well.
"""

from __future__ import annotations

import platform
import re
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

_BLOCK = re.compile(r"^<!-- runs -->\n```python\n(.*?)^```$", re.M | re.S)


def quick_start(readme: str) -> str:
    """The README's blocks that are marked to run, as one program that says where asyncrt came from."""
    blocks = _BLOCK.findall(readme)
    assert len(blocks) >= 2, "the README has no quick start"
    return "\n".join([*blocks, 'assert "site-packages" in asyncrt.__file__, asyncrt.__file__'])


def main(wheel: Path) -> None:
    intel = sys.platform == "linux" and platform.machine() == "x86_64"
    with tempfile.TemporaryDirectory() as folder:
        environment = Path(folder) / "venv"
        venv.create(environment, with_pip=True)
        scripts = environment / ("Scripts" if sys.platform == "win32" else "bin")
        wanted = f"{wheel.resolve()}[cpu]" if intel else str(wheel.resolve())
        subprocess.run([scripts / "python", "-m", "pip", "install", "--quiet", wanted], check=True)
        program = quick_start((ROOT / "README.md").read_text(encoding="utf-8"))
        subprocess.run([scripts / "python", "-I", "-c", program], check=True, cwd=folder)
        subprocess.run([scripts / "asyncrt", "devices"], check=True, cwd=folder)
    print(f"{wheel.name}: the quick start runs")


if __name__ == "__main__":
    (given,) = sys.argv[1:]
    main(Path(given))
