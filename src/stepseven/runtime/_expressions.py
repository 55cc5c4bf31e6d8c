"""Expressions of a workflow's source, in the order in which they are evaluated.

A reading that begins in the middle is *muted* until it comes to the node where the frame stands: what is before that was
evaluated already, and only its values matter.

Longer than other files: one method for each kind of expression.
"""

# ruff: noqa: N802 - methods are named after the nodes they read, as those of ast.NodeVisitor

from __future__ import annotations

import ast
import builtins
import operator
import sys
import types
from collections.abc import Callable, Sequence
from typing import Any

from stepseven.runtime._attributes import Attributes
from stepseven.runtime._calls import Args
from stepseven.runtime._source import Piece
from stepseven.runtime._values import (
    FOREIGN,
    MISSING,
    OPAQUE,
    Def,
    Group,
    Instance,
    Is,
    Lazy,
    Pending,
    Scope,
    Some,
    Super,
    Value,
    boring,
    join,
    lift,
    within,
)  # fmt: skip

_COMPARE: dict[type[ast.cmpop], Callable[[Any, Any], bool]] = {
    ast.Eq: operator.eq, ast.NotEq: operator.ne, ast.Is: operator.is_, ast.IsNot: operator.is_not, ast.Lt: operator.lt,
    ast.LtE: operator.le, ast.Gt: operator.gt, ast.GtE: operator.ge,
}  # fmt: skip
_ADDS_LAST = frozenset({"append", "add", "insert", "appendleft", "put_nowait", "setdefault"})
_ADDS_ALL = frozenset({"extend", "update", "extendleft"})
_GIVES_ONE = frozenset({"pop", "popleft", "get", "popitem", "get_nowait"})
_SPREAD = 1000  # arguments that are told apart
Comprehension = ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp


def truth(value: Value) -> bool | None:
    """Whether a condition holds; ``None``: that is decided when the code runs."""
    return bool(value.obj) if isinstance(value, Is) and value.sure else None


class Expressions(Attributes):
    """Reads expressions."""

    target: ast.AST | None = None  # where the frame stands that the reading goes on from
    path: frozenset[ast.AST] = frozenset()  # that node, and everything around it; empty once it was reached

    def arrive(self) -> None:
        """From here on everything is yet to come."""
        self.target, self.path, self.muted = None, frozenset(), False

    def ev(self, node: ast.expr) -> Value:
        """What an expression gives; what it calls is noted."""
        self.spend()
        read = getattr(self, f"_{type(node).__name__}", None)
        value: Value = self._parts(node) if read is None else read(node)
        if node is self.target:
            self.arrive()
        return value

    def _parts(self, node: ast.AST) -> Value:
        """Something whose value is of no interest, made of others."""
        dull = True
        for inner in ast.iter_child_nodes(node):
            if isinstance(inner, ast.expr):
                dull = boring(self.ev(inner)) and dull
            elif isinstance(inner, ast.FormattedValue | ast.Slice | ast.keyword):
                self._parts(inner)
        return FOREIGN if dull or isinstance(node, ast.JoinedStr | ast.FormattedValue | ast.Compare | ast.UnaryOp) else OPAQUE

    # -- names ----------------------------------------------------------------------------------------------------------

    def _Constant(self, node: ast.Constant) -> Value:
        return Is(node.value, sure=True)

    def _Name(self, node: ast.Name) -> Value:
        return self.lookup(node.id)

    def lookup(self, name: str) -> Value:
        """What a name stands for."""
        if name == "TYPE_CHECKING":
            return Is(obj=False, sure=True)
        scope: Scope | None = self.scope
        while scope is not None:
            found = scope.names.get(name)
            if found is not None and name not in scope.elsewhere:
                unsure = scope is not self.scope or name in scope.changing
                return Is(found.obj) if unsure and isinstance(found, Is) and found.sure else found
            scope = scope.outer
        return lift(self.scope.module.get(name, getattr(builtins, name, MISSING))) if self._is_global(name) else OPAQUE

    def _is_global(self, name: str) -> bool:
        return name in self.scope.module or hasattr(builtins, name)

    def assign(self, target: ast.expr, value: Value, node: ast.AST) -> None:
        """Give a target its value."""
        if isinstance(target, ast.Name):
            self.name(target.id, value)
        elif isinstance(target, ast.Tuple | ast.List):
            self._unpack(target.elts, value, node)
        elif isinstance(target, ast.Starred):
            self.assign(target.value, Group([within(value)]) if not isinstance(value, Group) else value, node)
        elif isinstance(target, ast.Attribute):
            self._set_attribute(self.ev(target.value), target.attr, value, node)
        elif isinstance(target, ast.Subscript):
            container = self.ev(target.value)
            self.ev(target.slice)
            if isinstance(container, Group):
                container.items.append(value)
                container.keys = None
            else:
                self.hand_on([value], node)

    def name(self, name: str, value: Value) -> None:
        """Give a name its value, where it belongs."""
        scope = self.scope
        if name in scope.elsewhere:
            outer = scope.outer
            while outer is not None and name not in outer.names:
                outer = outer.outer
            if outer is not None:
                outer.names[name] = join([outer.names[name], value])
                return
            self.hand_on([value], ast.Pass(lineno=0))
        scope.names[name] = value

    def _unpack(self, targets: Sequence[ast.expr], value: Value, node: ast.AST) -> None:
        exact = isinstance(value, Group) and value.keys is None and len(value.items) == len(targets)
        starred = any(isinstance(t, ast.Starred) for t in targets)
        known = list(map(lift, value.obj)) if isinstance(value, Is) and isinstance(value.obj, tuple) else []
        for i, target in enumerate(targets):
            if exact and not starred and isinstance(value, Group):
                self.assign(target, value.items[i], node)
            elif not starred and len(known) == len(targets):
                self.assign(target, known[i], node)
            else:
                one = within(value)
                self.assign(target, Group([one]) if isinstance(target, ast.Starred) else one, node)

    def _set_attribute(self, of: Value, name: str, value: Value, node: ast.AST) -> None:
        if isinstance(of, Instance):
            before = of.attrs.get(name) if self.many or self.maybe else None
            of.attrs[name] = value if before is None else join([before, value])
        elif isinstance(of, Is) and not isinstance(of.obj, type | types.ModuleType):
            at = (id(of.obj), name)
            self.overlay[at] = join([self.attr(of, name, node), value]) if self.many or self.maybe else value
        else:
            self.hand_on([value], node)

    # -- plain ones -----------------------------------------------------------------------------------------------------

    def _NamedExpr(self, node: ast.NamedExpr) -> Value:
        value = self.ev(node.value)
        self.assign(node.target, value, node)
        return value

    def _Starred(self, node: ast.Starred) -> Value:
        return self.ev(node.value)

    def _display(self, node: ast.Tuple | ast.List | ast.Set) -> Value:
        items: list[Value] = []
        for inner in node.elts:
            value = self.ev(inner)
            if isinstance(inner, ast.Starred):
                items += value.items if isinstance(value, Group) and value.keys is None else [self.iterate(value, node)]
            else:
                items.append(value)
        return Group(items)

    _Tuple = _List = _Set = _display

    def _Dict(self, node: ast.Dict) -> Value:
        keys: list[Any] | None = []
        items: list[Value] = []
        for k, v in zip(node.keys, node.values, strict=True):
            named = None if k is None else self.ev(k)
            value = self.ev(v)
            if isinstance(named, Is) and named.sure and keys is not None:
                keys.append(named.obj)
                items.append(value)
            else:
                keys = None
                items += [within(value)] if k is None else [value]
        return Group(items, keys)

    def _Subscript(self, node: ast.Subscript) -> Value:
        of, index = self.ev(node.value), self.ev(node.slice)
        return self.item(of, index)

    def _Slice(self, node: ast.Slice) -> Value:
        self._parts(node)
        return OPAQUE

    def item(self, of: Value, index: Value) -> Value:  # noqa: PLR0911 - one case for each kind of value
        """``of[index]``."""
        known = isinstance(index, Is) and isinstance(index.obj, str | int | bool | bytes)
        if isinstance(of, Some):
            return join([self.item(one, index) for one in of.options])
        if isinstance(of, Group):
            if isinstance(index, Is) and known and of.keys is not None:
                found = [v for k, v in zip(of.keys, of.items, strict=False) if k == index.obj]
                return found[-1] if found else within(of)
            return within(of)
        if isinstance(of, Is) and isinstance(index, Is) and known and isinstance(of.obj, dict | list | tuple):
            try:
                return lift(of.obj[index.obj])
            except (KeyError, IndexError, TypeError):
                return within(of)
        if isinstance(of, Is) and (of.obj is self.scope.module or of.obj is sys.modules):  # one of all there is
            return OPAQUE
        if isinstance(of, Is) and isinstance(of.obj, type):  # a generic alias
            return of
        if isinstance(of, Is | Instance):
            method = self.attr(of, "__getitem__", ast.Pass(lineno=0))
            if isinstance(of, Instance) or not isinstance(of.obj, str | bytes | dict | list | tuple):
                return OPAQUE if method is not FOREIGN else FOREIGN
        return within(of)

    def _UnaryOp(self, node: ast.UnaryOp) -> Value:
        known = truth(self.ev(node.operand))
        return Is(not known, sure=True) if isinstance(node.op, ast.Not) and known is not None else FOREIGN

    def _BinOp(self, node: ast.BinOp) -> Value:
        left, right = self.ev(node.left), self.ev(node.right)
        if boring(left) and boring(right):
            return FOREIGN
        containers = [
            v
            for v in (left, right)
            if isinstance(v, Group) or (isinstance(v, Is) and isinstance(v.obj, list | tuple | dict | set))
        ]
        return Group([within(v) for v in containers]) if containers else OPAQUE

    def _Compare(self, node: ast.Compare) -> Value:
        values = [self.ev(node.left), *(self.ev(c) for c in node.comparators)]
        compare = _COMPARE.get(type(node.ops[0])) if len(values) == 2 else None  # noqa: PLR2004 - a op b
        left, right = values[0], values[-1]
        if compare is not None and isinstance(left, Is) and isinstance(right, Is) and left.sure and right.sure:
            try:
                return Is(bool(compare(left.obj, right.obj)), sure=True)
            except TypeError:
                return FOREIGN
        return FOREIGN

    # -- conditions -----------------------------------------------------------------------------------------------------

    def _IfExp(self, node: ast.IfExp) -> Value:
        if node.body in self.path or node.orelse in self.path:
            return self.ev(node.body if node.body in self.path else node.orelse)
        known = truth(self.ev(node.test))
        if known is not None:
            return self.ev(node.body if known else node.orelse)
        with self.under(maybe=True):
            return join([self.ev(node.body), self.ev(node.orelse)])

    def _BoolOp(self, node: ast.BoolOp) -> Value:
        values: list[Value] = []
        reached = next((i for i, v in enumerate(node.values) if v in self.path), 0)  # those before it did not decide
        stops = isinstance(node.op, ast.Or)
        certain = True
        for inner in node.values[reached:]:
            with self.under(maybe=not certain):
                value = self.ev(inner)
            known = truth(value)
            values.append(value)
            if known is stops:
                break
            certain = certain and known is not None
        return values[0] if len(values) == 1 else join(values)

    # -- calls ----------------------------------------------------------------------------------------------------------

    def _Attribute(self, node: ast.Attribute) -> Value:
        return self.attr(self.ev(node.value), node.attr, node)

    def _Call(self, node: ast.Call) -> Value:
        if isinstance(node.func, ast.Attribute):
            of = self.ev(node.func.value)
            if node.func is self.target:
                self.arrive()
            args = self.args(node)
            known = self._method_of_container(of, node.func, args, node)
            if known is not None:
                return known
            if isinstance(of, Pending) and node.func.attr in ("__await__", "send"):
                return self.consume(of, node)
            if of is FOREIGN and node.func.attr in ("create_task", "ensure_future"):
                return self.awaiting(Args(args.positional[:1], {n: v for n, v in args.named.items() if n == "coro"}), node)
            return self.call(self.attr(of, node.func.attr, node), args, node)
        fn = self.ev(node.func)
        if isinstance(fn, Is) and fn.obj is super:
            return self._super(node)
        return self.call(fn, self.args(node), node)

    def args(self, node: ast.Call) -> Args:
        """A call's arguments."""
        made, rest = Args(), list[Value]()
        for inner in node.args:
            value = self.ev(inner)
            if not isinstance(inner, ast.Starred):
                made.positional.append(value)
            elif isinstance(value, Group) and value.keys is None and not rest:
                made.positional += value.items
            elif isinstance(value, Is) and isinstance(value.obj, list | tuple) and len(value.obj) <= _SPREAD and not rest:
                made.positional += map(lift, value.obj)
            else:
                rest.append(self.iterate(value, node))
        for keyword in node.keywords:
            value = self.ev(keyword.value)
            if keyword.arg is not None:
                made.named[keyword.arg] = value
            elif isinstance(value, Group) and value.keys is not None:
                made.named.update(zip(map(str, value.keys), value.items, strict=False))
            elif isinstance(value, Is) and isinstance(value.obj, dict):
                made.named.update({str(k): lift(v) for k, v in value.obj.items()})
            else:
                rest.append(within(value))
        made.rest = join(rest) if rest else None
        return made

    def _super(self, node: ast.Call) -> Value:
        args = self.args(node)
        cls = args.positional[0] if args.positional else self.lookup("__class__")
        first = next(iter(self.scope.names.values()), OPAQUE)
        of = args.positional[1] if len(args.positional) > 1 else self.lookup("self") if "self" in self.scope.names else first
        return Super(cls.obj, of) if isinstance(cls, Is) and isinstance(cls.obj, type) else OPAQUE

    def _method_of_container(self, of: Value, func: ast.Attribute, args: Args, node: ast.AST) -> Value | None:
        """A call of a list's, a set's or a dict's method; ``None``: it is none."""
        real = isinstance(of, Is) and isinstance(of.obj, list | dict | set)
        if not (isinstance(of, Group) or real):
            return None
        name = func.attr
        if name in _ADDS_LAST or name in _ADDS_ALL:
            if name in _ADDS_LAST:
                added = args.positional[-1:]
            else:
                added = [*(self.iterate(v, node) for v in args.positional), *args.named.values()]
            if isinstance(of, Group):
                of.items += added
                of.keys = None if name != "setdefault" else of.keys
                return within(of) if name == "setdefault" else FOREIGN
            if isinstance(func.value, ast.Name):
                self.name(func.value.id, Group([within(of), *added]))
            else:
                self.hand_on(added, node)
            return FOREIGN
        if name in _GIVES_ONE:
            index = args.positional[0] if args.positional else OPAQUE
            return join([self.item(of, index), *args.positional[1:2]])
        if name == "items":
            return Group([Group([FOREIGN, within(of)])])
        if name == "keys":
            return FOREIGN
        return Group([within(of)]) if name in ("values", "copy", "union") else None

    # -- waiting --------------------------------------------------------------------------------------------------------

    def _Await(self, node: ast.Await) -> Value:
        return self.consume(self.ev(node.value), node)

    def _Yield(self, node: ast.Yield) -> Value:
        value = FOREIGN if node.value is None else self.ev(node.value)
        self.yields.append(value)
        return OPAQUE

    def _YieldFrom(self, node: ast.YieldFrom) -> Value:
        self.yields.append(self.iterate(self.ev(node.value), node))
        return OPAQUE

    def __init__(self, home: str, *, in_step: bool = False) -> None:
        super().__init__(home, in_step=in_step)
        self.yields: list[Value] = []
        self.returns: list[Value] = []

    # -- functions and comprehensions inside ----------------------------------------------------------------------------

    def _Lambda(self, node: ast.Lambda) -> Value:
        return Def(Piece(node, self.file), self.scope, self.defaults(node.args))

    def defaults(self, a: ast.arguments) -> dict[str, Value]:
        """The defaults of a function's parameters, evaluated where it is defined."""
        positional = [*a.posonlyargs, *a.args]
        found = {p.arg: self.ev(d) for p, d in zip(positional[len(positional) - len(a.defaults) :], a.defaults, strict=True)}
        found.update({p.arg: self.ev(d) for p, d in zip(a.kwonlyargs, a.kw_defaults, strict=True) if d is not None})
        return found

    def _ListComp(self, node: Comprehension) -> Value:
        if node in self.path and node is not self.target:  # it stands in here: what is left of it is all of it, or nothing
            first = node.generators[0].iter
            if first in self.path:
                return self.comprehension(node, self.ev(first))
            self.arrive()
            with self.under(many=True, maybe=True):
                return self.comprehension(node, self._quietly(first))
        return self.comprehension(node, self.ev(node.generators[0].iter))

    _SetComp = _DictComp = _ListComp

    def _GeneratorExp(self, node: ast.GeneratorExp) -> Value:
        first, scope, file = self.ev(node.generators[0].iter), self.scope, self.file

        def go() -> Value:
            before = self.scope, self.file
            self.scope, self.file = scope, file
            try:
                return within(self.comprehension(node, first))
            finally:
                self.scope, self.file = before

        return Lazy(go, ("genexpr", node))

    def _quietly(self, node: ast.expr) -> Value:
        """The value of what was evaluated already."""
        before, self.muted = self.muted, True
        try:
            return self.ev(node)
        finally:
            self.muted = before

    def comprehension(self, node: Comprehension, first: Value) -> Value:
        """Everything that a comprehension calls, and what it gives."""
        before = self.scope
        self.scope = Scope({}, before, before.module)
        try:
            with self.under(many=True):
                return Group([self._generators(node, 0, first)])
        finally:
            self.scope = before

    def _generators(self, node: Comprehension, at: int, value: Value) -> Value:
        generator = node.generators[at]
        self.assign(generator.target, self.iterate(value, generator.target, wait=bool(generator.is_async)), node)
        for condition in generator.ifs:
            self.ev(condition)
        with self.under(maybe=bool(generator.ifs)):
            if at + 1 < len(node.generators):
                return self._generators(node, at + 1, self.ev(node.generators[at + 1].iter))
            if isinstance(node, ast.DictComp):
                self.ev(node.key)
                return self.ev(node.value)
            return self.ev(node.elt)
