"""The suite that ships as ``stepseven.testing.conformance``, run for each store of the project."""

from __future__ import annotations

from pathlib import Path

import pytest

from stepseven.store.base import Store
from stepseven.store.sqlite import SqliteStore
from stepseven.testing.conformance import StoreConformance
from tests.servers.databases import new_database


class TestSqliteFile(StoreConformance):
    def make(self, folder: Path) -> Store:
        return SqliteStore(f"sqlite:///{folder}/s.db", str(folder / "s.db"))


class TestSqliteFull(StoreConformance):
    def make(self, folder: Path) -> Store:
        return SqliteStore(f"sqlite:///{folder}/s.db", str(folder / "s.db"), always_durable=True)


class TestSqliteMemory(StoreConformance):
    def make(self, folder: Path) -> Store:
        return SqliteStore("sqlite:///:memory:", ":memory:")


@pytest.mark.postgres
class TestPostgres(StoreConformance):
    def make(self, folder: Path) -> Store:
        return _postgres(new_database("conformance"))


@pytest.mark.postgres
class TestPostgresFull(StoreConformance):
    def make(self, folder: Path) -> Store:
        return _postgres(new_database("conformance"), always_durable=True)


@pytest.mark.pgbouncer
class TestPostgresPooled(StoreConformance):
    def make(self, folder: Path) -> Store:
        return _postgres(new_database("conformance", pooled=True))


def _postgres(url: str, *, always_durable: bool = False) -> Store:
    from stepseven.store.postgres import PostgresStore  # its driver need not be there

    return PostgresStore(url, always_durable=always_durable)
