"""Shapes what a sink receives: tables, columns, masks, conditions and names, as its settings say.

Each chunk is shaped between decoding and the sink, in the driver and in executors alike. The sink receives the shaped
relation: it lacks excluded columns, and masked columns have the mask's type.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from tailrace.change import Column, Relation, Type
from tailrace.delivery.transforms.condition import Condition
from tailrace.delivery.transforms.mask import Mask
from tailrace.delivery.transforms.projection import project
from tailrace.delivery.transforms.row_filter import filter_rows
from tailrace.errors import ConfigError
from tailrace.log.ddl_message import OWN_PREFIXES
from tailrace.log.decoding import Chunk, LogicalMessages, TableChanges
from tailrace.settings.pattern import ColumnList, ColumnPattern, TablePattern

if TYPE_CHECKING:
    from tailrace.delivery.sink_settings import SinkSettings

Target = tuple[str, str]


@dataclass(frozen=True)
class TableShaping:
    """How one relation is delivered."""

    relation: Relation
    target: Target
    places: tuple[int, ...]
    """The indexes of the columns that are delivered."""
    masks: Mapping[int, Mask]
    """By the column's index in the captured relation."""
    condition: Condition | None


class Shaping:
    """Shapes the changes for one sink. Picklable: each process computes the shaping of a relation itself."""

    def __init__(self, common: SinkSettings, database: str = "") -> None:
        """Shape changes.

        Args:
            common: The sink's settings.
            database: The source's name, for `{database}` in a route.
        """
        self._name = common.name
        self._tables = tuple(map(TablePattern.parse, common.tables))
        self._exclude = tuple(map(TablePattern.parse, common.exclude))
        self._columns = tuple(
            (TablePattern.parse(table), ColumnList.parse(text)) for table, text in common.columns.items()
        )
        self._masks = tuple((ColumnPattern.parse(name), Mask(how)) for name, how in common.mask.items())
        self._where = tuple((TablePattern.parse(table), text) for table, text in common.where.items())
        schema, dot, table = common.route.rpartition(".")
        self._route = (schema, table) if dot else ("{schema}", table)
        self._database = database
        self._shapes: dict[str, TableShaping | None] = {}

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_shapes": {}}

    def apply(self, chunk: Chunk) -> Chunk:
        """The chunk as the sink receives it. `at.is_last` is no longer valid: see `decoding.with_last`.

        Tailrace's own logical messages are no data, so no sink receives them.
        """
        found: list[TableChanges | LogicalMessages] = []
        for part in chunk:
            shaped = _without_own(part) if isinstance(part, LogicalMessages) else self._shape_changes(part)
            if shaped is not None and len(shaped):
                found.append(shaped)
        return found

    def load(self, relation: Relation) -> tuple[Relation, Target] | None:
        """The delivered relation and its target; None if the table is not delivered."""
        shape = self.shape(relation)
        return None if shape is None else (shape.relation, shape.target)

    def shape(self, relation: Relation) -> TableShaping | None:
        """How a relation is delivered; None if it is not."""
        if relation.digest not in self._shapes:
            self._shapes[relation.digest] = self._new_shaping(relation)
        return self._shapes[relation.digest]

    def _shape_changes(self, changes: TableChanges) -> TableChanges | None:
        shape = self.shape(changes.relation)
        if shape is None:
            return None
        if shape.condition is not None and not changes.is_truncate:
            changes = filter_rows(changes, shape.condition)
        if shape.masks or len(shape.places) < len(changes.relation.columns):
            changes = replace(
                changes,
                old=project(changes.old, changes.relation, shape.relation, shape.places, shape.masks),
                new=project(changes.new, changes.relation, shape.relation, shape.places, shape.masks),
            )
        return replace(changes, relation=shape.relation, target=shape.target)

    def _new_shaping(self, relation: Relation) -> TableShaping | None:
        names = relation.schema, relation.name
        if not _any(self._tables, names) or _any(self._exclude, names):
            return None
        lists = [chosen for table, chosen in self._columns if table.matches(*names)]
        masks = {}
        places = []
        for place, column in enumerate(relation.columns):
            if not all(chosen.has(column.name) for chosen in lists):
                self._must_not_identify(relation, column, "excluded")
                continue
            places.append(place)
            mask = next((how for pattern, how in self._masks if pattern.matches(*names, column.name)), None)
            if mask is not None:
                if mask is not Mask.HASH:
                    self._must_not_identify(relation, column, f"masked with {mask.value}")
                masks[place] = mask
        conditions = [text for table, text in self._where if table.matches(*names)]
        whole = " AND ".join(f"({text})" for text in conditions) if len(conditions) > 1 else "".join(conditions)
        return TableShaping(
            replace(
                relation,
                columns=tuple([_masked(relation.columns[place], masks.get(place)) for place in places]),
                generated=tuple([name for name in relation.generated if all(chosen.has(name) for chosen in lists)]),
            ),
            self.target(relation),
            tuple(places),
            masks,
            Condition.compile(whole, relation, f"sink {self._name}") if conditions else None,
        )

    def target(self, relation: Relation) -> Target:
        """Where a relation goes, by the route."""
        schema, table = (
            template.format(schema=relation.schema, table=relation.name, database=self._database)
            for template in self._route
        )
        return schema, table

    def _must_not_identify(self, relation: Relation, column: Column, how: str) -> None:
        if column.name in relation.key:
            raise ConfigError(
                f"sink {self._name}: {relation.qualified_name}, column {column.name} is part of the key and cannot be "
                f"{how}: rows could no longer be distinguished",
                "deliver it, or mask it with hash",
            )


_TEXT = Type(25, "pg_catalog", "text")


def _masked(column: Column, mask: Mask | None) -> Column:
    if mask is None:
        return column
    missing = None if column.missing is None else mask.of(column.missing)
    if mask is Mask.NULL:
        return replace(column, nullable=True, default=None, missing=None)
    return replace(column, type=_TEXT, modifier=-1, default=None, missing=missing)


def _any(patterns: Iterable[TablePattern], names: Target) -> bool:
    return any(pattern.matches(*names) for pattern in patterns)


def _without_own(messages: LogicalMessages) -> LogicalMessages:
    own = OWN_PREFIXES.intersection(messages.prefix)
    return messages.take(np.array([prefix not in own for prefix in messages.prefix], np.bool_)) if own else messages
