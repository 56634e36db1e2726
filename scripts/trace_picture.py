"""Draw a trace merged by `verl-xpu-shim trace --merge`: one SVG, for documentation.

    python scripts/trace_picture.py trace.json picture.svg [--from SECONDS] [--to SECONDS]

Every process is a band, every track a row of it. A dashed line is where a process resumed or paused its collector.
"""

from __future__ import annotations

import argparse
import json
import zlib
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

WIDTH, LEFT, ROW, GAP, CHARACTER = 1200, 260, 20, 12, 6.2
COLOURS = ("#4e79a7", "#f28e2b", "#59a14f", "#b07aa1", "#76b7b2", "#e15759", "#9c755f", "#edc948")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("trace", type=Path)
    parser.add_argument("picture", type=Path)
    parser.add_argument("--from", type=float, dest="start", metavar="SECONDS")
    parser.add_argument("--to", type=float, dest="stop", metavar="SECONDS")
    options = parser.parse_args()
    events = json.loads(options.trace.read_text())["traceEvents"]
    ranges = [event for event in events if event["ph"] == "X"]
    start = 0.0 if options.start is None else options.start * 1e6
    stop = max(each["ts"] + each["dur"] for each in ranges) if options.stop is None else options.stop * 1e6
    options.picture.write_text("\n".join(_draw(events, start, stop)) + "\n")


def _draw(events: list[dict[str, Any]], start: float, stop: float) -> Iterator[str]:
    rows, bands = _layout(events)
    height = max(rows.values()) + ROW + 34
    scale = (WIDTH - LEFT - 10) / (stop - start)

    def x(time: float) -> float:
        return LEFT + (min(max(time, start), stop) - start) * scale

    font = 'font-family="sans-serif" font-size="11"'
    yield f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" {font}>'
    yield f'<rect width="{WIDTH}" height="{height}" fill="#fff"/>'
    for name, (top, bottom) in bands.items():
        yield f'<rect x="4" y="{top - 4}" width="{WIDTH - 8}" height="{bottom - top + 8}" rx="3" fill="#f3f4f6"/>'
        yield f'<text x="10" y="{top + 14}" fill="#111">{escape(name)}</text>'
    for event in sorted(events, key=lambda event: event.get("ts", 0)):
        if event["ph"] not in "Xi" or event["ts"] > stop or event["ts"] + event.get("dur", 0) < start:
            continue
        row = rows[event["pid"], event["tid"], event.get("depth", 0)]
        if event["ph"] == "i":
            if event["cat"] == "collector":
                at = f'x1="{x(event["ts"]):.1f}" x2="{x(event["ts"]):.1f}" y1="{row - 2}" y2="{row + ROW}"'
                yield f'<line {at} stroke="#111" stroke-dasharray="3 2"><title>{event["name"]}</title></line>'
            continue
        left, right = x(event["ts"]), x(event["ts"] + event["dur"])
        width = max(right - left, 0.6)
        colour = COLOURS[zlib.crc32(event["name"].encode()) % len(COLOURS)]
        title = f"<title>{escape(event['name'])}: {event['dur'] / 1e3:.1f} ms</title>"
        box = f'x="{left:.1f}" y="{row}" width="{width:.1f}" height="{ROW - 2}"'
        yield f'<rect {box} fill="{colour}" stroke="#fff" stroke-width="0.3">{title}</rect>'
        fits = int((width - 4) / CHARACTER)
        if fits >= min(len(event["name"]), 6):
            label = event["name"] if fits >= len(event["name"]) else event["name"][: fits - 1] + "…"
            yield f'<text x="{left + 3:.1f}" y="{row + 13}" fill="#fff">{escape(label)}</text>'
    yield from _axis(start, stop, x, height)


def _axis(start: float, stop: float, x: Any, height: int) -> Iterator[str]:
    step = next(each for each in (0.01, 0.05, 0.1, 0.5, 1, 5, 10, 60, 600) if (stop - start) / 1e6 / each <= 14)
    tick = 0.0
    while start + tick * 1e6 <= stop:
        at = x(start + tick * 1e6)
        yield f'<line x1="{at:.1f}" x2="{at:.1f}" y1="4" y2="{height - 20}" stroke="#000" stroke-opacity="0.08"/>'
        yield f'<text x="{at:.1f}" y="{height - 7}" text-anchor="middle" fill="#555">{tick:g} s</text>'
        tick = round(tick + step, 6)
    yield "</svg>"


def _layout(events: list[dict[str, Any]]) -> tuple[dict[tuple[int, int, int], int], dict[str, tuple[int, int]]]:
    """Where each (process, track, depth) is, and each process, from top to bottom; ranges inside others go below."""
    names = {event["pid"]: event["args"]["name"] for event in events if event["name"] == "process_name"}
    depths: dict[tuple[int, int], int] = defaultdict(int)
    open_stops: dict[tuple[int, int], list[float]] = defaultdict(list)
    for event in sorted(events, key=lambda event: (event.get("ts", 0), -event.get("dur", 0))):
        if event["ph"] not in "Xi":
            continue
        track = event["pid"], event["tid"]
        stack = open_stops[track]
        while stack and stack[-1] <= event["ts"]:
            stack.pop()
        if event["ph"] == "X":
            event["depth"] = len(stack)
            stack.append(event["ts"] + event["dur"])
        depths[track] = max(depths[track], event.get("depth", 0) + 1)
    rows, bands, top = {}, {}, 10
    for process in sorted(names):
        first = top
        for track in sorted(track for track in depths if track[0] == process):
            for depth in range(depths[track]):
                rows[(*track, depth)] = top
                top += ROW
        bands[names[process]] = first, top
        top += GAP
    return rows, bands


if __name__ == "__main__":
    main()
