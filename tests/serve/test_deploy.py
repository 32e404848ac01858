"""The files of `deploy/`: each is what its tool takes, and says of the server what is true of it."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer

from asyncrt.cli.commands import app
from asyncrt.serve.http.openapi import document
from asyncrt.serve.settings import Limits

from ..environment import ROOT

yaml = pytest.importorskip("yaml")
DEPLOY = ROOT / "deploy"
PORTS = {8000, 8001}


def read(name: str) -> list[Any]:
    return list(yaml.safe_load_all((DEPLOY / name).read_text(encoding="utf-8")))


def of_kind(name: str, kind: str) -> Any:
    (found,) = [d for d in read(name) if d["kind"] == kind]
    return found


def pod() -> Any:
    return of_kind("kubernetes.yaml", "Deployment")["spec"]["template"]["spec"]


def runtime() -> Any:
    return of_kind("kserve.yaml", "ServingRuntime")["spec"]


def in_dockerfile(instruction: str) -> str:
    text = (DEPLOY / "Dockerfile").read_text(encoding="utf-8").replace("\\\n", " ")
    return "".join(re.findall(rf"^{instruction} (.*)$", text, re.M))


def tool(name: str) -> Path:
    """A tool of this environment, or of the machine."""
    found = shutil.which(name, path=str(Path(sys.executable).parent)) or shutil.which(name)
    if found is None:
        pytest.skip(f"there is no {name} here")
    return Path(found)


# What the tools say.


def test_the_dockerfile_has_no_faults() -> None:
    """Says hadolint."""
    found = subprocess.run([tool("hadolint"), DEPLOY / "Dockerfile"], capture_output=True, text=True)

    assert (found.returncode, found.stdout) == (0, "")


def test_the_compose_file_is_one() -> None:
    """By the schema of the Compose specification."""
    command = [tool("check-jsonschema"), "--builtin-schema", "vendor.compose-spec", DEPLOY / "compose.yaml"]
    found = subprocess.run(command, capture_output=True, text=True)

    assert found.returncode == 0, found.stdout


def test_the_manifest_is_one() -> None:
    """By the schemas of Kubernetes, without a word that they do not have."""
    validate = pytest.importorskip("kubernetes_validate", reason="there is no kubernetes-validate here")

    for resource in read("kubernetes.yaml"):
        validate.validate(resource, validate.latest_version(), strict=True)


def test_the_runtime_of_kserve_is_one() -> None:
    """Its container is one of Kubernetes, and its other fields are those of KServe's own classes, where these are."""
    spec = runtime()
    validate = pytest.importorskip("kubernetes_validate", reason="there is no kubernetes-validate here")
    as_pod = {
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x"}, "spec": {"containers": spec["containers"]}
    }  # fmt: skip
    validate.validate(as_pod, validate.latest_version(), strict=True)

    kserve = pytest.importorskip("kserve", reason="there is no kserve here", exc_type=ImportError)
    as_kserve_has_it(spec, kserve.V1alpha1ServingRuntimeSpec)
    as_kserve_has_it(of_kind("kserve.yaml", "InferenceService")["spec"], kserve.V1beta1InferenceServiceSpec)


def as_kserve_has_it(given: dict[str, Any], kind: Any) -> None:
    """Raise unless all fields are those of a class of KServe's, however deep."""
    import kserve

    kinds = {of_json: kind.openapi_types[name] for name, of_json in kind.attribute_map.items()}
    for name, value in given.items():
        assert name in kinds, f"{kind.__name__} has no {name}"
        inner = getattr(kserve, kinds[name].removeprefix("list[").removesuffix("]"), None)
        for each in value if isinstance(value, list) else [value]:
            if inner is not None and hasattr(inner, "attribute_map"):
                as_kserve_has_it(each, inner)


# What they say of the server.


@pytest.mark.parametrize(
    "given",
    [
        json.loads(in_dockerfile("CMD")),
        pod()["containers"][0]["args"],
        runtime()["containers"][0]["args"],
    ],
    ids=["image", "kubernetes", "kserve"],
)
def test_the_server_takes_what_it_is_given(given: list[str]) -> None:
    """Every option is one, and the server listens to others than itself."""
    command = typer.main.get_command(app).commands["serve"]  # type: ignore[attr-defined]
    given = [str(ROOT), *given[1:]]  # the models are in the image alone

    taken = command.make_context("serve", given).params

    assert taken["host"] == "0.0.0.0"
    assert taken["port"] in PORTS
    assert taken["grpc_port"] in (None, *PORTS)


def test_probes_ask_for_paths_that_there_are() -> None:
    """On ports where the server listens."""
    paths = {path for path, operations in document()["paths"].items() if "get" in operations}
    containers = [*pod()["containers"], *runtime()["containers"]]
    probes = [probe["httpGet"] for c in containers for name, probe in c.items() if name.endswith("Probe")]
    ports = {p["name"]: p["containerPort"] for c in containers for p in c["ports"]}

    assert len(probes) == 5
    assert {probe["path"] for probe in probes} <= paths
    assert {ports.get(probe["port"], probe["port"]) for probe in probes} <= PORTS
    assert "/v2/health/ready" in in_dockerfile("HEALTHCHECK")
    (job,) = read("prometheus.yml")[0]["scrape_configs"]
    assert job["metrics_path"] in paths
    assert job["static_configs"][0]["targets"] == ["server:8000"]
    assert "server" in read("compose.yaml")[0]["services"]


def test_supervisors_wait_longer_than_the_server_drains() -> None:
    """Or they would cut off what runs."""
    drain = Limits().drain_s
    sleep = float(pod()["containers"][0]["lifecycle"]["preStop"]["exec"]["command"][1])

    assert pod()["terminationGracePeriodSeconds"] > drain + sleep
    assert float(read("compose.yaml")[0]["services"]["server"]["stop_grace_period"].removesuffix("s")) > drain
