"""The judgement of the endurance run: it finds what grows, under kills and after them."""

from __future__ import annotations

from tests.faults.growth import Growth


def test_only_what_grows_without_bound_is_reported() -> None:
    growth = Growth()
    for second in range(600):
        growth.add("steady", "MB", second, 100 + second % 20)
        growth.add("leak", "MB", second, 100 + second)
        growth.add("leak after the kills", "", second, 100 + 2 * max(second - 400, 0))
        growth.add("log", "MB", second, second, is_history=True)
    growth.end_of_kills(at=400, settled_at=400)
    assert growth.unbounded() == [
        "leak: 299 → 500 MB",
        "leak after the kills: 298 → 498 ",
    ]
    assert "leak after the kills" in growth.table()
    assert f"{7200:+12,}" in growth.table()
