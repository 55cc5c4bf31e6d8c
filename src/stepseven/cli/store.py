"""``migrate``: the store is created, or brought to this version's schema."""

from __future__ import annotations

from typing import Any

from stepseven.cli._common import Setting, now_us, out, print_json, wrapped
from stepseven.layer import open_store
from stepseven.store._url import hide_password


async def migrate(setting: Setting) -> None:
    """Create the store, or bring it to this version's schema. Safe to run from many places at once."""
    began_us = now_us()
    open_store(setting.url, upgrade=True).close()
    async with setting.layer(create=True) as layer:
        head = await layer.store.read(lambda tx: tx.one(tx.sql.store, {}))
    was_there = head is None or head["created_us"] < began_us
    found: dict[str, Any] = {
        "url": hide_password(setting.url), "schema": head["schema_no"] if head is not None else None, "created": not was_there,
    }  # fmt: skip
    if setting.as_json:
        print_json(found)
        return
    did = "is up to date" if was_there else "was created"
    out().print(wrapped(f"The store {found['url']} {did} (schema {found['schema']})."))
