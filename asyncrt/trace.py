"""The file of a trace: slices, instants, counters and flows on named tracks, as Perfetto and Chrome read them.

The format is Chrome's "Trace Event Format". Times go in as nanoseconds of one clock, and come out as microseconds from
the trace's beginning. Nothing here knows what is traced.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from .writing import write_text

Arguments: TypeAlias = Mapping[str, Any]


class Track(NamedTuple):
    """A line of the picture: *thread* within *process*, which are only names here."""

    process: str
    thread: str


class Trace:
    """Collects events; `to_json()` is the file.

    Args:
        begin: When the trace begins.
    """

    def __init__(self, begin: int) -> None:
        self._begin = begin
        self._events: list[dict[str, Any]] = []
        self._processes: dict[str, int] = {}
        self._tracks: dict[Track, int] = {}

    def __len__(self) -> int:
        return len(self._events)

    def track(self, track: Track) -> dict[str, int]:
        """Return a track's numbers. Tracks are shown in the order in which they are first asked for."""
        process = self._processes.get(track.process)
        if process is None:
            process = self._processes[track.process] = len(self._processes) + 1
            self._name("process", process, 0, track.process, process)
        thread = self._tracks.get(track)
        if thread is None:
            thread = self._tracks[track] = len(self._tracks) + 1
            self._name("thread", process, thread, track.thread, thread)
        return {"pid": process, "tid": thread}

    def _name(self, what: str, process: int, thread: int, name: str, order: int) -> None:
        place = {"ph": "M", "pid": process, "tid": thread}
        self._events.append({**place, "name": f"{what}_name", "args": {"name": name}})
        self._events.append({**place, "name": f"{what}_sort_index", "args": {"sort_index": order}})

    def _time(self, time: int) -> float:
        return (time - self._begin) / 1000

    def slice(
        self, track: Track, name: str, begin: int, end: int, category: str, arguments: Arguments | None = None
    ) -> None:
        """Something that takes from *begin* to *end*."""
        event = {"ph": "X", "name": name, "cat": category, "ts": self._time(begin), "dur": (end - begin) / 1000}
        self._events.append({**event, **self.track(track), "args": dict(arguments or {})})

    def instant(self, track: Track, name: str, time: int, category: str, arguments: Arguments | None = None) -> None:
        """Something that takes no time."""
        event = {"ph": "i", "s": "t", "name": name, "cat": category, "ts": self._time(time)}
        self._events.append({**event, **self.track(track), "args": dict(arguments or {})})

    def counter(self, process: str, name: str, time: int, values: Mapping[str, int]) -> None:
        """Values that hold from *time* on."""
        place = self.track(Track(process, name))
        self._events.append({"ph": "C", "name": name, "ts": self._time(time), **place, "args": dict(values)})

    def span(self, track: Track, name: str, number: int, begin: int, end: int) -> None:
        """Something that takes from *begin* to *end* and may overlap others on its track."""
        common = {"name": name, "cat": track.thread, "id": number, **self.track(track)}
        self._events.append({"ph": "b", "ts": self._time(begin), **common, "args": {}})
        self._events.append({"ph": "e", "ts": self._time(end), **common, "args": {}})

    def flow(self, name: str, number: int, points: Iterable[tuple[int, Track]]) -> None:
        """An arrow through slices: *points* are times within them."""
        ordered = sorted(points, key=lambda p: p[0])
        for i, (time, track) in enumerate(ordered if len(ordered) > 1 else ()):
            phase = "s" if i == 0 else "f" if i == len(ordered) - 1 else "t"
            event = {"ph": phase, "name": name, "cat": "flow", "id": number, "ts": self._time(time)}
            self._events.append({**event, **({"bp": "e"} if phase == "f" else {}), **self.track(track)})

    def to_json(self) -> str:
        """Return the file."""
        return json.dumps({"displayTimeUnit": "ms", "traceEvents": self._events})

    def write(self, path: Path) -> None:
        """Write the file, whole or not at all."""
        write_text(path, self.to_json())
