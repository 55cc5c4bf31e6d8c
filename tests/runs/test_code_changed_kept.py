"""What goes on under a new name once a person has said that it is the same step: items, claims, tries, receipts of other runs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from stepseven.decide import sources
from stepseven.decide.sources import Source
from stepseven.model import RunStatus
from tests.runs.deployed import Deploys, deploys
from tests.runs.outside import Mood
from tests.runs.test_code_changed import READ, V1, WRITE, asked, parked
from tests.runs.worldly import claims, kinds, layers, the_question
from tests.servers import databases


@pytest.fixture
def deploy(tmp_path: Path) -> Iterator[Deploys]:
    """Deploys a version of the module."""
    with deploys(tmp_path / "code") as made:
        yield made


LINES = """
@step(effect="write", key="n")
async def post_line(n: int) -> str:
    return await send("line", n)

@workflow
async def billing(run: Run) -> list:
    return [await run.map(post_line, [1, 2, 3]), await run.ask("Go on?", key="go on")]
"""


async def test_the_items_of_a_map_keep_their_receipts(deploy: Deploys, tmp_path: Path) -> None:
    """The map was called after the step: it goes on under the first name, and so do its items."""
    async with parked(deploy, tmp_path, LINES) as layer:
        deploy(LINES.replace("post_line", "add_line"))
        question = await asked(layer)
        assert "“post_line” did something outside 3 times" in question.text
        await layer.answer(question.id, "map", by="ann")
        lines, answer = (await layer.resume("r")).result()
        assert (sorted(lines), answer) == (["R-1", "R-2", "R-3"], "yes")
    assert deploy.world.counts() == {"line": 3}


ONCE = """
@step(effect="write"EFFECT)
async def post_invoice(quarter: str) -> str:
    return await send("invoice", quarter)

@workflow
async def billing(run: Run) -> list:
    return [await post_invoice("Q3"), await run.ask("Go on?", key="go on")]
"""


@pytest.mark.parametrize("effect", ["", ', effect_name="invoice"'], ids=["plain", "named"])
async def test_a_write_without_a_key_keeps_its_receipt(deploy: Deploys, tmp_path: Path, effect: str) -> None:
    """It is known by its branch alone; what its effect was called makes no difference."""
    async with parked(deploy, tmp_path, ONCE.replace("EFFECT", effect)) as layer:
        deploy(ONCE.replace("EFFECT", "").replace("post_invoice", "send_invoice"))
        await layer.answer((await asked(layer)).id, "map", by="ann")
        assert (await layer.resume("r")).result() == ["R-1", "yes"]
    assert deploy.world.counts() == {"invoice": 1}


async def test_a_new_key_after_map_is_asked_about(deploy: Deploys, tmp_path: Path) -> None:
    """The same step, but the new one has a business key and the old one had none: whether it is the same effect is asked, too."""
    async with parked(deploy, tmp_path, ONCE.replace("EFFECT", "")) as layer:
        deploy(ONCE.replace("EFFECT", ', key="quarter"').replace("post_invoice", "send_invoice"))
        await layer.answer((await asked(layer)).id, "map", by="ann")
        outcome = await layer.resume("r")
        assert kinds(outcome) == ["conflict"]
        await layer.answer(the_question(outcome).id, "same", by="ann")
        assert (await layer.resume("r")).result() == ["R-1", "yes"]
    assert deploy.world.counts() == {"invoice": 1}


DOUBT = """
@step(effect="write", key="quarter", attempts=1)
async def post_invoice(quarter: str) -> str:
    return await send("invoice", quarter)

@workflow
async def billing(run: Run) -> list:
    return [await post_invoice("Q3"), await run.ask("Go on?", key="go on")]
"""


async def test_a_claim_in_doubt_is_asked_about_before_it_is_sent_again(deploy: Deploys, tmp_path: Path) -> None:
    """A send broke off and nobody knows whether it was done; the new name takes over the doubt, and sends nothing."""
    deploy.world.moods.append(Mood(reset=True))
    v1 = deploy(DOUBT)
    async with layers(databases.url(tmp_path)) as layer:
        assert kinds(await layer.run(v1.billing(), client="acme", run_id="r")) == ["unknown_outcome"]
        del v1
        deploy(DOUBT.replace("post_invoice", "send_invoice"))
        outcome = await layer.resume("r")
        question = next(q for q in outcome.questions if q.kind == "code")
        assert "I do not know whether it was done" in question.text
        await layer.answer(question.id, "map", by="ann")
        outcome = await layer.resume("r")
        assert kinds(outcome) == ["unknown_outcome"]
        await layer.answer(the_question(outcome).id, {"choice": "happened", "receipt": "R-1"}, by="ann")
        assert kinds(await layer.resume("r")) == ["ask"]
        assert [(c["name"], c["state"]) for c in claims(layer)] == [("post_invoice", "done")]
    assert deploy.world.counts() == {"invoice": 1}


async def test_a_claim_without_a_record_counts(deploy: Deploys, tmp_path: Path) -> None:
    """The process died when the receipt was written and the record was lost with a restored backup: the receipt is enough."""
    async with parked(deploy, tmp_path) as layer:
        databases.execute(tmp_path, "DELETE FROM step WHERE name = 'post_invoice'")
        deploy(WRITE)
        await layer.answer((await asked(layer)).id, "map", by="ann")
        assert (await layer.resume("r")).result() == [214, "R-1", "yes"]
    assert deploy.world.counts() == {"invoice": 1}


async def test_a_fork_asks_for_what_its_root_did(deploy: Deploys, tmp_path: Path) -> None:
    """The fork shares the receipts of the run it is made of, under the names they had."""
    async with parked(deploy, tmp_path) as layer:
        assert (await layer.resume("r")).result() == [214, "R-1", "yes"]
        fork = (await layer.fork("r", from_step="post_invoice")).run_id
        deploy(WRITE)
        outcome = await layer.resume(fork)
        assert kinds(outcome) == ["code"]
        await layer.answer(the_question(outcome).id, "map", by="ann")
        outcome = await layer.resume(fork)
        assert kinds(outcome) == ["ask"]
    assert deploy.world.counts() == {"invoice": 1}


TWICE = V1.replace('key="go on")]', 'key="go on"), await run.ask("Sure?", key="sure")]')


@pytest.mark.parametrize("name", ["send_invoice", "charge"], ids=["alike", "unlike"])
async def test_a_fork_goes_by_what_was_said_of_its_root(deploy: Deploys, tmp_path: Path, name: str) -> None:
    """A person said that the write is the same under another name: a fork of that run does not do it again either."""
    async with parked(deploy, tmp_path, TWICE) as layer:
        v2 = deploy(TWICE.replace("post_invoice", name))
        await layer.answer((await asked(layer)).id, "map", by="ann")
        assert kinds(await layer.resume("r")) == ["ask"]
        fork = (await layer.fork("r", from_step="post_invoice")).run_id
        assert kinds(await layer.run(v2.billing(), client="acme", run_id=fork)) == ["ask"]
    assert deploy.world.counts() == {"invoice": 1}


async def test_a_run_that_asks_about_its_code_is_not_forked(deploy: Deploys, tmp_path: Path) -> None:
    """The fork would do what the answer may keep from being done: it is refused with the question, and nothing is made."""
    async with parked(deploy, tmp_path) as layer:
        deploy(WRITE)
        question = await asked(layer)
        with pytest.raises(ValueError, match=f"answer question {question.id} first"):
            await layer.fork("r", from_step="post_invoice")
        assert [run.run_id for run in await layer.runs()] == ["r"]
    assert deploy.world.counts() == {"invoice": 1}


CLIENT = ONCE.replace("EFFECT", ', key="quarter", scope="client"')


async def test_a_receipt_of_the_client_is_found_under_the_older_name(deploy: Deploys, tmp_path: Path) -> None:
    """``scope="client"``: what another run did under the older name answers the new one, once a person said so."""
    async with parked(deploy, tmp_path, CLIENT) as layer:
        v1 = deploy(CLIENT)
        assert kinds(await layer.run(v1.billing(), client="acme", run_id="other")) == ["ask"]
        del v1
        deploy(CLIENT.replace("post_invoice", "send_invoice"))
        await layer.answer((await asked(layer)).id, "map", by="ann")
        assert (await layer.resume("r")).result() == ["R-1", "yes"]
    assert deploy.world.counts() == {"invoice": 1}


NESTED = """
@step
async def read_page(n: int) -> int:
    ran.append(f"read_page {n}")
    return n

@step
async def read_book(pages: int) -> int:
    return sum([await read_page(n) for n in range(pages)])

@workflow
async def billing(run: Run) -> list:
    return [await read_book(2), await run.ask("Go on?", key="go on")]
"""


async def test_steps_inside_steps_are_seen(deploy: Deploys, tmp_path: Path) -> None:
    """A step that only another step calls is not gone; a renamed outer one goes on with its own records."""
    async with parked(deploy, tmp_path, NESTED) as layer:
        v2 = deploy(NESTED.replace("read_book", "scan_book"))
        question = await asked(layer)
        assert "read_page" not in question.text
        await layer.answer(question.id, "map", by="ann")
        assert (await layer.resume("r")).result() == [1, "yes"]
        assert v2.ran == []


TRIED = """
@step(attempts=1)
async def read_page(n: int) -> int:
    raise ValueError("the page is empty")

@step
async def pull_tickets(client_id: str) -> int:
    return 3

@workflow
async def billing(run: Run) -> list:
    return [await pull_tickets(run.client_id), await read_page(1)]
"""


async def test_a_read_without_a_result_is_nothing_to_ask_about(deploy: Deploys, tmp_path: Path) -> None:
    """What only failed under its older name runs under the new one."""
    v1 = deploy(TRIED)
    async with layers(databases.url(tmp_path)) as layer:
        assert kinds(await layer.run(v1.billing(), client="acme", run_id="r")) == ["failure"]
        del v1
        deploy(TRIED.replace("read_page", "scan_page").replace('raise ValueError("the page is empty")', "return n"))
        assert (await layer.resume("r")).result() == [3, 1]


# -- who asks -------------------------------------------------------------------------------------------------------------------


def registered(folder: Path, us: int, *known: tuple[str, int], workflow: str = "billing") -> None:
    """A living worker whose source of the workflow is the last of *known* (digest, since when)."""
    digest, since = known[-1]
    modules = sources.text({workflow: Source(digest, since, dict(known[:-1]))})
    databases.execute(
        folder,
        "INSERT INTO worker (id, host, boot, pid, started, beat_us, modules) VALUES ('w_new', 'elsewhere', 'b', 1, '1', ?, ?)",
        us, modules,
    )  # fmt: skip


@pytest.mark.sqlite("the clock of its leases is the test's")
async def test_nobody_is_asked_while_newer_code_lives(deploy: Deploys, tmp_path: Path) -> None:
    """What older code does not know is left to a living worker with newer code: nothing is asked, and nothing runs."""
    async with parked(deploy, tmp_path, WRITE) as layer:
        v1 = deploy(V1)  # older, though it comes later here: another worker has seen it before its own
        now = layer.clock.now_us
        registered(tmp_path, now, (v1.billing.digest, now - 9_000_000), ("newer", now - 1_000_000))
        outcome = await layer.resume("r")
        assert (outcome.status, kinds(outcome), v1.ran) == (RunStatus.QUEUED, [], [])
        assert "newer code of billing lives" in str((await layer.runs())[0]) or "newer code" in await layer.why("r")
        databases.execute(tmp_path, "DELETE FROM worker WHERE id = 'w_new'")
        assert kinds(await layer.resume("r")) == ["code"]
    assert deploy.world.counts() == {"invoice": 1}


async def test_the_question_holds_whoever_takes_the_run(deploy: Deploys, tmp_path: Path) -> None:
    """Once it is asked nothing runs before its answer, also when the run is not resumed but just called again."""
    async with parked(deploy, tmp_path) as layer:
        v2 = deploy(WRITE)
        question = await asked(layer)
        outcome = await layer.run(v2.billing(), client="acme", run_id="r")
        assert [q.id for q in outcome.questions] == [question.id]
        assert (outcome.status, (await layer.runs())[0].waiting_for) == (RunStatus.WAITING, "person")
        assert "is gone" in await layer.why("r")
    assert deploy.world.counts() == {"invoice": 1}


async def test_a_wake_after_long_asks_too(deploy: Deploys, tmp_path: Path) -> None:
    """After more than ten minutes a wake is a recovery, whoever takes the run."""
    async with parked(deploy, tmp_path) as layer:
        v2 = deploy(WRITE)
        layer.clock.advance(3600)
        assert kinds(await layer.run(v2.billing(), client="acme", run_id="r")) == ["code"]
    assert deploy.world.counts() == {"invoice": 1}


@pytest.mark.parametrize("source,asks", [(WRITE, ["code"]), (READ, [])])
async def test_a_short_wait_asks_about_writes_only(deploy: Deploys, tmp_path: Path, source: str, asks: list[str]) -> None:
    """Deployed within minutes: a write under another name would be done twice, a read is only read again."""
    async with parked(deploy, tmp_path) as layer:
        v2 = deploy(source)
        outcome = await layer.run(v2.billing(), client="acme", run_id="r")
        assert kinds(outcome) == asks
        assert outcome.status is (RunStatus.WAITING if asks else RunStatus.DONE)
    assert deploy.world.counts() == {"invoice": 1}
