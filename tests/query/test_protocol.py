"""The protocol, as a driver speaks it."""

from __future__ import annotations

from tests.query.conftest import Served


def test_simple(served: Served) -> None:
    with served.connect() as c:
        print(c.execute("select 1 as x", prepare=False).fetchall())
        print(c.execute("select * from public.customers order by id limit 3").fetchall())
        print(c.execute("select id, customer, amount, status from orders where id = %s", [5]).fetchall())
        print(
            c.execute(
                "select count(*) from orders o join customers c on c.id = o.customer where c.name like %s", ["%1%"]
            ).fetchone()
        )
