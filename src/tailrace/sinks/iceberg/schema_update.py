"""Changes a table's columns, within an Iceberg transaction."""

from __future__ import annotations

import json
from typing import Any

from tailrace.change import Relation
from tailrace.column_name import numbered_name
from tailrace.lake.point import Kind
from tailrace.sinks.iceberg.iceberg_schema import (
    IcebergField,
    IcebergType,
    TableSchema,
    column_doc,
    iceberg_type,
    identifier_columns,
    special_field,
    tailrace_fields,
    with_field_ids,
)
from tailrace.sinks.iceberg.java_catalog import JavaCatalog
from tailrace.sinks.iceberg.schema_change import AddedColumn, SchemaChange


class SchemaUpdate:
    """Updates the columns of one table. The caller commits `transaction`."""

    def __init__(self, catalog: JavaCatalog, transaction: Any, schema: TableSchema, kind: Kind) -> None:
        self._catalog = catalog
        self._transaction = transaction
        self._schema = schema
        self._kind = kind

    def apply(self, relation: Relation, change: SchemaChange) -> None:
        """Apply `change`, in two updates: a new column may take a name that another gives up."""
        same_key = self._is_same_key(relation, change)
        update = self._transaction.updateSchema()
        if not same_key:
            self._drop_identifiers(update)
        for name in change.dropped:
            self._drop(update, name, relation)
        for addition in change.added:
            if addition.column.name in self._schema.others:
                self._rename_old_column(update, addition.column.name)
        for name, kind in change.widened:
            update.updateColumn(name, self._type(kind))
        for name, doc in change.documented:
            update.updateColumnDoc(name, doc or "")
        for name, new_name in change.renamed:
            update.renameColumn(name, new_name)
        own = self._schema.fields[len(self._schema.relation.columns) :]
        for field, new in zip(own, tailrace_fields(relation, self._kind), strict=False):
            if field.name != new.name:
                update.renameColumn(field.name, new.name)
        update.commit()
        update = self._transaction.updateSchema()
        for addition in change.added:
            self._add(update, _field(addition), addition.default)
            self._move(update, addition.column.name, [column.name for column in relation.columns])
        if self._kind == "mirror" and not same_key and (keys := sorted(identifier_columns(relation))):
            update.allowIncompatibleChanges()
            for name in keys:
                update.requireColumn(name)
            update.setIdentifierFields(self._catalog.strings(keys))
        update.commit()

    def add_special_column(self) -> None:
        update = self._transaction.updateSchema()
        self._add(update, special_field(self._schema.relation), None)
        update.commit()

    def allow_null_keys(self) -> None:
        """For a key value that its column cannot hold: the column is NULL in that row."""
        update = self._transaction.updateSchema()
        self._drop_identifiers(update)
        update.commit()

    def _drop(self, update: Any, name: str, relation: Relation) -> None:
        """A changelog retains the column, under another name if a new column takes its name."""
        if self._kind == "mirror":
            update.deleteColumn(name)
        elif any(column.name == name for column in relation.columns):
            self._rename_old_column(update, name)

    def _rename_old_column(self, update: Any, name: str) -> None:
        taken = {*self._schema.others, *(field.name for field in self._schema.fields)}
        update.renameColumn(name, numbered_name(name, taken))

    def _is_same_key(self, relation: Relation, change: SchemaChange) -> bool:
        """Iceberg identifies identifier fields by id, so renames do not change the key."""
        if self._kind == "changelog":
            return True
        names = dict(change.renamed)
        before = {f.name for f in self._schema.fields if f.required}
        # A key that allows NULL continues to do so.
        allows_null = not before and bool(identifier_columns(self._schema.relation))
        before = identifier_columns(self._schema.relation) if allows_null else before
        return not before & set(change.dropped) and {names.get(n, n) for n in before} == identifier_columns(relation)

    def _drop_identifiers(self, update: Any) -> None:
        update.setIdentifierFields(self._catalog.strings([]))
        for field in self._schema.fields:
            if field.required:
                update.makeColumnOptional(field.name)

    def _add(self, update: Any, field: IcebergField, default: str | None) -> None:
        kind = self._type(field.type)
        if default is None:
            update.addColumn(field.name, kind, field.doc or "")
        else:
            update.addColumn(field.name, kind, field.doc or "", self._literal(field.type, default).to(kind))

    def _move(self, update: Any, name: str, order: list[str]) -> None:
        """Move a new column, also one that replaces another, to its place at the source."""
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
        fields = [field.to_json() for field in with_field_ids([IcebergField(0, "x", kind)])]
        schema = self._catalog.java.SchemaParser.fromJson(json.dumps({"type": "struct", "fields": fields}))
        return schema.columns().get(0).type()


def _field(addition: AddedColumn) -> IcebergField:
    return IcebergField(0, addition.column.name, iceberg_type(addition.column), doc=column_doc(addition.column))
