"""Statements of a workflow's source: which are yet to come, which only perhaps, which again and again.

Longer than other files: one method per kind of statement, and each leaves off where another goes on.
"""

# ruff: noqa: N802 - methods are named after the nodes they read, as those of ast.NodeVisitor

from __future__ import annotations

import ast
import functools
import importlib.util
import sys
import types
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from stepseven.runtime import _tables as tables
from stepseven.runtime._calls import Args
from stepseven.runtime._expressions import Expressions, truth
from stepseven.runtime._names import joined, merged, round_joined, scopes_of
from stepseven.runtime._source import Piece, begun, indexed, piece_of, standing
from stepseven.runtime._values import (
    FOREIGN,
    OPAQUE,
    Bound,
    Declared,
    Def,
    Group,
    Instance,
    Is,
    Lazy,
    Scope,
    Value,
    attribute,
    foreign,
    join,
    lift,
    ours,
    plain_key,
)  # fmt: skip

FALLS, BREAKS, CONTINUES, RETURNS, RAISES = 1, 2, 4, 8, 16  # how a block may be left
_ROUNDS = 4  # how often a loop is read until its names stand for the same as before
_DEEP = 12  # how often one function is read inside itself


class Reader(Expressions):
    """Reads whole functions."""

    def __init__(self, home: str, *, in_step: bool = False) -> None:
        super().__init__(home, in_step=in_step)
        self.inside_of: dict[ast.AST, list[Any]] = {}  # functions that are being read -> with which arguments
        self.recursive: set[tuple[ast.AST, Any]] = set()  # that called themselves with the same
        self.leaving = False  # what the frame stands in is the end of its ``async with``

    # -- functions ------------------------------------------------------------------------------------------------------

    def walk(self, d: Def, names: dict[str, Value]) -> Value:
        """Read a function's body; what it returns, or yields."""
        node, given = d.node, self._given(names)
        around = self.inside_of.setdefault(node, [])
        if given in around:
            self.recursive.add((node, given))
            return FOREIGN
        if len(around) >= _DEEP:
            self.unknown(node)
            return OPAQUE
        before = (self.scope, self.file, self.returns, self.yields, self.target, self.path)
        self.scope = Scope(dict(names), d.scope, d.scope.module, *scopes_of(node))
        self.file, self.returns, self.yields = d.piece.file, [], []
        self.target, self.path = None, frozenset()
        around.append(given)
        start = len(self.out)
        try:
            if isinstance(node, ast.Lambda):
                return self.ev(node.body)
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                self.block(node.body)
            return join(self.yields) if self.yields or tables.is_generator(node) else join(self.returns)
        finally:
            around.pop()
            if (node, given) in self.recursive:
                self.recursive.discard((node, given))
                self.out[start:] = merged([replace(c, many=True) for c in self.out[start:]])
            self.scope, self.file, self.returns, self.yields, self.target, self.path = before

    def _given(self, names: dict[str, Value]) -> Any:
        """What tells a function that calls itself from one that calls itself with something else."""
        attributes = tuple((at, plain_key(v)) for at, v in self.overlay.items())
        return tuple((n, plain_key(v)) for n, v in names.items()), attributes

    def after_yield(self, lazy: Lazy) -> None:
        """Read on after the first ``yield`` of a generator."""
        if lazy.body is None or not isinstance(lazy.body.node, ast.FunctionDef | ast.AsyncFunctionDef):
            return
        first = next((n for n in tables.own(lazy.body.node) if isinstance(n, ast.Yield)), None)
        if first is not None:
            piece = indexed(lazy.body.node, lazy.body.piece.file)
            scope = Scope(dict(lazy.args), lazy.body.scope, lazy.body.scope.module, *scopes_of(lazy.body.node))
            self._from(piece, scope, first, exact=True)

    def resume(self, frame: types.FrameType, node: ast.AST, lasti: int | None = None) -> Value:
        """Read on from where a frame stands; what the function returns or yields."""
        code = frame.f_code
        if foreign(code.co_filename, frame.f_globals.get("__name__"), frame.f_globals, self.home) or ours(code.co_filename):
            return FOREIGN
        piece = piece_of(code, frame.f_globals)
        if piece is None:
            self.unknown(node)
            return OPAQUE
        elsewhere, changing = scopes_of(piece.node)
        shared = {*code.co_freevars, *code.co_cellvars}
        names = {n: lift(v, sure=n not in shared) for n, v in frame.f_locals.items()}
        scope = Scope(names, None, frame.f_globals, elsewhere - names.keys(), changing)
        lasti = frame.f_lasti if lasti is None else lasti
        if not begun(code, lasti):
            return self._from(piece, scope, None, exact=False)
        target, exact = standing(piece, code, lasti)
        if target is None:
            self.unknown(node)
            return OPAQUE
        return self._from(piece, scope, self._manager(piece, target), exact=exact)

    def _manager(self, piece: Piece, target: ast.AST) -> ast.AST:
        """The ``async with`` that is entered or left: since Python 3.13 that is said to be at its expression."""
        item = piece.parents.get(target)
        statement = piece.parents.get(item) if isinstance(item, ast.withitem) else None
        entering = statement is not None and (self.leaving or not isinstance(target, ast.Await))
        return statement if isinstance(statement, ast.AsyncWith) and entering else target

    def _from(self, piece: Piece, scope: Scope, target: ast.AST | None, *, exact: bool) -> Value:
        """Read a function from a node on: after it where the frame waits *exactly* in it, else with it."""
        node = piece.node
        before = (self.scope, self.file, self.returns, self.yields, self.target, self.path, self.muted)
        self.scope, self.file, self.returns, self.yields = scope, piece.file, [], []
        self.target, self.path = (None, frozenset()) if target is None else (target, piece.path(target))
        self.exact = exact
        self.muted = self.muted or target is not None
        self.inside_of.setdefault(node, []).append(None)
        try:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                self.block(node.body)
            elif isinstance(node, ast.Lambda):
                self.ev(node.body)
            else:
                self._rest_of_comprehension(node)
            return join(self.yields) if self.yields else join(self.returns)
        finally:
            self.inside_of[node].pop()
            self.scope, self.file, self.returns, self.yields, self.target, self.path, self.muted = before

    def _rest_of_comprehension(self, node: ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp) -> None:
        self.arrive()
        known = self.scope.names.get(".0", FOREIGN)  # its first iterable, which may be a bare iterator
        with self.under(many=True, maybe=True):
            self.comprehension(node, known if not isinstance(known, Is) or _readable(known.obj) else OPAQUE)

    # -- blocks ---------------------------------------------------------------------------------------------------------

    def block(self, body: Sequence[ast.stmt]) -> int:
        """Read statements one after the other; how they may be left."""
        left, doubtful = 0, 0
        first = next((i for i, s in enumerate(body) if s in self.path), 0) if self.path else 0
        try:
            for statement in body[first:]:
                if statement is self.target and not self.exact:
                    self.arrive()
                how = self.statement(statement)
                left |= how & ~FALLS
                if not how & FALLS:
                    return left
                if how & ~FALLS and not doubtful:
                    doubtful = 1
                    self.maybe += 1
            return left | FALLS
        finally:
            self.maybe -= doubtful

    def statement(self, s: ast.stmt) -> int:
        """Read one statement; how it may be left."""
        self.spend()
        read = getattr(self, f"_{type(s).__name__}", None)
        if read is not None:
            how: int = read(s)
            return how
        for inner in ast.iter_child_nodes(s):
            if isinstance(inner, ast.expr):
                self.ev(inner)
        return FALLS

    def _either(self, ways: Sequence[Callable[[], int]]) -> int:
        """One of several ways, whichever; each begins with the same names."""
        start, ends, left = self.scope.names, list[dict[str, Value]](), 0
        with self.under(maybe=True):
            for way in ways:
                self.scope.names = dict(start)
                how = way()
                left |= how
                if how & (FALLS | BREAKS | CONTINUES):
                    ends.append(self.scope.names)
        self.scope.names = joined(ends) if ends else start
        return left

    def _If(self, s: ast.If) -> int:
        for body in (s.body, s.orelse):
            if self.path and any(inner in self.path for inner in body):
                return self.block(body)
        known = truth(self.ev(s.test))
        if known is not None:
            return self.block(s.body if known else s.orelse)
        return self._either([functools.partial(self.block, s.body), functools.partial(self.block, s.orelse)])

    def _Match(self, s: ast.Match) -> int:
        for case in s.cases:
            if self.path and any(inner in self.path for inner in case.body):
                return self.block(case.body)
        subject = self.ev(s.subject)

        def one(case: ast.match_case) -> int:
            for pattern in ast.walk(case.pattern):
                name = getattr(pattern, "name", None) or getattr(pattern, "rest", None)
                if isinstance(name, str):
                    self.name(name, subject if pattern is case.pattern else OPAQUE)
            if case.guard is not None:
                self.ev(case.guard)
            return self.block(case.body)

        last = s.cases[-1]
        whole = last.guard is None and isinstance(last.pattern, ast.MatchAs) and last.pattern.pattern is None
        ways = [functools.partial(one, case) for case in s.cases]
        return self._either([*ways, *([] if whole else [lambda: FALLS])])

    # -- loops ----------------------------------------------------------------------------------------------------------

    def _For(self, s: ast.For | ast.AsyncFor) -> int:
        wait, start = isinstance(s, ast.AsyncFor), len(self.out)
        if self.path and any(inner in self.path for inner in s.orelse):
            return self.block(s.orelse)
        inside = bool(self.path) and any(inner in self.path for inner in s.body)
        value = self.ev(s.iter)
        how = FALLS
        if inside:
            how = self.block(s.body)
        elif s is self.target:
            self.arrive()
            inside = True

        def once() -> int:
            self.assign(s.target, self.iterate(value, s.iter, wait=wait), s)
            return self.block(s.body)

        return self._rounds(once, s.orelse, how, start, again=inside)

    _AsyncFor = _For

    def _While(self, s: ast.While) -> int:
        start = len(self.out)
        if self.path and any(inner in self.path for inner in s.orelse):
            return self.block(s.orelse)
        inside = bool(self.path) and any(inner in self.path for inner in s.body)
        endless = isinstance(s.test, ast.Constant) and bool(s.test.value)
        how = FALLS
        if inside:
            how = self.block(s.body)
        elif self.path and s.test in self.path:
            self.ev(s.test)
            inside = True

        def once() -> int:
            self.ev(s.test)
            return self.block(s.body)

        left = self._rounds(once, s.orelse, how, start, again=inside)
        return left & ~FALLS if endless and not self._broke else left

    _broke = False  # the loop that was read last can be left by ``break``

    def _rounds(self, once: Callable[[], int], orelse: Sequence[ast.stmt], how: int, start: int, *, again: bool) -> int:
        """Read a loop's body as often as it takes until its names stand for the same as before."""
        left = how & ~FALLS
        if how & (FALLS | CONTINUES):
            with self.under(many=True, maybe=again):
                for n in range(_ROUNDS):
                    before = dict(self.scope.names)
                    left |= once()
                    self.scope.names, changed = round_joined(before, self.scope.names, give_up=n == _ROUNDS - 2)
                    if not changed:
                        break
        self.out[start:] = merged(self.out[start:])
        broke = bool(left & BREAKS)
        if orelse:
            with self.under(maybe=broke):
                left |= self.block(orelse) & ~FALLS
        self._broke = broke
        return FALLS | (left & (RETURNS | RAISES))

    def _Break(self, s: ast.Break) -> int:
        del s
        return BREAKS

    def _Continue(self, s: ast.Continue) -> int:
        del s
        return CONTINUES

    # -- leaving --------------------------------------------------------------------------------------------------------

    def _Return(self, s: ast.Return) -> int:
        self.returns.append(FOREIGN if s.value is None else self.ev(s.value))
        return RETURNS

    def _Raise(self, s: ast.Raise) -> int:
        for inner in (s.exc, s.cause):
            if inner is not None:
                self.ev(inner)
        return RAISES

    def _Try(self, s: ast.Try | ast.TryStar) -> int:
        entered = next((p for p in (s.handlers, s.orelse, s.finalbody) if self.path and any(n in self.path for n in p)), None)
        if entered is s.finalbody and entered:
            return self.block(s.finalbody) | RAISES  # it may have come here by an exception, which goes on
        if entered is s.orelse and entered:
            left = self.block(s.orelse)
        elif entered:
            handler = next(h for h in s.handlers if h in self.path)
            left = self.block(handler.body)
        else:
            left = self.block(s.body)
            if s.handlers:
                left &= ~RAISES
            if left & FALLS and s.orelse:
                left = (left & ~FALLS) | self.block(s.orelse)
            if s.handlers:
                ways = [functools.partial(self._handler, h) for h in s.handlers]
                left |= self._either([*ways, lambda: 0]) & ~RAISES
        final = self.block(s.finalbody)
        return left | (final & ~FALLS) if final & FALLS else final

    _TryStar = _Try

    def _handler(self, h: ast.ExceptHandler) -> int:
        if h.type is not None:
            self.ev(h.type)
        if h.name is not None:
            self.name(h.name, FOREIGN)
        return self.block(h.body)

    def _With(self, s: ast.With | ast.AsyncWith) -> int:
        wait = isinstance(s, ast.AsyncWith)
        if s is self.target and self.leaving:
            self.arrive()
            return FALLS
        inside = bool(self.path) and any(inner in self.path for inner in s.body)
        managers: list[Value] = []
        for item in s.items:
            value = self.ev(item.context_expr)
            managers.append(value)
            if not inside:
                entered = self._enter(value, item.context_expr, wait=wait)
                if item.optional_vars is not None:
                    self.assign(item.optional_vars, entered, s)
        if s is self.target:
            self.arrive()
        left = self.block(s.body)
        for value, item in zip(reversed(managers), reversed(s.items), strict=True):
            self._leave(value, item.context_expr, wait=wait, inside=inside)
        return left

    _AsyncWith = _With

    def _enter(self, value: Value, node: ast.expr, *, wait: bool) -> Value:
        """What ``with … as`` gives."""
        if isinstance(value, Lazy):
            return self.iterate(value, node)
        method = self._special(value, "__aenter__" if wait else "__enter__")
        if method is not None:
            entered = self.call(method, Args(), node)
            return self.consume(entered, node) if wait else entered
        if value is OPAQUE and wait:
            self.unknown(node)
        return value

    def _leave(self, value: Value, node: ast.expr, *, wait: bool, inside: bool) -> None:
        method = self._special(value, "__aexit__" if wait else "__exit__")
        if isinstance(value, Lazy) and inside:
            self.after_yield(value)
        elif method is not None:
            left = self.call(method, Args([FOREIGN, FOREIGN, FOREIGN]), node)
            if wait:
                self.consume(left, node)

    def _special(self, value: Value, name: str) -> Value | None:
        """A method of a user's class that the language calls."""
        if not isinstance(value, Instance | Is):
            return None
        cls = value.cls if isinstance(value, Instance) else type(value.obj)
        method = attribute(cls, name)
        if not isinstance(method, types.FunctionType) or self._foreign(method):
            return None
        return Bound(Is(method), (value,))

    # -- names ----------------------------------------------------------------------------------------------------------

    def _Assign(self, s: ast.Assign) -> int:
        value = self.ev(s.value)
        for target in s.targets:
            self.assign(target, value, s)
        return FALLS

    def _AnnAssign(self, s: ast.AnnAssign) -> int:
        if s.value is not None:
            self.assign(s.target, self.ev(s.value), s)
        return FALLS

    def _AugAssign(self, s: ast.AugAssign) -> int:
        added = self.ev(s.value)
        if isinstance(s.target, ast.Name):
            before = self.lookup(s.target.id)
            if isinstance(before, Group) and isinstance(added, Group):
                before.items += added.items
            else:
                self.name(s.target.id, OPAQUE if OPAQUE in (before, added) else join([FOREIGN, before, added]))
        else:
            self.hand_on([added], s)
        return FALLS

    def _Import(self, s: ast.Import) -> int:
        for alias in s.names:
            name = alias.name if alias.asname else alias.name.partition(".")[0]
            module = sys.modules.get(name)
            self.name(alias.asname or name, lift(module) if module is not None else self._unloaded(name))
        return FALLS

    def _ImportFrom(self, s: ast.ImportFrom) -> int:
        package = str(self.scope.module.get("__package__") or "").split(".")
        base = (
            ".".join([*package[: len(package) - s.level + 1], *([s.module] if s.module else [])]) if s.level else s.module or ""
        )
        module = sys.modules.get(base)
        for alias in s.names:
            found = None if module is None else vars(module).get(alias.name, sys.modules.get(f"{base}.{alias.name}"))
            self.name(alias.asname or alias.name, self._unloaded(base) if found is None else lift(found))
        return FALLS

    def _unloaded(self, name: str) -> Value:
        """Something of a module that is not loaded yet. Looking must not load it."""
        top = name.partition(".")[0]
        return FOREIGN if top != self.home and _is_foreign_package(top) else OPAQUE

    def _FunctionDef(self, s: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
        made: Value = Def(Piece(s, self.file), self.scope, self.defaults(s.args))
        for decorator in reversed(s.decorator_list):
            made = self._decorated(decorator, s, made)
        self.name(s.name, made)
        return FALLS

    _AsyncFunctionDef = _FunctionDef

    def _decorated(self, decorator: ast.expr, s: ast.FunctionDef | ast.AsyncFunctionDef, made: Value) -> Value:
        called = decorator if isinstance(decorator, ast.Call) else None
        what = self._quietly(called.func if called is not None else decorator)
        if isinstance(what, Is) and getattr(what.obj, "__module__", "") == "stepseven.step":
            given = {k.arg: tables.constant(k.value) for k in called.keywords if k.arg} if called is not None else {}
            first = tables.constant(called.args[0]) if called is not None and called.args else None
            return Declared(given.get("name") or first or s.name, given.get("effect") if given.get("effect") != "read" else None)
        value = self.ev(decorator)
        if not isinstance(value, Is | Def) or (isinstance(value, Is) and _of_library(value.obj)):
            return made if value is not OPAQUE else OPAQUE
        result = self.call(value, Args([made]), decorator)
        return made if result is FOREIGN else result

    def _ClassDef(self, s: ast.ClassDef) -> int:
        for inner in (*s.decorator_list, *s.bases):
            self.ev(inner)
        for method in s.body:
            if isinstance(method, ast.FunctionDef | ast.AsyncFunctionDef):
                self.hand_on([Def(Piece(method, self.file), self.scope)], method)
        self.name(s.name, FOREIGN)
        return FALLS

    def _Global(self, s: ast.Global | ast.Nonlocal) -> int:
        del s
        return FALLS

    _Nonlocal = _Global

    def _Delete(self, s: ast.Delete) -> int:
        del s
        return FALLS


@functools.lru_cache(maxsize=512)
def _is_foreign_package(top: str) -> bool:
    if top in sys.stdlib_module_names:
        return True
    try:
        spec = importlib.util.find_spec(top)
    except (ImportError, ValueError):
        return False
    return spec is not None and foreign(spec.origin, top, {}, "")


def _of_library(obj: Any) -> bool:
    return str(getattr(obj, "__module__", "")).partition(".")[0] in sys.stdlib_module_names and obj is not tables.same


def _readable(obj: Any) -> bool:
    return isinstance(obj, list | tuple | dict | set | types.AsyncGeneratorType | types.GeneratorType)
