"""Questions of one cause are one incident, whoever asks; one answer is for all of them, each by its own rules."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from stepseven import Cost, Fixable, InvalidArgument, Layer, Limits, Run, Secret, UnknownIncident, step, testing, workflow
from stepseven.decide.incident import cause
from stepseven.model import QuestionKind
from stepseven.testing import TestLayer
from stepseven.transitions import incidents
from tests.runs.deaths import every_death, living
from tests.servers import databases
from tests.workers.crew import until


class Answered(Exception):
    """What an HTTP library raises."""

    def __init__(self, status: int, url: str) -> None:
        super().__init__(f"HTTP {status}")
        self.status_code = status
        self.url = url


class World:
    """How each thing stands, by name; ``None``: well."""

    def __init__(self, **wrong: Any) -> None:
        self.wrong: dict[str, Any] = wrong

    def use(self, what: str) -> str:
        """Use it."""
        error = self.wrong.get(what)
        if error is not None:
            raise error() if callable(error) else error
        return what


def flow_of(world: World, name: str, what: str, **how: Any) -> Any:
    """A workflow of one step that uses one thing."""

    @step(name=f"{name}_step", **how)
    async def use(item: str, key: Secret | None = None) -> str:
        return world.use(what)

    @workflow(name=name)
    async def body(run: Run, item: str = "1", key: str | None = None) -> str:
        return await use(item, None if key is None else Secret(key))

    return body


def check(item: str) -> None:
    """A helper that several steps share."""
    raise Fixable(f"{item} has no price")


async def test_forty_failures_of_six_causes_are_six_incidents(tmp_path: Path) -> None:
    """Over clients and workflows: what looks alike and is not stays apart, what differs by name, number or time is one."""
    world = World(
        a=lambda: Answered(401, "https://a.example/v1/things/17"), b=lambda: Answered(401, "https://b.example/v1"),
        broken=lambda: KeyError("total"),
    )  # fmt: skip
    host_a, host_a2, host_b = (flow_of(world, f"inc_{n}", w) for n, w in (("a", "a"), ("a2", "a"), ("b", "b")))
    broken = flow_of(world, "inc_broken", "broken")

    @step
    async def inc_priced(item: str) -> None:
        check(item)

    @step
    async def inc_listed(item: str) -> None:
        check(item)

    @workflow
    async def inc_prices(run: Run, item: str) -> None:
        await inc_priced(item)

    @workflow
    async def inc_lists(run: Run, item: str) -> None:
        await inc_listed(item)

    async with testing.layer(databases.url(tmp_path)) as layer:
        flows = [host_a] * 8 + [host_a2] * 4 + [host_b] * 8 + [broken] * 6  # the first two are one cause
        calls = [flow(item=f"{n}") for n, flow in enumerate(flows)]
        for flow_ in (inc_prices, inc_lists):  # the same words of one helper, in two steps of two workflows
            calls += [flow_(item=i) for i in ("apples", "pears", "plum 17", "cherries", "nuts", "figs", "dates")]
        await asyncio.gather(*(layer.run(call, client=f"client-{n % 5}", run_id=f"r{n}") for n, call in enumerate(calls)))
        found = await layer.incidents()
        assert (len(calls), len(found)) == (40, 5)
        keyed = flow_of(world, "inc_keyed", "a")
        for key in ("ONE_KEY", "OTHER_KEY"):  # two credentials of one host are two causes
            await layer.run(keyed(key=key), client="acme", run_id=f"k-{key}")
        found = await layer.incidents()
        assert len(found) == 7
        assert sum(i.runs for i in found) == 42
        first = next(i for i in found if i.resource == "a.example" and i.runs > 1)
        assert (first.runs, len(first.clients), first.workflows) == (12, 5, ("inc_a", "inc_a2"))
        assert first.text.startswith("a.example answered 401 Unauthorized.")
        assert "12 runs wait, of 5 clients" in first.text
        assert [o.id for o in first.options] == ["again", "wait", "value", "skip", "stop"]


def asked_so_far(path: Path) -> int:
    """How many questions there are."""
    return int(databases.rows(path, "SELECT count(*) AS n FROM question")[0]["n"])


async def asked(layer: TestLayer, tmp_path: Path, flow: Any, runs: int) -> str:
    """So many runs that ask for one cause; the incident's id."""
    for n in range(runs):
        await layer.start(flow(), client=f"c{n % 10}", run_id=f"r{n}")
    async with layer.worker(concurrency=8):
        await until(lambda: asked_so_far(tmp_path) == runs)
    (found,) = await layer.incidents()
    return found.id


@pytest.mark.slow
async def test_one_answer_moves_two_hundred_runs(tmp_path: Path) -> None:
    """All of them go on; the incident is closed; the next of that cause opens another, which tells of the answer."""
    world = World(api=lambda: Answered(403, "https://api.example/"))
    flow = flow_of(world, "inc_many", "api")
    async with testing.layer(databases.url(tmp_path)) as layer:
        incident = await asked(layer, tmp_path, flow, 200)
        assert f"It is one of 200 with one cause: `stepseven answer {incident} CHOICE` answers all." in await layer.why("r7")
        world.wrong.clear()
        done = await layer.answer_incident(incident, "again", by="ann", note="the key was renewed")
        assert (len(done.answered), done.refused, done.open) == (200, {}, 0)
        assert await layer.incidents() == []
        (closed,) = await layer.incidents(status="closed")
        assert (closed.id, closed.status, closed.questions) == (incident, "closed", 200)
        assert [(await layer.resume(f"r{n}")).status for n in range(5)] == ["done"] * 5
        world.wrong["api"] = lambda: Answered(403, "https://api.example/")
        layer.clock.advance(1200)
        await layer.resume("r7")
        (new,) = await layer.incidents()
        assert new.id != incident
        assert new.earlier == "Answered “again” by ann 20 min ago; 199 went on, this one failed again."


async def test_a_part_is_answered_and_only_what_may_be_seen(tmp_path: Path) -> None:
    """By question or by client; what is not of the clients that the answerer may see is as if it were not there."""
    world = World(api=lambda: Answered(403, "https://api.example/"))
    flow = flow_of(world, "inc_part", "api")
    async with testing.layer(databases.url(tmp_path)) as layer:
        incident = await asked(layer, tmp_path, flow, 20)
        one = (await layer.questions(client="c3"))[0].id
        done = await layer.answer_incident(incident, "again", by="ann", questions=[one, "q_none"])
        assert (done.answered, done.open) == ((one,), 19)
        assert done.refused == {"q_none": "it is no open question of this incident"}
        other = (await layer.questions(client="c4"))[0].id
        done = await layer.answer_incident(incident, "again", by="ann", clients={"c3"}, questions=[other])
        assert (done.answered, list(done.refused), done.open) == ((), [other], 1)
        done = await layer.answer_incident(incident, "skip", by="ann", clients=["c3", "c5"])
        assert (len(done.answered), done.open) == (3, 0)
        with pytest.raises(UnknownIncident):
            await layer.answer_incident(incident, "again", by="ann", clients={"nobody"})
        with pytest.raises(UnknownIncident):
            await layer.answer_incident("i_none", "again", by="ann")
        with pytest.raises(InvalidArgument):
            await layer.answer_incident(incident, "again", by="ann", clients="c3")
        (left,) = await layer.incidents()
        assert (left.runs, left.clients) == (16, ("c0", "c1", "c2", "c4", "c6", "c7", "c8", "c9"))
        store = layer.store
        (seen,) = await store.read(lambda tx: incidents.page(tx, "open", None, {"c7"}, 9, layer.clock.now_us))
        assert (seen.runs, seen.clients) == (2, ("c7",))


async def test_each_question_keeps_its_own_rules(tmp_path: Path) -> None:
    """Limits of different runs: the answer raises those it is above of; it lowers none, and what it does not fit stays open."""

    @step(cost=Cost(usd=1))
    async def inc_spends(n: int) -> int:
        return n

    @workflow(limits=Limits(usd=1.5))
    async def inc_limited(run: Run, times: int) -> int:
        return sum([await inc_spends(n) for n in range(times)])

    async with testing.layer(databases.url(tmp_path)) as layer:
        for n in range(3):
            await layer.run(inc_limited(times=3), client=f"c{n}", run_id=f"r{n}")
        first = (await layer.questions(client="c0"))[0]
        await layer.answer(first.id, {"choice": "raise", "usd": 2.5}, by="ann")
        assert (await layer.resume("r0")).waiting_for == "person"  # it needs more: this one's ceiling is 2.5 by now
        (incident,) = await layer.incidents()
        assert (incident.kind, incident.runs) == ("limit", 3)
        done = await layer.answer_incident(incident.id, {"choice": "raise", "usd": 2}, by="ann")
        assert (len(done.answered), len(done.refused), done.open) == (2, 1, 1)
        assert "no more than the limit is now" in next(iter(done.refused.values()))
        done = await layer.answer_incident(incident.id, "approve", by="ann")
        assert (done.answered, done.open) == ((), 1)


async def test_other_kinds_never_merge(tmp_path: Path) -> None:
    """An approval, a plain question and a missing fact are each their own."""

    @step
    async def inc_needs(n: int) -> int:
        raise Fixable("no VAT number", needs="vat_number")

    @workflow
    async def inc_asks(run: Run) -> Any:
        return await run.ask("Go on?", options=["yes", "no"])

    @workflow
    async def inc_lacks(run: Run) -> int:
        return await inc_needs(1)

    async with testing.layer(databases.url(tmp_path)) as layer:
        for n in range(2):
            await layer.run(inc_asks(), client=f"c{n}", run_id=f"a{n}")
            await layer.run(inc_lacks(), client=f"c{n}", run_id=f"f{n}")
        assert len(await layer.questions()) == 4
        assert await layer.incidents(status=None) == []


async def test_two_people_at_once_give_one_answer_each(tmp_path: Path) -> None:
    """Every question has one answer, whoever of the two was first; nobody is told of more than they gave."""
    world = World(api=lambda: Answered(403, "https://api.example/"))
    flow = flow_of(world, "inc_two", "api")
    async with testing.layer(databases.url(tmp_path)) as layer, testing.layer(databases.url(tmp_path), seed=1) as other:
        incident = await asked(layer, tmp_path, flow, 30)
        done = await asyncio.gather(
            layer.answer_incident(incident, "again", by="ann"), other.answer_incident(incident, "skip", by="ben")
        )
        given = Counter(r["answered_by"] for r in databases.rows(tmp_path, "SELECT answered_by FROM question"))
        assert given == {by: len(d.answered) for by, d in zip(("ann", "ben"), done, strict=True) if d.answered}
        assert sum(given.values()) == 30


async def test_what_joins_while_it_is_answered_stays_open(tmp_path: Path) -> None:
    """A question asked after the answer is not answered by it: it is open, in an incident that is open."""
    world = World(api=lambda: Answered(403, "https://api.example/"))
    flow = flow_of(world, "inc_joins", "api")
    async with testing.layer(databases.url(tmp_path)) as layer:
        incident = await asked(layer, tmp_path, flow, 10)
        joined = [layer.run(flow(), client="late", run_id=f"late{n}") for n in range(5)]
        done, *_ = await asyncio.gather(layer.answer_incident(incident, "again", by="ann"), *joined)
        still_open = await layer.questions()
        assert len(done.answered) + len(still_open) == 15
        found = await layer.incidents()
        assert sum(i.questions for i in found) == len(still_open)


@pytest.mark.slow
def test_a_death_at_any_write_leaves_no_question_without_its_incident(tmp_path: Path) -> None:
    """Asking and joining are one transaction, and so are the answers of one bite: whoever comes next brings it to its end."""
    world = World(api=lambda: Answered(403, "https://api.example/"))
    flow = flow_of(world, "inc_death", "api")

    async def story(layer: Layer) -> list[str]:
        for n in range(2):
            await layer.run(flow(), client=f"c{n}", run_id=f"r{n}")
        for found in await layer.incidents():
            await layer.answer_incident(found.id, {"choice": "value", "value": "seen"}, by="ann")
        return [(await layer.resume(f"r{n}")).status.value for n in range(2)]

    for state in every_death(tmp_path, story):
        if databases.exists(state):
            lone = "SELECT id FROM question WHERE kind = 'failure' AND incident_id IS NULL"
            assert databases.rows(state, lone) == []
        assert living(state, story) == ["done", "done"]


def test_the_cause_of_a_question() -> None:
    """A resource that is down is one cause for all steps; a signature that names a host, too; else the step counts."""
    made: Any = {"workflow": "w", "step": "s", "signature": "401 a.example", "resource": "a.example"}
    assert cause(QuestionKind.FAILURE, **made) == cause(QuestionKind.BATCH, **(made | {"workflow": "v", "step": "t"}))
    assert cause(QuestionKind.ASK, **made) is None
    by_place = made | {"signature": "KeyError f.py:x+1", "resource": None}
    assert cause(QuestionKind.FAILURE, **by_place) != cause(QuestionKind.FAILURE, **(by_place | {"step": "t"}))
    down = cause(QuestionKind.FAILURE, **made, passing=True)
    assert down is not None
    assert (down.kind, down.signature) == ("resource", "a.example")
