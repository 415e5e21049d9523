"""Spark's logical plans, read and rebuilt over py4j.

Three columns go through every operator of a statement unseen: `HIDDEN`, which says to which change a row belongs, and
two flags. So a statement need not select them, and rows that only carry information pass every condition. Spark's own
mechanism of metadata columns keeps `SELECT *` free of them, and of `_operation` and the like.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from tailrace.spark.statement.derivation import CONTROL, HIDDEN, PARTIAL

_CARRIED: Final = (HIDDEN, CONTROL, PARTIAL)
_METADATA: Final = {"__metadata_col": True}
"""Spark's mark of a column that `*` leaves out."""

Plan = Any
Expression = Any


class RefusedError(Exception):
    """Says why a statement cannot be evaluated change by change."""


@dataclass(frozen=True)
class ColumnLineage:
    """Where a column of a plan comes from."""

    column: str | None = None
    """The table's column that it shows as it is."""
    uses: frozenset[str] = frozenset()
    """The table's columns, and columns about the change, that it is computed from."""
    has_others: bool = False
    """Whether it also depends on other tables."""


@dataclass
class CarriedPlan:
    """A statement's plan with the hidden columns."""

    plan: Plan
    leaf: Plan
    outputs: list[tuple[str, ColumnLineage]]
    condition: ColumnLineage
    """What decides whether a row is in the result."""


@dataclass
class _Walk:
    leaf: Plan
    identity: frozenset[str]
    """Columns that are known also where only the key is."""
    origins: dict[int, ColumnLineage] = field(default_factory=dict)
    condition: ColumnLineage = field(default_factory=ColumnLineage)
    attributes: dict[str, Expression] = field(default_factory=dict)


class Catalyst:
    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        self._session: Any = spark._jsparkSession
        jvm: Any = spark._jvm
        self._jvm = jvm
        self._logical = jvm.org.apache.spark.sql.catalyst.plans.logical
        self._expressions = jvm.org.apache.spark.sql.catalyst.expressions

    def parse(self, text: str) -> Plan:
        return self._session.sessionState().sqlParser().parsePlan(text)

    def tables(self, plan: Plan) -> list[tuple[str, ...]]:
        """The names after FROM and JOIN, without those of common table expressions."""
        return [tuple(map(str, self._items(node.multipartIdentifier()))) for node in self._unresolved(plan, set())]

    def substitute(self, plan: Plan, found: Callable[[tuple[str, ...], str | None], Plan | None]) -> Plan:
        """The plan with other plans in the place of names. `found` gets the name and the alias."""
        kind = _kind(plan)
        if kind == "UnresolvedRelation":
            return found(tuple(map(str, self._items(plan.multipartIdentifier()))), None) or plan
        if kind == "SubqueryAlias" and _kind(plan.child()) == "UnresolvedRelation":
            name = tuple(map(str, self._items(plan.child().multipartIdentifier())))
            return found(name, str(plan.identifier().name())) or plan
        if kind == "UnresolvedWith":
            named = [
                self._jvm.scala.Tuple3(cte._1(), self.substitute(cte._2(), found), cte._3())
                for cte in self._items(plan.cteRelations())
            ]
            child = self.substitute(plan.child(), found)
            return self._logical.UnresolvedWith(child, self._seq(named), plan.allowRecursion())
        children = self._items(plan.children())
        if not children:
            return plan
        return plan.withNewChildren(self._seq([self.substitute(child, found) for child in children]))

    def leaf(self, rows: DataFrame, own: Sequence[str]) -> Plan:
        """The plan of change rows; all columns but its own are marked as metadata."""
        about = [f.col(_quoted(name)).alias(name, metadata=_METADATA) for name in rows.columns if name not in own]
        return self._analyzed_plan(rows.select(*map(_quoted, own), *about))

    def table(self, leaf: Plan, own: int, qualifier: Sequence[str]) -> Plan:
        """The leaf as a table of this name: the first `own` columns are its own, the others are metadata."""
        named = [a.withQualifier(self._seq(qualifier)) for a in self._items(leaf.output())]
        # The carried columns are not for statements.
        about = [a for a in named[own:] if a.name() not in _CARRIED]
        project = self._logical.Project(self._seq(named[:own]), leaf)
        companion = getattr(self._logical, "Project$").__getattr__("MODULE$")
        project.setTagValue(companion.hiddenOutputTag(), self._seq(about))
        return project

    def alias(self, frame: DataFrame, alias: str) -> Plan:
        return frame.alias(alias)._jdf.logicalPlan()

    def analyze(self, plan: Plan) -> Plan:
        """Resolved and checked by Spark; common table expressions in the place of their names."""
        return self._inline(self._dataset(plan).queryExecution().analyzed())

    def analyzed_frame(self, frame: DataFrame) -> Plan:
        return self._inline(self._analyzed_plan(frame))

    def frame(self, plan: Plan) -> DataFrame:
        return DataFrame(self._dataset(plan), self._spark)

    def carry_hidden(self, plan: Plan, leaf: Plan, identity: frozenset[str]) -> CarriedPlan:
        """The plan with the hidden columns in each output. Raises `RefusedError` for what is not stateless."""
        # Spark numbers the columns anew where it copies a plan, so names tell which node was the leaf.
        found = self._leaves(plan, self._names(leaf))
        if len(found) != 1:
            raise RefusedError(f"reads the changing table {len(found)} times: it must be once")
        leaf = found[0]
        walk = _Walk(leaf, identity)
        for attribute in self._items(leaf.output()):
            name = str(attribute.name())
            walk.origins[_id(attribute)] = ColumnLineage(name, frozenset((name,)))
            if name in _CARRIED:
                walk.attributes[name] = attribute
        # Spark names a column as the statement writes it, also if the table's has other capitals.
        own = {_id(a): str(a.name()) for a in self._items(leaf.output())}
        outputs = [(own.get(_id(a), str(a.name())), a) for a in self._items(plan.output())]
        outputs = [(name, attribute) for name, attribute in outputs if name not in _CARRIED]
        with_hidden = self._carry(plan, walk)
        for expression in self._all_expressions(plan, leaf):
            self._check(expression)
        shown = [attribute for _, attribute in outputs]
        top = self._logical.Project(self._seq([*shown, walk.attributes[HIDDEN]]), with_hidden)
        return CarriedPlan(top, leaf, [(name, walk.origins[_id(a)]) for name, a in outputs], walk.condition)

    def evaluate(self, carried: CarriedPlan, rows: DataFrame) -> DataFrame:
        """The statement over other rows of the same columns."""
        given = {str(a.name()): a for a in self._items(self._analyzed_plan(rows).output())}
        option, empty = self._jvm.scala.Option.empty(), self._seq([])
        renumbered = [
            self._expressions.Alias(given[str(a.name())], a.name(), a.exprId(), a.qualifier(), option, empty)
            for a in self._items(carried.leaf.output())
        ]
        leaf = self._logical.Project(self._seq(renumbered), self._analyzed_plan(rows))
        return self.frame(self._replace(carried.plan, carried.leaf, leaf))

    def _replace(self, plan: Plan, old: Plan, new: Plan) -> Plan:
        if plan.equals(old):
            return new
        children = self._items(plan.children())
        if not children:
            return plan
        return plan.withNewChildren(self._seq([self._replace(child, old, new) for child in children]))

    def _carry(self, plan: Plan, walk: _Walk) -> Plan:
        if plan.equals(walk.leaf):
            return plan
        kind = _kind(plan)
        match kind:
            case "Project":
                child = self._carry(plan.child(), walk)
                shown = [self._project(e, walk) for e in self._items(plan.projectList())]
                have = {_id(e) for e in shown}
                carried = [a for a in walk.attributes.values() if _id(a) not in have]
                return self._logical.Project(self._seq([*shown, *carried]), child)
            case "Filter":
                child = self._carry(plan.child(), walk)
                walk.condition = _join_lineages([walk.condition, self._origin(plan.condition(), walk)])
                passes = self._expressions.Or(walk.attributes[CONTROL], plan.condition())
                return self._logical.Filter(passes, child)
            case "SubqueryAlias" | "View" | "ResolvedHint":
                return plan.withNewChildren(self._seq([self._carry(plan.child(), walk)]))
            case "Join":
                return self._carry_join(plan, walk)
        raise RefusedError(_OPERATORS.get(kind, f"has an operator that needs more than one row ({kind})"))

    def _carry_join(self, plan: Plan, walk: _Walk) -> Plan:
        if not self._has_leaf(plan.left(), walk.leaf):
            raise RefusedError("joins the changes to another table: write the changing table first, then LEFT JOIN")
        kind = str(plan.joinType().toString())
        if kind != "LeftOuter":
            raise RefusedError(
                f"has a join of type {kind}: only LEFT JOIN is possible, because whether a row is delivered must not "
                "depend on what another table holds at the moment"
            )
        left = self._carry(plan.left(), walk)
        for attribute in self._items(plan.right().output()):
            walk.origins[_id(attribute)] = ColumnLineage(has_others=True)
        if plan.condition().isDefined():
            # What a row is joined with follows from these columns.
            used = self._origin(plan.condition().get(), walk)
            for attribute in self._items(plan.right().output()):
                walk.origins[_id(attribute)] = ColumnLineage(None, used.uses, has_others=True)
        return plan.withNewChildren(self._seq([left, plan.right()]))

    def _project(self, expression: Expression, walk: _Walk) -> Expression:
        origin = self._origin(expression, walk)
        if _kind(expression) != "Alias":
            return expression
        walk.origins[_id(expression)] = origin
        if origin.column is not None or not (origin.uses or origin.has_others):
            return expression
        flag = CONTROL if origin.uses <= walk.identity else PARTIAL
        none = self._expressions.Literal(None, expression.dataType())
        guarded = self._expressions.If(walk.attributes[flag], none, expression.child())
        return expression.withNewChildren(self._seq([guarded]))

    def _origin(self, expression: Expression, walk: _Walk) -> ColumnLineage:
        inner = expression.child() if _kind(expression) == "Alias" else expression
        if _kind(inner) == "AttributeReference":
            return walk.origins[_id(inner)]
        of = [walk.origins[_id(a)] for a in self._items(expression.references().toSeq()) if _id(a) in walk.origins]
        return _join_lineages(of)

    def _check(self, expression: Expression) -> None:
        for node in self._nodes(expression):
            kind = _kind(node)
            name = str(node.prettyName())
            if "Subquery" in kind or kind in ("Exists", "ListQuery"):
                raise RefusedError("has a subquery in an expression: LEFT JOIN state.TABLE looks up other tables")
            if kind == "AggregateExpression":
                raise RefusedError("has an aggregate, which looks at many rows")
            if kind.startswith(("Current", "Now", "LocalTimestamp", "UnixTimestampNow")) or kind in _OF_SESSION:
                raise RefusedError(f"calls {name}, which looks at more than the row")
            if not node.children().size() and not node.deterministic():
                raise RefusedError(f"calls {name}, which gives another value each time")
        if not expression.deterministic():
            raise RefusedError("calls a function that may give another value each time")

    def _all_expressions(self, plan: Plan, leaf: Plan) -> Iterator[Expression]:
        if plan.equals(leaf):
            return
        yield from self._items(plan.expressions())
        for child in self._items(plan.children()):
            yield from self._all_expressions(child, leaf)

    def _nodes(self, expression: Expression) -> Iterator[Expression]:
        yield expression
        for child in self._items(expression.children()):
            yield from self._nodes(child)

    def _has_leaf(self, plan: Plan, leaf: Plan) -> bool:
        return plan.equals(leaf) or any(self._has_leaf(child, leaf) for child in self._items(plan.children()))

    def _leaves(self, plan: Plan, names: list[str]) -> list[Plan]:
        if self._names(plan) == names:
            return [plan]
        return [leaf for child in self._items(plan.children()) for leaf in self._leaves(child, names)]

    def _names(self, plan: Plan) -> list[str]:
        return [str(attribute.name()) for attribute in self._items(plan.output())]

    def _unresolved(self, plan: Plan, known: set[str]) -> Iterator[Plan]:
        if _kind(plan) == "UnresolvedWith":
            known = set(known)
            for cte in self._items(plan.cteRelations()):
                yield from self._unresolved(cte._2(), known)
                known.add(str(cte._1()).lower())
        if _kind(plan) == "UnresolvedRelation":
            name = self._items(plan.multipartIdentifier())
            if len(name) > 1 or str(name[0]).lower() not in known:
                yield plan
        for child in self._items(plan.children()):
            yield from self._unresolved(child, known)

    def _inline(self, plan: Plan) -> Plan:
        return self._jvm.org.apache.spark.sql.catalyst.optimizer.InlineCTE(True, False).apply(plan)

    def _analyzed_plan(self, frame: DataFrame) -> Plan:
        return frame._jdf.queryExecution().analyzed()

    def _dataset(self, plan: Plan) -> Any:
        return self._jvm.org.apache.spark.sql.classic.Dataset.ofRows(self._session, plan)

    def _seq(self, items: Sequence[Any]) -> Any:
        return self._jvm.PythonUtils.toSeq(list(items))

    def _items(self, seq: Any) -> list[Any]:
        return [seq.apply(index) for index in range(seq.size())]


_OPERATORS: Final[Mapping[str, str]] = {
    "Aggregate": "has GROUP BY, DISTINCT or an aggregate, which look at many rows",
    "Distinct": "has DISTINCT, which looks at many rows",
    "Deduplicate": "drops duplicates, which looks at many rows",
    "Sort": "has ORDER BY: changes are delivered in the order of the log",
    "GlobalLimit": "has LIMIT, which looks at many rows",
    "LocalLimit": "has LIMIT, which looks at many rows",
    "Offset": "has OFFSET, which looks at many rows",
    "Window": "has a window function, which looks at many rows",
    "Union": "has UNION: a change is one row",
    "Intersect": "has INTERSECT, which looks at many rows",
    "Except": "has EXCEPT, which looks at many rows",
    "Generate": "makes several rows of one, with explode or the like: a change is one row",
    "Expand": "makes several rows of one: a change is one row",
    "Sample": "has TABLESAMPLE, which takes other rows each time",
    "Repartition": "divides the rows anew, which would lose their order",
    "RepartitionByExpression": "divides the rows anew, which would lose their order",
}

_OF_SESSION: Final = frozenset({"InputFileName", "SparkPartitionID", "MonotonicallyIncreasingID", "Uuid"})


def _join_lineages(origins: Sequence[ColumnLineage]) -> ColumnLineage:
    uses: frozenset[str] = frozenset().union(*(origin.uses for origin in origins))
    return ColumnLineage(None, uses, any(origin.has_others for origin in origins))


def _kind(node: Any) -> str:
    return str(node.getClass().getSimpleName())


def _id(attribute: Expression) -> int:
    return int(attribute.exprId().id())


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"
