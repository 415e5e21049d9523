"""The error of a function that DuckDB calls: its message carries the SQLSTATE through DuckDB."""

from __future__ import annotations


class ScalarError(ValueError):
    def __init__(self, sqlstate: str, message: str) -> None:
        super().__init__(f"[{sqlstate}] {message}")


def invalid_text(type_: str, text: str) -> ScalarError:
    return ScalarError("22P02", f'invalid input syntax for type {type_}: "{text}"')
