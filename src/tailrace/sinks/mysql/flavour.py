"""MySQL or MariaDB, and its version: what differs between them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from tailrace.errors import SinkRefused


@dataclass(frozen=True)
class Flavour:
    product: Literal["mysql", "mariadb"]
    version: tuple[int, int, int]

    @classmethod
    def parse(cls, text: str) -> Flavour:
        """Parse what `SELECT VERSION()` returns: `8.4.3`, or `11.4.5-MariaDB-log`."""
        found = re.match(r"(\d+)\.(\d+)\.(\d+)", text)
        if found is None:
            raise SinkRefused(f"the server's version {text!r} is unknown", "the sink writes to MySQL and MariaDB")
        major, minor, patch = map(int, found.groups())
        return cls("mariadb" if "mariadb" in text.lower() else "mysql", (major, minor, patch))

    @property
    def collation(self) -> str:
        """The collation of all text: it compares code points, and trailing blanks count.

        Under others `a` and `A`, or `a` and `a` with a blank after it, are one key, while PostgreSQL has two rows.
        """
        return "utf8mb4_nopad_bin" if self.product == "mariadb" else "utf8mb4_0900_bin"

    @property
    def max_key_columns(self) -> int:
        return 32 if self.product == "mariadb" else 16
