"""What a sink gets to see: tables, columns, masks, conditions and names, as its settings say.

The engine shapes each chunk between decoding and the sink, in the driver and in executors alike. The relation that a
sink meets is the shaped one: columns that are left out are gone from it, masked ones have the mask's type.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from tailrace.change import Column, Relation, Type
from tailrace.errors import ConfigError
from tailrace.log.decoding import Chunk, Messages, TableChanges
from tailrace.settings.pattern import ColumnList, ColumnPattern, TablePattern
from tailrace.sinks.shaping.condition import Condition
from tailrace.sinks.shaping.mask import Mask
from tailrace.sinks.shaping.projection import projected
from tailrace.sinks.shaping.row_filter import filtered

if TYPE_CHECKING:
    from tailrace.sinks import Common

Target = tuple[str, str]


@dataclass(frozen=True)
class Shape:
    """What becomes of one relation."""

    relation: Relation
    target: Target
    places: tuple[int, ...]
    """Which of the relation's columns are delivered."""
    masks: Mapping[int, Mask]
    """By the column's place in the relation as captured."""
    condition: Condition | None


class Shaping:
    """Picklable; what it has worked out for each relation is worked out again where it arrives."""

    def __init__(self, common: Common, database: str = "") -> None:
        """`database` is the source's name for `{database}` in a route."""
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
        self._shapes: dict[str, Shape | None] = {}

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_shapes": {}}

    def apply(self, chunk: Chunk) -> Chunk:
        """The chunk as the sink gets it. `at.is_last` is no longer right: see `decoding.with_last`."""
        found: list[TableChanges | Messages] = []
        for part in chunk:
            shaped = part if isinstance(part, Messages) else self._applied(part)
            if shaped is not None and len(shaped):
                found.append(shaped)
        return found

    def load(self, relation: Relation) -> tuple[Relation, Target] | None:
        """How a table is delivered, and where to; None when it is not."""
        shape = self.shape(relation)
        return None if shape is None else (shape.relation, shape.target)

    def shape(self, relation: Relation) -> Shape | None:
        if relation.digest not in self._shapes:
            self._shapes[relation.digest] = self._shaped(relation)
        return self._shapes[relation.digest]

    def _applied(self, changes: TableChanges) -> TableChanges | None:
        shape = self.shape(changes.relation)
        if shape is None:
            return None
        if shape.condition is not None and not changes.is_truncate:
            changes = filtered(changes, shape.condition)
        if shape.masks or len(shape.places) < len(changes.relation.columns):
            changes = replace(
                changes,
                old=projected(changes.old, changes.relation, shape.relation, shape.places, shape.masks),
                new=projected(changes.new, changes.relation, shape.relation, shape.places, shape.masks),
            )
        return replace(changes, relation=shape.relation, target=shape.target)

    def _shaped(self, relation: Relation) -> Shape | None:
        names = relation.schema, relation.name
        if not _any(self._tables, names) or _any(self._exclude, names):
            return None
        lists = [chosen for table, chosen in self._columns if table.matches(*names)]
        masks = {}
        places = []
        for place, column in enumerate(relation.columns):
            if not all(chosen.has(column.name) for chosen in lists):
                self._must_not_identify(relation, column, "left out")
                continue
            places.append(place)
            mask = next((how for pattern, how in self._masks if pattern.matches(*names, column.name)), None)
            if mask is not None:
                if mask is not Mask.HASH:
                    self._must_not_identify(relation, column, f"masked with {mask.value}")
                masks[place] = mask
        conditions = [text for table, text in self._where if table.matches(*names)]
        whole = " AND ".join(f"({text})" for text in conditions) if len(conditions) > 1 else "".join(conditions)
        return Shape(
            replace(
                relation,
                columns=tuple([_masked(relation.columns[place], masks.get(place)) for place in places]),
                generated=tuple([name for name in relation.generated if all(chosen.has(name) for chosen in lists)]),
            ),
            self._target(relation),
            tuple(places),
            masks,
            Condition.compile(whole, relation, f"sink {self._name}") if conditions else None,
        )

    def _target(self, relation: Relation) -> Target:
        schema, table = (
            template.format(schema=relation.schema, table=relation.name, database=self._database)
            for template in self._route
        )
        return schema, table

    def _must_not_identify(self, relation: Relation, column: Column, how: str) -> None:
        if column.name in relation.key:
            raise ConfigError(
                f"sink {self._name}: {relation.qualified_name}, column {column.name} is part of the key and cannot be "
                f"{how}: rows could no longer be told apart",
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
