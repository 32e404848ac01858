"""Build the wheel, install it alone, and try what users get: run by `make wheel`, away from the sources."""

from __future__ import annotations

import shutil
import subprocess
import sys
import sysconfig
import tempfile
import venv
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

TRY = """
import asyncio, sys
import numpy as np
from onnx import TensorProto, helper
import asyncrt

assert "site-packages" in asyncrt.__file__, asyncrt.__file__
from asyncrt.devices.opencl.submit import why_not_built
print("launches:", why_not_built() or "enqueued by native code")
x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 1, 4])
y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
nodes = [helper.make_node("Transpose", ["x"], ["t"], perm=[1, 0, 2]), helper.make_node("Exp", ["t"], ["y"])]
model = helper.make_model(helper.make_graph(nodes, "g", [x], [y]), opset_imports=[helper.make_opsetid("", 18)])

async def main():
    async with asyncrt.Runtime("host") as rt:
        loaded = await rt.load(model)
        given = np.ones((3, 1, 4), np.float32)
        out = await loaded.infer({"x": given})
        np.testing.assert_allclose(out["y"], np.exp(given.transpose(1, 0, 2)), rtol=1e-6)
        assert loaded.explain().counts["skipped"] == 1
        assert "</html>" in loaded.explain().to_html()

asyncio.run(main())
print("the wheel works:", asyncrt.__version__)
"""


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder)
        # The wheel is built of the archive of sources, so that one is whole, too.
        build = [sys.executable, "-m", "build", "--outdir", folder, str(ROOT)]
        subprocess.run(build, check=True, stdout=subprocess.DEVNULL)
        (wheel,) = out.glob("*.whl")
        names = zipfile.ZipFile(wheel).namelist()
        strangers = {n.split("/")[0] for n in names} - {"asyncrt"}
        assert all(s.startswith("asyncrt-") and s.endswith(".dist-info") for s in strangers), strangers
        sources = {
            str(p.relative_to(ROOT / "asyncrt"))
            for pattern in ("*.py", "*.pyi", "page.*", "py.typed")
            for p in (ROOT / "asyncrt").glob(f"**/{pattern}")
        } | {
            f"{part}/{p.relative_to(ROOT / part)}"
            for part in ("scheduler", "memory", "kernels")
            for p in (ROOT / part).glob("**/*.py")
        }
        missing = {f"asyncrt/{s}" for s in sources} - set(names)
        assert not missing, f"not in the wheel: {sorted(missing)}"
        headers = Path(sysconfig.get_paths()["include"], "Python.h").is_file()
        limited = not sysconfig.get_config_var("Py_GIL_DISABLED")
        if sys.platform == "linux" and shutil.which("cc") and headers and limited:
            built = {f"asyncrt/devices/opencl/{part}.abi3.so" for part in ("_submit", "_launcher", "_programs")}
            assert built <= set(names), "there is a compiler, but what it makes is not in the wheel"
            assert wheel.name.split("-")[2:4] == ["cp311", "abi3"], f"{wheel.name} is for one version of Python"
        environment = out / "venv"
        # The dependencies come from this environment; asyncrt itself only from the wheel.
        venv.create(environment, with_pip=False)
        site = next((environment / "lib").glob("python*/site-packages"))
        zipfile.ZipFile(wheel).extractall(site)
        theirs = next((Path(sys.prefix) / "lib").glob("python*/site-packages"))
        (site / "dependencies.pth").write_text(f"{theirs}\n")
        subprocess.run([str(environment / "bin" / "python"), "-I", "-c", TRY], check=True, cwd=folder)


if __name__ == "__main__":
    main()
