"""A table's columns, changed in a transaction of Iceberg's."""

from __future__ import annotations

import json
from typing import Any

from tailrace.change import Relation
from tailrace.sinks.iceberg.catalog import Catalog
from tailrace.sinks.iceberg.evolution import Addition, Evolution
from tailrace.sinks.iceberg.point import Kind
from tailrace.sinks.iceberg.schema import (
    Field,
    IcebergType,
    Shape,
    doc,
    identifiers,
    numbered,
    own_fields,
    special_field,
    type_of,
)


class Columns:
    """Those of one table; `transaction` is committed by whoever began it."""

    def __init__(self, catalog: Catalog, transaction: Any, shape: Shape, kind: Kind) -> None:
        self._catalog = catalog
        self._transaction = transaction
        self._shape = shape
        self._kind = kind

    def become(self, relation: Relation, change: Evolution) -> None:
        """In steps: a name that one column gives up another may take."""
        same_key = self._is_same_key(relation, change)
        update = self._transaction.updateSchema()
        if not same_key:
            self._drop_identifiers(update)
        for name in change.dropped:
            self._drop(update, name, relation)
        for addition in change.added:
            if addition.column.name in self._shape.others:
                self._set_aside(update, addition.column.name)
        for name, kind in change.widened:
            update.updateColumn(name, self._type(kind))
        for name, told in change.documented:
            update.updateColumnDoc(name, told or "")
        for name, new_name in change.renamed:
            update.renameColumn(name, new_name)
        own = self._shape.fields[len(self._shape.relation.columns) :]
        for field, new in zip(own, own_fields(relation, self._kind), strict=False):
            if field.name != new.name:
                update.renameColumn(field.name, new.name)
        update.commit()
        update = self._transaction.updateSchema()
        for addition in change.added:
            self._add(update, _field(addition), addition.default)
            self._move(update, addition.column.name, [column.name for column in relation.columns])
        if self._kind == "mirror" and not same_key and (keys := sorted(identifiers(relation))):
            update.allowIncompatibleChanges()
            for name in keys:
                update.requireColumn(name)
            update.setIdentifierFields(self._catalog.strings(keys))
        update.commit()

    def add_special(self) -> None:
        update = self._transaction.updateSchema()
        self._add(update, special_field(self._shape.relation), None)
        update.commit()

    def relax(self) -> None:
        """A value of the key is one that its column cannot hold: it is NULL there."""
        update = self._transaction.updateSchema()
        self._drop_identifiers(update)
        update.commit()

    def _drop(self, update: Any, name: str, relation: Relation) -> None:
        """A changelog keeps what was told, under another name if the column's is taken."""
        if self._kind == "mirror":
            update.deleteColumn(name)
        elif any(column.name == name for column in relation.columns):
            self._set_aside(update, name)

    def _set_aside(self, update: Any, name: str) -> None:
        taken = {*self._shape.others, *(field.name for field in self._shape.fields)}
        update.renameColumn(name, next(f"{name}~{n}" for n in range(1, 1 << 16) if f"{name}~{n}" not in taken))

    def _is_same_key(self, relation: Relation, change: Evolution) -> bool:
        """Iceberg knows identifier fields by their ids: another name changes nothing."""
        if self._kind == "changelog":
            return True
        names = dict(change.renamed)
        before = {f.name for f in self._shape.fields if f.required}
        # A key that was relaxed stays so.
        was_relaxed = not before and bool(identifiers(self._shape.relation))
        before = identifiers(self._shape.relation) if was_relaxed else before
        return not before & set(change.dropped) and {names.get(n, n) for n in before} == identifiers(relation)

    def _drop_identifiers(self, update: Any) -> None:
        update.setIdentifierFields(self._catalog.strings([]))
        for field in self._shape.fields:
            if field.required:
                update.makeColumnOptional(field.name)

    def _add(self, update: Any, field: Field, default: str | None) -> None:
        kind = self._type(field.type)
        if default is None:
            update.addColumn(field.name, kind, field.doc or "")
        else:
            update.addColumn(field.name, kind, field.doc or "", self._literal(field.type, default).to(kind))

    def _move(self, update: Any, name: str, order: list[str]) -> None:
        """A new column stands where it stands at the source, also one that takes the place of another."""
        place = order.index(name)
        if place:
            update.moveAfter(name, order[place - 1])
        else:
            update.moveFirst(name)

    def _literal(self, kind: IcebergType, default: str) -> Any:
        value: Any = default
        match kind:
            case "int" | "long":
                value = int(default)
            case "float" | "double":
                value = float(default)
            case "boolean":
                value = default == "true"
        return self._catalog.java.Literal.of(value)

    def _type(self, kind: IcebergType) -> Any:
        fields = [field.to_json() for field in numbered([Field(0, "x", kind)])]
        schema = self._catalog.java.SchemaParser.fromJson(json.dumps({"type": "struct", "fields": fields}))
        return schema.columns().get(0).type()


def _field(addition: Addition) -> Field:
    return Field(0, addition.column.name, type_of(addition.column), doc=doc(addition.column))
