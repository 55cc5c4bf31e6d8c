"""Our ``dataclass`` is the standard library's, but for when its methods are written."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import pickle
import subprocess
import sys
from collections.abc import Callable
from dataclasses import field
from typing import Any

import pytest

from stepseven._dataclass import dataclass

SETTINGS: tuple[dict[str, bool], ...] = (
    {}, {"frozen": True, "slots": True, "kw_only": True}, {"frozen": True, "slots": True}, {"slots": True}, {"frozen": True},
    {"frozen": True, "slots": True, "eq": False}, {"slots": True, "eq": False}, {"order": True},
    {"frozen": True, "unsafe_hash": True},
)  # fmt: skip


def _declared(decorator: Any, how: dict[str, bool], *, inherits: bool) -> Any:
    class Value:
        """Something."""

        a: int
        b: str = "x"
        c: list[int] = field(default_factory=list, compare=False)
        d: int = field(default=3, repr=False)

    Value.__qualname__ = "Value"  # where ``pickle`` looks for it
    made = decorator(**how)(Value)
    if inherits:

        class More(made):  # type: ignore[misc]  # a class
            """More of it."""

            e: int = 4

        More.__qualname__ = "More"
        made = decorator(**how)(More)
    globals()[made.__name__] = made
    return made


def _told(act: Callable[[], Any]) -> str:
    try:
        return repr(act())
    except Exception as error:  # noqa: BLE001 - whatever it says is compared
        return f"{type(error).__name__}: {error}"


def _behaviour(value: Any) -> list[str]:
    acts: list[Callable[[], Any]] = [
        lambda: value(a=1), lambda: value(1), value, lambda: value(a=1, z=2), lambda: value(a=1) == value(a=1),
        lambda: value(a=1) == value(a=2), lambda: value(a=1, c=[1]) == value(a=1), lambda: value(a=1) != 1,
        lambda: len({value(a=1), value(a=1)}), lambda: value(a=1) < value(a=2), lambda: setattr(value(a=1), "a", 2),
        lambda: delattr(value(a=1), "a"), lambda: inspect.signature(value), lambda: value.__match_args__,
        lambda: dataclasses.fields(value), lambda: dataclasses.replace(value(a=1), b="y"), lambda: dataclasses.asdict(value(a=1)),
        lambda: copy.copy(value(a=1, b="z")), lambda: copy.deepcopy(value(a=1, b="z")),
        lambda: pickle.loads(pickle.dumps(value(a=1, b="z"))), lambda: value.__dataclass_params__, lambda: value.__doc__,
        lambda: value.__init__.__qualname__, lambda: value.__init__.__annotations__, lambda: sorted(vars(value)),
    ]  # fmt: skip
    return [_told(act) for act in acts]


@pytest.mark.parametrize("inherits", [False, True], ids=["alone", "inherits"])
@pytest.mark.parametrize("how", SETTINGS, ids=str)
def test_it_behaves_as_the_standard_librarys(how: dict[str, bool], inherits: bool) -> None:
    """Whatever is done with such a class, its answers and its errors are those of ``dataclasses.dataclass``, to the letter."""
    theirs = _behaviour(_declared(dataclasses.dataclass, how, inherits=inherits))
    assert _behaviour(_declared(dataclass, how, inherits=inherits)) == theirs


def test_methods_are_written_when_they_are_first_asked_for() -> None:
    """Declared, the class has no method of its own yet; made once, it has the constructor, and nothing else still."""
    made = _declared(dataclass, {"frozen": True, "slots": True}, inherits=False)
    names = ("__init__", "__repr__", "__eq__", "__hash__")
    assert [name for name in names if inspect.isfunction(vars(made)[name])] == []
    made(1)
    assert [name for name in names if inspect.isfunction(vars(made)[name])] == ["__init__"]
    assert len({made(1), made(1), made(2)}) == 2
    assert [name for name in names if inspect.isfunction(vars(made)[name])] == ["__init__", "__eq__", "__hash__"]


def test_own_methods_stay() -> None:
    """A class that says itself how it is made or shown is left alone."""

    @dataclass(frozen=True)
    class Own:
        """Something."""

        a: int

        def __post_init__(self) -> None:
            if self.a < 0:
                raise ValueError("negative")

        def __repr__(self) -> str:
            return f"own {self.a}"

    assert repr(Own(1)) == "own 1"
    with pytest.raises(ValueError, match="negative"):
        Own(-1)


def test_an_import_writes_few_methods() -> None:
    """``import stepseven`` has no more than a few of its classes' methods written: that was half of its time."""
    code = """if True:
        import inspect, sys, stepseven
        from dataclasses import is_dataclass
        ours = {v for n, m in list(sys.modules.items()) if n.startswith("stepseven") for v in vars(m).values()
                if inspect.isclass(v) and is_dataclass(v) and v.__module__.startswith("stepseven")}
        made = [v.__qualname__ for v in ours if inspect.isfunction(vars(v).get("__init__"))]
        print(len(ours), len(made), sorted(made))"""
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    classes, made = map(int, said.split()[:2])
    assert classes > 100
    assert made < classes / 4, said
