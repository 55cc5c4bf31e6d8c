# ruff: noqa: D103, TRY301 - steps are named for what they leak; files are looked at when the run is over
"""A credential that gets into a run by any way is on the disk in none: not in the file, its log, or its artifacts (X01, X04)."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from stepseven import Conflict, Fixable, Run, SecretFound, step, testing, workflow

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


KEY = KEYS["note"]


async def _body_fails(run: Run) -> object:
    raise ValueError(f"bad key {KEY}")


async def _look_fails(run: Run) -> object:
    FOUND.append(ValueError(f"cannot look: {KEY}"))
    return await looked_for("a")


async def _finds_other(run: Run) -> object:
    FOUND.append(Conflict({"token": KEY}))
    return await looked_for("a")


async def _masked_keys(run: Run) -> object:
    return [
        await named_write(KEY),
        await named_read(KEY),
        await named_by_rule("a", KEY),
        await named_header(f"Bearer {KEY[:12]}"),
    ]


async def _facts(run: Run) -> object:
    run.client.set("plan", 1, source=f"https://me:hunter2222@host/x?{KEY}", by=KEY)
    with pytest.raises(SecretFound):
        run.client.set(KEY, 1)
    return run.client.get(KEY)


async def _asked_of(run: Run) -> object:
    run.uuid(key=KEY)
    return await run.ask("Well?", to=KEY, remember=KEY, key=KEY)


async def _resource(run: Run) -> object:
    return await of_a_resource()


FOUND: list[Exception] = []


@step(effect="write", key="a")
async def looked_for(a: str) -> str:
    raise KeyError(a)


@looked_for.probe
async def looks(a: str) -> str:
    raise FOUND[-1]


@step(effect="write", key="token", secrets="mask")
async def named_write(token: str) -> str:
    return "ok"


@step(key="token", secrets="mask")
async def named_read(token: str) -> str:
    return "ok"


@step(effect="write", key=lambda a, token: (a, token), ignore="token", secrets="mask")
async def named_by_rule(a: str, token: str) -> str:
    return "ok"


@step(effect="write", key="authorization", secrets="mask")
async def named_header(authorization: str) -> str:
    return "ok"


@step(effect="write", key=lambda a, token: (a, token), ignore="token")
async def named_and_refused(a: str, token: str) -> str:
    return "ok"


@step(resource=f"https://host/{KEY}", attempts=1)
async def of_a_resource() -> str:
    raise Fixable("no")


@pytest.mark.parametrize("body", [_body_fails, _look_fails, _finds_other, _masked_keys, _facts, _asked_of, _resource])
async def test_none_by_what_the_code_says_besides(tmp_path: Path, body: Any) -> None:
    """Exceptions of the body and of probes, what a probe found, business keys, sources, names, resources: none is on the disk."""
    async with testing.layer(f"sqlite:///{tmp_path}/s.db") as layer:
        running = asyncio.create_task(layer.run(workflow(name="besides")(body)(), client="acme", run_id="r"))
        while not running.done():
            layer.clock.advance(timedelta(seconds=1))
            await asyncio.sleep(0.001)
        outcome = await running
        waits = body not in (_masked_keys, _facts)
        assert (outcome.status, len(outcome.questions)) == (("waiting", 1) if waits else ("done", 0)), outcome
        for name, data in {p.name: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file() and p.name != "s.db"}.items():
            (tmp_path / f"copy of {name}").write_bytes(data)
    assert planted(tmp_path) == {}
    data = b"".join(p.read_bytes() for p in tmp_path.rglob("*") if p.is_file())
    assert b"hunter2222" not in data
    assert KEY[:12].encode() not in data  # nor the beginning of one, where a text was cut


async def test_a_business_key_that_holds_one_is_refused(tmp_path: Path) -> None:
    """Without ``secrets="mask"`` a business key that holds a credential is refused, also if nothing else records it."""

    @workflow(name="refused_key")
    async def refused_key(run: Run) -> str:
        with pytest.raises(SecretFound, match="named_and_refused: key"):
            await named_and_refused("a", KEY)
        return "refused"

    async with testing.layer(f"sqlite:///{tmp_path}/s.db") as layer:
        assert (await layer.run(refused_key(), client="acme", run_id="r")).result() == "refused"
    assert planted(tmp_path) == {}
