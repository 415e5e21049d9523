"""What `audit` and `bridge` share to read the environment variables of the programs that they replace."""

from __future__ import annotations

from urllib.parse import quote

from tailrace.settings.parser import Faults

LOG = "tailrace-log"
"""In the working directory, because the log must outlive the process: the slot sends nothing twice."""


def postgres_url(host: str, port: str, user: str, database: str) -> str:
    host = f"[{host}]" if ":" in host else quote(host, safe="")
    return f"postgresql://{quote(user, safe='')}@{host}:{port}/{quote(database, safe='')}"


def check_port(name: str, text: str, faults: Faults) -> bool:
    is_port = text.isdecimal() and 0 < int(text) < 65536
    if not is_port:
        faults.add(name, f"is {text!r}: a port is a number from 1 to 65535")
    return is_port
