"""The suite that ships as ``stepseven.testing.conformance``, run for each store of the project."""

from __future__ import annotations

from pathlib import Path

from stepseven.store.base import Store
from stepseven.store.sqlite import SqliteStore
from stepseven.testing.conformance import StoreConformance


class TestSqliteFile(StoreConformance):
    def make(self, folder: Path) -> Store:
        return SqliteStore(f"sqlite:///{folder}/s.db", str(folder / "s.db"))


class TestSqliteFull(StoreConformance):
    def make(self, folder: Path) -> Store:
        return SqliteStore(f"sqlite:///{folder}/s.db", str(folder / "s.db"), always_durable=True)


class TestSqliteMemory(StoreConformance):
    def make(self, folder: Path) -> Store:
        return SqliteStore("sqlite:///:memory:", ":memory:")
