"""The default name of the replication slot, which contains the database's: slot names are unique on a whole server."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping

from psycopg.conninfo import conninfo_to_dict

_MAX_LENGTH = 63


def default_slot(database: str) -> str:
    """Return `tailrace_<database>`. A name with other characters than a slot may have, or too many, gets a digest."""
    name = f"tailrace_{re.sub('[^a-z0-9_]', '_', database)}"
    if name == f"tailrace_{database}" and len(name) <= _MAX_LENGTH:
        return name
    digest = hashlib.sha256(database.encode()).hexdigest()[:8]
    return f"{name[: _MAX_LENGTH - 9]}_{digest}"


def database_of(url: str, environ: Mapping[str, str]) -> str | None:
    """Return the name of the database that a URL leads to, as libpq finds it; None if it follows from neither the URL
    nor the environment."""
    given = conninfo_to_dict(url)
    name = given.get("dbname") or environ.get("PGDATABASE") or given.get("user") or environ.get("PGUSER")
    return None if name is None else str(name)
