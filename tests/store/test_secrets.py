# ruff: noqa: D103, TRY301 - steps are named for what they leak; files are looked at when the run is over
"""A credential that gets into a run by any way is on the disk in none: not in the file, its log, or its artifacts (X01, X04)."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from stepseven import Fixable, Run, SecretFound, step, testing, workflow

WAYS = (
    "input", "result", "masked", "large", "error", "cause", "write", "ask", "choice", "note", "goal", "reason", "answer", "fact",
    "summary",
)  # fmt: skip
#: Planted one by one, so that each way is seen alone. Their shapes are those of well-known providers.
KEYS = {way: f"sk-ant-api03-{way.encode().hex().ljust(40, 'q')[:40]}-PLANTED0000AAAA" for way in WAYS}


@step
async def returns_a_key() -> dict[str, str]:
    return {"token": KEYS["result"]}


@step(secrets="mask")
async def returns_it_masked() -> dict[str, str]:
    return {"header": f"Authorization: Bearer {KEYS['masked']}"}


@step(secrets="mask")
async def returns_it_in_much_text() -> str:
    return "log line\n" * 20_000 + KEYS["large"] + "log line\n" * 20_000


@step(attempts=1)
async def fails_with_a_key() -> None:
    try:
        raise RuntimeError(f"cause: {KEYS['cause']}")
    except RuntimeError as cause:
        raise Fixable(f"401 for key {KEYS['error']}") from cause


@step(effect="write", key="n", summary=lambda r: f"made with {KEYS['summary']}")
async def write_returns_a_key(n: int) -> dict[str, str]:
    return {"made": "yes", "echo": KEYS["write"]}


@step
async def takes_a_key(key: str) -> int:
    return len(key)


@workflow
async def leaky(run: Run, way: str) -> object:
    if way == "input":
        return await takes_a_key(KEYS["input"])
    if way == "result":
        return await returns_a_key()
    if way == "masked":
        return [await returns_it_masked(), await returns_it_in_much_text()]
    if way == "error":
        return await fails_with_a_key()
    if way == "write":
        return await write_returns_a_key(1)
    if way == "fact":
        run.client.set("api key", KEYS["fact"])
    options = ["yes", f"no, {KEYS['choice']}"] if way == "choice" else ["yes", "no"]
    return await run.ask(f"Use {KEYS['ask']}?", options=options)


def planted(folder: Path) -> dict[str, list[str]]:
    """Which keys stand in which files."""
    found: dict[str, list[str]] = {}
    for path in (p for p in folder.rglob("*") if p.is_file()):
        data = path.read_bytes()
        for way, key in KEYS.items():
            if key.encode() in data or key[13:45].encode() in data:
                found.setdefault(way, []).append(path.name)
    return found


async def test_no_byte_of_a_credential_reaches_the_disk(tmp_path: Path) -> None:
    """Keys in inputs, results, errors and their causes, questions, choices, notes, goals, answers, facts: none is on the disk."""
    url = f"sqlite:///{tmp_path}/s.db"
    async with testing.layer(url) as layer:
        with pytest.raises(SecretFound):
            await layer.run(leaky(way=KEYS["input"]), client="acme")
        for way in ("input", "result", "masked", "error", "fact", "ask"):
            await layer.run(leaky(way=way), client="acme", run_id=way, goal=f"with {KEYS['goal']}")
        for question in await layer.questions():
            with pytest.raises(SecretFound):
                await layer.answer(question.id, f"{KEYS['answer']}", by="ann")
        [asked] = await layer.questions(run_id="ask")
        await layer.answer(asked.id, "yes", by="ann", note=f"see {KEYS['note']}")
        await layer.cancel("error", reason=f"the key {KEYS['reason']} leaked", by="ann")
        assert (await layer.resume("ask")).status == "done"
        names = {p.name for p in tmp_path.rglob("*") if p.is_file()}
        assert "s.db-wal" in names  # the log is still there: what was written and taken back would be, too
        assert len(names) > 3  # and so is the large result
        log = {p.name: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file() and p.name != "s.db"}
    assert b"log line" in b"".join(log.values())
    for name, data in log.items():
        (tmp_path / f"copy of {name}").write_bytes(data)
    assert planted(tmp_path) == {}


async def test_a_choice_that_holds_one_is_not_stored(tmp_path: Path) -> None:
    """A credential in an option's text reaches the disk neither as its label nor as its id."""
    async with testing.layer(f"sqlite:///{tmp_path}/s.db") as layer:
        await layer.run(leaky(way="choice"), client="acme", run_id="choice")
    assert planted(tmp_path) == {}


@pytest.mark.timeout(15)
async def test_a_write_that_returns_one_did_happen(tmp_path: Path) -> None:
    """A write step returns a credential: it settles as done and the run asks for the value; the credential is not stored."""
    async with testing.layer(f"sqlite:///{tmp_path}/s.db") as layer:
        outcome = await asyncio.wait_for(layer.run(leaky(way="write"), client="acme", run_id="write"), 10)
        assert (outcome.status, outcome.waiting_for) == ("waiting", "person")
    assert planted(tmp_path) == {}


def test_the_search_finds_what_is_there(tmp_path: Path) -> None:
    """The search above sees a planted key: finding nothing means something."""
    (tmp_path / "x").write_bytes(b"..." + KEYS["note"].encode())
    assert planted(tmp_path) == {"note": ["x"]}
