"""The output of benchmarks: each figure, its target, and whether it meets the target."""

from __future__ import annotations

import importlib


class Report:
    def __init__(self) -> None:
        self.missed: list[str] = []
        self._section = ""

    def title(self, text: str) -> None:
        print(f"\n{text}\n{'=' * len(text)}", flush=True)

    def section(self, name: str) -> None:
        self._section = name
        print(f"\n  {name}", flush=True)

    def line(self, what: str, figure: str, want: str = "", ok: bool | None = None) -> None:
        mark = {None: " ", True: "✓", False: "✗"}[ok]
        print(f"    {mark} {what:<32} {figure:>24}   {want}", flush=True)
        if ok is False:
            self.missed.append(f"{self._section}: {what} {figure} ({want})")


def missed_targets(part: str) -> list[str]:
    """Run a benchmark and return the lines of the targets it missed."""
    report = Report()
    importlib.import_module(f"bench.{part}").run(report)
    return report.missed
