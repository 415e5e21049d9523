"""When rows expire: SlateDB's milliseconds since 1970, and PostgreSQL's timestamptz."""

from __future__ import annotations

from typing import Final

import numpy as np
import pyarrow as pa

from tailrace.capture.slatedb.relation import EXPIRES_AT
from tailrace.state.postgres_text import to_text
from tailrace.text import TIMESTAMP_INFINITY

_FIRST_MS: Final = -210_866_803_200_000
"""4714-11-24 BC, where PostgreSQL's timestamps begin."""
_LAST_MS: Final = (TIMESTAMP_INFINITY - 1) // 1000
"""In the year 294247. A TTL that was meant to be endless ends later."""
_TIMESTAMPTZ: Final = pa.timestamp("us", "UTC")


def expiry_texts(expire_ts: pa.Array) -> pa.Array:
    """Milliseconds since 1970 as PostgreSQL's text; times that PostgreSQL does not have as `infinity`, `-infinity`."""
    if expire_ts.null_count == len(expire_ts):
        return pa.nulls(len(expire_ts), pa.string())
    ms = expire_ts.fill_null(0).to_numpy()
    us = np.clip(ms, _FIRST_MS, _LAST_MS) * 1000
    us = np.where(ms > _LAST_MS, TIMESTAMP_INFINITY, np.where(ms < _FIRST_MS, -TIMESTAMP_INFINITY, us))
    is_null = expire_ts.is_null().to_numpy(zero_copy_only=False)
    return to_text(pa.array(us, pa.int64(), mask=is_null).view(_TIMESTAMPTZ), EXPIRES_AT)


def expiry_ms(expires_at: pa.Array) -> pa.Array:
    """Timestamps of the log as milliseconds since 1970. The infinite ones become the last and the first."""
    us = expires_at.view(pa.int64())
    values = us.fill_null(0).to_numpy()
    bounds = np.iinfo(np.int64)
    ms = np.where(np.abs(values) == TIMESTAMP_INFINITY, np.where(values > 0, bounds.max, bounds.min), values // 1000)
    return pa.array(ms, pa.int64(), mask=us.is_null().to_numpy(zero_copy_only=False))
