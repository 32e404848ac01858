"""The page at `/`, in a browser: it shows what goes on, and its buttons do what they say."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from .running import PATIENCE_S, Running, call, double, running, tensor

sync_api = pytest.importorskip("playwright.sync_api", reason="there is no playwright here: pip install playwright")
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium here: apt install chromium"),
]

X = np.array([[1.5, -2]], np.float32)
INFER = "/v2/models/double/infer"
DRAWN = "id => document.getElementById(id).getContext('2d').getImageData(0, 0, 4000, 200).data.some(x => x)"


@pytest.fixture
def source(tmp_path: Path) -> Path:
    onnx.save(double(), tmp_path / "double.onnx")
    return tmp_path / "double.onnx"


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with sync_api.sync_playwright() as driver:
        found = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield found
        found.close()


@pytest.fixture
def page(browser: Any) -> Iterator[Any]:
    """A page that may complain of nothing, and ask nobody but the server that it came from."""
    complaints: list[str] = []
    hosts: set[str] = set()
    opened = browser.new_page()
    opened.set_default_timeout(PATIENCE_S * 1e3)
    opened.on("pageerror", lambda error: complaints.append(str(error)))
    opened.on("request", lambda request: hosts.add(request.url.split("/")[2]) if "//" in request.url[:9] else None)
    yield opened
    opened.close()
    assert complaints == []
    assert len(hosts) == 1


def ask(server: Running, times: int, **headers: str) -> None:
    for _ in range(times):
        assert call(server, INFER, {"inputs": [tensor("x", X)]}, headers=headers)[0] == 200


def test_the_page_shows_what_goes_on(source: Path, page: Any) -> None:
    """The models and how many requests each has answered, while they come; lanes and the histogram are drawn."""
    with running(source, "--batched", "--grpc-port", "-1") as server:
        page.goto(f"http://{server.http}/")
        page.wait_for_selector("#state.ready")
        assert page.locator("#models td").all_inner_texts()[:3] == ["double", "1", "0"]

        ask(server, 3)

        page.locator("#models td:nth-child(3)", has_text="3").wait_for()
        assert page.evaluate(DRAWN, "lanes")
        assert page.evaluate(DRAWN, "histogram")
        server.end()
        page.wait_for_selector("#state.away")


def test_the_buttons_give_a_trace_and_a_graph(source: Path, page: Any) -> None:
    """A file that Perfetto reads, of the next second, and the graph of the last inference on a page of its own."""
    with running(source, "--grpc-port", "-1") as server:
        page.goto(f"http://{server.http}/")
        page.wait_for_selector("#state.ready")
        with page.expect_download() as downloading:
            page.click("#trace")
            ask(server, 5)
        made = json.loads(Path(downloading.value.path()).read_text())
        page.wait_for_selector("#trace:enabled")
        with page.expect_popup() as opening:
            page.click("#models button")
        opening.value.wait_for_selector("svg")

    assert downloading.value.suggested_filename == "trace.json"
    assert made["traceEvents"]


def test_the_page_asks_for_the_key(source: Path, page: Any) -> None:
    """Where the server wants one; with it, it shows what others see."""
    with running(source, "--grpc-port", "-1", ASYNCRT_SERVE_KEY="sesame") as server:
        page.goto(f"http://{server.http}/")
        page.wait_for_selector("#ask:visible")
        assert page.locator("#models td").count() == 0

        page.fill("#key", "sesame")
        page.click("#ask button")

        page.wait_for_selector("#state.ready")
        assert page.locator("#models td").first.inner_text() == "double"
