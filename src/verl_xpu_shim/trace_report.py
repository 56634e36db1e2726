"""``verl-xpu-shim trace``: the trace logs of many processes as one table or one page."""

from __future__ import annotations

import html as markup
import json
import sys
import textwrap
from collections.abc import Iterable
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from typing import Final

Event = dict[str, Any]

_PAGE: Final = """<!doctype html><meta charset="utf-8"><title>verl-xpu-shim trace</title>
<style>body{{font:14px system-ui;margin:2em}}table{{border-collapse:collapse}}td,th{{padding:.2em .8em;text-align:left;
border-bottom:1px solid #ddd;vertical-align:top}}.failed,.drift,.stale{{background:#fdd}}</style>
<h1>verl-xpu-shim trace</h1><table><tr><th>s<th>pid<th>rank<th>event<th>capability<th>module<th>detail</tr>
{rows}
</table>
"""


def read(files: Iterable[Path]) -> tuple[list[Event], int]:
    """Return the events of ``files`` in order of time, and how many lines were none."""
    events, broken = [], 0
    for path in files:
        for line in path.read_text("utf-8", "replace").splitlines():
            try:
                event = json.loads(line)
                events.append({**event, "t": float(event["t"]), "pid": int(event["pid"]), "event": str(event["event"])})
            except (ValueError, KeyError, TypeError):
                broken += 1
    return sorted(events, key=lambda event: event["t"]), broken


def processes(events: Iterable[Event]) -> list[dict[str, Any]]:
    """Return one row a process, in order of appearance: ``pid``, ``rank``, ``how``, ``command`` and its outcomes."""
    rows: dict[int, dict[str, Any]] = {}
    for event in events:
        row = rows.setdefault(event["pid"], {"pid": event["pid"], "applied": [], "skipped": [], "wrong": []})
        row.setdefault("rank", event.get("rank"))
        if event["event"] == "start":
            detail = event.get("detail") or {}
            row.update(how=detail.get("how"), command=_command(detail.get("argv") or []))
        kind = {"applied": "applied", "skipped": "skipped"}.get(event["event"])
        if kind is None and event["event"] in ("drift", "failed", "stale"):
            kind = "wrong"
        if kind and event.get("capability") not in row[kind]:
            row[kind].append(event.get("capability"))
    return list(rows.values())


def main(files: Sequence[Path], html: Path | None = None, as_json: bool = False) -> int:
    """Print the table; exit status 1 where something drifted, failed or is stale, 2 where a file can't be read."""
    try:
        events, broken = read(files)
    except OSError as error:
        print(f"verl-xpu-shim trace: {error}", file=sys.stderr)
        return 2
    rows = processes(events)
    if html:
        html.write_text(_page(events), "utf-8")
        print(f"{len(events)} events of {len(rows)} processes: {html}")
    elif as_json:
        print(json.dumps(rows, indent=2))
    else:
        _print(rows)
    if broken:
        print(f"{broken} line(s) are no trace events", file=sys.stderr)
    return int(any(row["wrong"] for row in rows))


def _print(rows: list[dict[str, Any]]) -> None:
    """Processes that patched the same are one line: a job has dozens of them."""
    groups: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    idle = [row for row in rows if not row["applied"] and not row["wrong"]]
    for row in rows:
        if row not in idle:
            groups.setdefault((row.get("command", "?"), tuple(row["applied"]), tuple(row["wrong"])), []).append(row)
    print(f"{'processes':>9}  {'ranks':5}  {'command':32}  patched")
    for (command, applied, wrong), members in groups.items():
        ranks = ",".join(sorted({str(row["rank"]) for row in members if row.get("rank") is not None})) or "-"
        lines = textwrap.wrap(", ".join(applied) or "-", 68)
        lines += textwrap.wrap(f"WRONG: {', '.join(wrong)}", 68) if wrong else []
        print(
            f"{len(members):9}  {ranks:5}  {command[:32]:32}  {lines[0]}",
            *(f"{'':52}{line}" for line in lines[1:]),
            sep="\n",
        )
    if idle:
        names = sorted({row.get("command", "?") for row in idle})
        print(f"{len(idle):9}  {'-':5}  nothing to patch: {', '.join(names)}")


def _command(argv: list[str]) -> str:
    """The part of a command line that tells a person which process it was."""
    rest = argv[1:]
    while rest and rest[0].startswith("-") and rest[0] not in ("-m", "-c"):
        rest = rest[1:]
    if rest[:1] == ["-m"]:
        return " ".join(["-m", *rest[1:2]])
    if rest[:1] == ["-c"]:
        return "-c " + (rest[1].splitlines() or [""])[0][:40] if len(rest) > 1 else "-c"
    return Path(rest[0]).name if rest else "python"


def _page(events: list[Event]) -> str:
    began = events[0]["t"] if events else 0.0
    rows = []
    for event in events:
        detail = event.get("detail", "")
        text = detail if isinstance(detail, str) else json.dumps(detail, ensure_ascii=False)
        cells = [
            f"{event['t'] - began:.3f}",
            event["pid"],
            event.get("rank", ""),
            event["event"],
            event.get("capability", ""),
            event.get("module", ""),
            text,
        ]
        cell = "".join(f"<td>{markup.escape(str(each))}" for each in cells)
        rows.append(f'<tr class="{markup.escape(event["event"])}">{cell}</tr>')
    return _PAGE.format(rows="\n".join(rows))
