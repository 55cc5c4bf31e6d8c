"""What a plan says is what a resume then does at most: over workflows, deaths and changes made by chance.

Longer than other files: one story, and its claims in order.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from stepseven import Plan
from stepseven.decide._ways import DRIFT
from stepseven.decide.plan import Do, Path, PlannedStep
from stepseven.testing import TestLayer
from tests.runs.deaths import NEVER
from tests.runs.plan_maker import Chance
from tests.runs.plan_programs import FACTS, FIELDS, LAST, OTHER, USD, WRITES, Program
from tests.runs.plan_stories import Story, tale
from tests.runs.plan_world import Case, answer_all, case, earlier, planned, to_the_end
from tests.servers import databases

LONG_S = 3 * 86_400.0
PHASES = (Phase.explicit, Phase.generate, Phase.shrink)  # to explain a failure takes longer than to find it


# -- the story ----------------------------------------------------------------------------------------------------------------


def begin(c: Case, story: Story) -> bool:
    """The run, until its process dies or it waits. Whether there is a run that has not ended."""
    if story.earlier:
        earlier(c)
    for n, how in story.failing.items():
        c.world.failing[f"s{n}"] = how
    assert c.module is not None
    flow = c.module.flow

    async def first(layer: TestLayer) -> None:
        for fact in FACTS:
            layer.client("acme").set(fact, 2, source="crm")
        outcome = await layer.run(flow(), client="acme", run_id="r")
        for _ in range(story.rounds):
            if outcome.status.ended:
                return
            if not await answer_all(c, layer, story.choices, but=LAST):
                return
            outcome = await layer.resume("r")

    c.process(first, at=story.at, side=story.side)
    if not databases.exists(c.folder):
        return False
    return _status(c) not in ("", *ENDED)


def change(c: Case, layer: TestLayer, what: tuple[Any, ...]) -> None:  # noqa: C901, PLR0912 - one line per kind
    """One mutation."""
    kind, *how = what
    world = c.world
    steps = sorted(world.ran) or ["s0"]
    if kind == "artifacts":
        databases.execute(c.folder, "DELETE FROM artifact")
    elif kind == "file":
        files = sorted(c.folder.glob("s*.txt"))
        for path in files[how[0] : how[0] + 1] or files[:1]:
            if how[1] == "gone":
                path.unlink()
            else:
                path.write_text("something else")
    elif kind == "table":
        world.table[steps[how[0] % len(steps)].partition("_")[0]] = how[1]
    elif kind == "fact":
        layer.client("acme").set(how[0], how[1], source="crm")
    elif kind == "moved":
        for fact in FACTS:
            layer.client("acme").set(fact, how[0], source="crm")
        world.customer = dict.fromkeys(FIELDS, how[0])
    elif kind == "field":
        world.customer[how[0]] = how[1]
    elif kind == "refuted":
        world.refuted |= set(sorted(world.called)[how[0] :][:2])
    else:  # somebody did it by hand
        done = (f"s{how[0]}", how[1])
        world.by_hand.add(done[0])
        if done not in world.there:
            world.done(*done, None)


@dataclass
class Interrupted:
    """What the deaths since a plan have interrupted: it is done, paid or found out about once more, and is no part of the plan.

    Attributes:
        ran: step, by its first name → how often its code ran and nothing of that was on record when its process died.
        asked: claims of which nobody knows what became of them.
    """

    ran: Counter[str] = field(default_factory=Counter)
    asked: int = 0


@dataclass
class Leg:
    """From a plan to the end of the run: what there is to judge by."""

    plan: Plan
    path: Path
    ran: Counter[str]
    usd: float
    asked: int
    kids: Counter[str]
    kinds: Counter[str]
    interrupted: Interrupted
    stumbled: Counter[str]


@dataclass
class Seen:
    """A whole story: a leg from the first plan on, and one from each that was made after a death within the resume.

    *before*: the code that began it.
    """

    before: Program
    legs: list[Leg]
    status: str
    chosen: dict[str, Any]
    asked: Counter[tuple[str, str]]

    @property
    def died(self) -> bool:
        """Whether its process died within the resume."""
        return len(self.legs) > 1


class Mark:
    """How it stood when a plan was made. *way*: what is said of what moved."""

    def __init__(self, c: Case, plan: Plan, way: str) -> None:
        self.c = c
        self.plan = plan
        self.path = next((p for p in plan.paths if p.name == _PATHS[way]), plan.paths[0])
        self.ran, self.usd, self.answered, self.kids = Counter(c.world.ran), c.world.usd, c.answered(), started(c)
        self.stumbled, self.interrupted = Counter(c.world.stumbled), Interrupted()

    def leg(self, less: int = 0) -> Leg:
        """What came since. *less*: of the answers."""
        c, kinds = self.c, Counter[str]()
        for (kind, _), n in (c.answered() - self.answered).items():
            kinds[kind] += n
        return Leg(
            kinds=kinds,
            plan=self.plan, path=self.path, ran=Counter(c.world.ran) - self.ran, usd=c.world.usd - self.usd,
            asked=(c.answered() - self.answered).total() - less, kids=started(c) - self.kids, interrupted=self.interrupted,
            stumbled=c.world.stumbled - self.stumbled,
        )  # fmt: skip


class Before:
    """How it stood before a process that may die. *ran*: so often; *recorded*: so often is that on record."""

    def __init__(self, c: Case) -> None:
        self.ran = Counter(c.world.ran)
        self.recorded = Counter[str]()
        rows = databases.rows(c.folder, "SELECT name FROM step WHERE state = 'done' AND coalesce(approach, '') <> 'by hand'")
        for row in rows:
            self.recorded[c.bare(row["name"]).partition("_")[0]] += 1
        claims = databases.rows(c.folder, "SELECT claim_id FROM effect WHERE state IN ('claimed', 'unknown')")
        self.claims = {row["claim_id"] for row in claims}

    def add(self, now: Before, to: Interrupted) -> None:
        """What the death between the two has interrupted."""
        ran: Counter[str] = Counter()
        for step, n in (now.ran - self.ran).items():
            ran[step.partition("_")[0]] += n
        to.ran += ran - (now.recorded - self.recorded)
        to.asked += len(now.claims - self.claims)


async def look(c: Case, layer: TestLayer, chosen: dict[str, Any]) -> Plan | None:
    """Plan twice: nothing changed by it, and it says the same. ``None``: what was chosen is refused."""
    before, outside = c.everything(), c.world.state()
    plan = await planned(c, layer, chosen)
    assert c.everything() == before, "a plan changed what is stored"
    assert c.world.state() == outside, "a plan changed something outside"
    again = await planned(c, layer, chosen)
    if plan is None or again is None:
        return None
    one, two = plan.document(), again.document()
    one.pop("looked_us"), two.pop("looked_us")
    assert one == two, f"a second look says something else:\n{plan}\n{again}\n{_differs(one, two)}"
    c.told += [f"{chosen}\n{plan}", repr(plan.paths)]
    return plan


def go(c: Case, program: Program, story: Story) -> Seen | None:
    """The whole story; ``None``: there was nothing to plan."""
    if not begin(c, story):
        return None
    c.world.failing.clear()
    if story.edits:
        changed = program.changed(story.edits)
        c.told.append("--- then\n" + _told(changed))
        c.deploy(changed)
    c.clock.advance(LONG_S)

    if story.twice and not once_more(c, story):
        return None

    async def second(layer: TestLayer) -> tuple[Mark, dict[str, Any], Counter[tuple[str, str]]]:
        for what in story.mutations:
            change(c, layer, what)
        if story.answered:
            await answer_all(c, layer, story.choices)
        chosen = choice(c, story)
        plan = await look(c, layer, chosen)
        if plan is None:
            chosen = {}
            plan = await look(c, layer, chosen)
        assert plan is not None
        mark = Mark(c, plan, chosen.get("drift", story.choices["drift"]))
        return mark, chosen, await answer_all(c, layer, story.choices, most=story.at_once)

    mark, chosen, at_once = _given(c.process(second))
    reads = {s.name for s in c.program.steps if s.kind not in WRITES}
    c.world.failing.update({f"s{n}": "once" for n in story.stumbles if f"s{n}" in reads})
    status, later = resumed(c, story, mark, chosen)
    # An answer about what is not so any more is not used: that is asked once, by the plan.
    twice = Counter[tuple[str, str]]() if story.still else at_once - (at_once - (c.answered() - mark.answered - at_once))
    legs = [mark.leg(twice.total()), *(m.leg() for m in later)]
    c.told += [f"ran {dict(leg.ran)}, {leg.usd} $, {leg.asked} questions, interrupted {leg.interrupted}" for leg in legs]
    return Seen(before=program, legs=legs, status=status, chosen=chosen, asked=c.answered())


def once_more(c: Case, story: Story) -> bool:
    """Everything moves, the run is resumed, and what it asks is answered: about that, and not about what moves later."""

    async def use(layer: TestLayer) -> bool:
        change(c, layer, ("moved", 3))
        outcome = await layer.resume("r")
        return not outcome.status.ended and bool(await answer_all(c, layer, story.choices, but=LAST))

    c.process(use)
    return _status(c) not in ENDED


def resumed(c: Case, story: Story, first: Mark, chosen: dict[str, Any]) -> tuple[str, list[Mark]]:
    """Resume to the end, through the deaths of the story: how it ended, and what was planned after each death."""
    way = chosen.get("drift", story.choices["drift"])
    choices = {**story.choices, "drift": way}
    later: list[Mark] = []
    recoveries = _chosen_on_record(c)
    for at, side in [*story.dies, (NEVER, "before")]:
        before = Before(c)

        async def third(layer: TestLayer) -> str:
            return await to_the_end(c, layer, choices, **({} if _chosen_on_record(c) > recoveries else chosen))

        ended = c.process(third, at=at, side=side)
        if ended is not None:
            return ended, later
        now = Before(c)
        for mark in (first, *later):
            before.add(now, mark.interrupted)
        if _status(c) in ENDED:  # it had just ended
            return _status(c), later
        c.told.append(f"died: {first.interrupted}")
        given_now = {} if _chosen_on_record(c) > recoveries else chosen
        plan = _given(c.process(lambda layer, given_now=given_now: look(c, layer, given_now)))
        later.append(Mark(c, plan, way))
    raise AssertionError("the last one lives")


def choice(c: Case, story: Story) -> dict[str, Any]:
    """What is chosen at the resume."""
    if story.chosen is None:
        return {}
    kind, n = story.chosen
    if kind == "drift":
        return {"drift": ["keep", "refresh"][n % 2]}
    steps = [s for s in c.program.steps if s.kind in _CHOSEN[kind] and s.base.startswith("s")]
    if not steps:
        return {}
    name = f"{c.called}_{steps[n % len(steps)].name}"
    return {"rerun": [name]} if kind == "rerun" else {"skip": {name: 1}} if kind == "skip" else {"approach": {name: OTHER}}


_CHOSEN = {
    "skip": ("free", "paid", "sure", "probed", "blind", "again", "outer"), "approach": ("free", "paid"),
    "rerun": ("free", "paid", "sure", "large", "file", "outer"),
}  # fmt: skip


ENDED = ("done", "failed", "cancelled")


def _status(c: Case) -> str:
    rows = databases.rows(c.folder, "SELECT status FROM run WHERE id = 'r'")
    return str(rows[0]["status"]) if rows else ""


def _chosen_on_record(c: Case) -> int:
    """How many resumes with a choice are on record: from then on it is obeyed without being said again."""
    return len(databases.rows(c.folder, "SELECT id FROM recovery WHERE chosen IS NOT NULL"))


def started(c: Case) -> Counter[str]:
    """How many runs of each workflow the run has started."""
    rows = databases.rows(c.folder, "SELECT workflow FROM run WHERE parent_no IS NOT NULL AND client_id = 'acme'")
    return Counter(row["workflow"] for row in rows)


def _given(value: Any) -> Any:
    assert value is not None
    return value


def _differs(one: Any, two: Any, at: str = "") -> list[str]:
    """Where two documents differ."""
    if isinstance(one, dict) and isinstance(two, dict):
        return [found for key in {**one, **two} for found in _differs(one.get(key), two.get(key), f"{at}.{key}")]
    if isinstance(one, list) and isinstance(two, list) and len(one) == len(two):
        return [found for n, pair in enumerate(zip(one, two, strict=True)) for found in _differs(*pair, f"{at}[{n}]")]
    return [] if one == two else [f"{at}: {one} | {two}"]


_PATHS = {"keep": "continue", "refresh": "refresh"}


def _told(program: Program) -> str:
    source = program.source("p")
    return source[source.index("\n@step") :]


# -- the claims -----------------------------------------------------------------------------------------------------------------


def most(c: Case, path: Path) -> dict[str, float]:
    """Step → how often it runs at most, as the plan says."""
    found: dict[str, float] = Counter()  # type: ignore[assignment]  # floats, for what is not bounded
    for line in path.steps:
        if line.do is not Do.REUSE or line.maybe:
            found[c.bare(line.step)] += float("inf") if line.at_most is None else line.at_most
    return found


def judge(c: Case, seen: Seen, story: Story) -> None:
    """Every claim, from what the outside saw."""
    effects_once(c, seen, story)
    for leg in seen.legs:
        within(c, leg)
    if seen.status == "done":
        surely(c, seen.legs[-1])
    if is_exact(seen):
        exactly(c, seen.legs[-1], still=story.still)


def within(c: Case, leg: Leg) -> None:
    """Nothing more ran, was started, paid or asked than a plan said, but for what was interrupted since, or failed anew.

    Its money is enough for every try.
    """
    bound, path, spare = most(c, leg.path), leg.path, leg.interrupted
    own = {step: n for step, n in leg.ran.items() if not step.startswith("k")}
    kids = sum(n for step, n in bound.items() if step.startswith("run.start"))
    if not path.unknown or "unknown" not in bound:
        for step, n in own.items():
            base = step.partition("_")[0]
            again = spare.ran[base] + leg.stumbled[base]
            told = f"{step} ran {n} times, at most {bound.get(step, 0)} said the plan, and {again} were interrupted or failed"
            assert n <= bound.get(step, 0) + again, told
        assert leg.kids.total() <= kids, f"{leg.kids} were started, at most {kids} said the plan"
        assert kids or own == +leg.ran or spare.ran, "a run that had ended went on"
    if path.usd_at_most is not None:
        again_usd = sum(n * _usd(c, step) for step, n in spare.ran.items())
        assert leg.usd <= path.usd_at_most + again_usd + 1e-9, f"{leg.usd} US dollars, {again_usd} interrupted"
    if path.questions_at_most is not None:
        again = spare.asked + leg.stumbled.total() + bool(spare.ran and c.program.limits)
        assert leg.asked <= path.questions_at_most + again, f"{leg.asked} questions, {again} of what was interrupted"
    for line in path.steps:  # what a person is asked before anything runs
        if line.do is Do.ASK and line.step in _FIRST:
            assert leg.kinds[_FIRST[line.step]], f"nobody was asked, although the plan said so: {line.summary}"
    reused = {c.bare(s.step) for s in path.steps if s.do is Do.REUSE and not s.maybe}
    assert not [step for step in reused if step not in bound and leg.ran[step]], "what was to be reused ran"


_FIRST = {DRIFT: "drift", "run.code": "code"}


def _usd(c: Case, step: str) -> float:
    return next(USD.get(s.kind, 0.0) for s in c.program.steps if s.base == step)


def surely(c: Case, leg: Leg) -> None:
    """What was sure to run did run. Not where a person says whether a step is another one, or of calls that may be one."""
    sure: Counter[str] = Counter()
    own = [line for line in leg.path.steps if line.step.startswith(c.called)]
    for line in own:
        sure[c.bare(line.step)] += line.count if line.do is Do.RUN and not line.maybe else 0
    lines = Counter(c.bare(line.step) for line in own if not line.maybe)
    if not any(line.step == "run.code" for line in leg.path.steps):
        for step, n in sure.items():
            if (n, lines[step]) == (1, 1):
                assert leg.ran[step], f"{step} did not run"


def exactly(c: Case, leg: Leg, *, still: bool) -> None:
    """Just what was said ran, and was asked if nothing changed: else an answer may be on record that the source does not tell of.

    Of calls that may be equal to each other, and then are one, nobody can know before.
    """
    exact: Counter[str] = Counter()
    for line in leg.path.steps:
        if line.step.startswith(c.called):
            exact[c.bare(line.step)] += line.count if line.do is not Do.REUSE else 0
    lines = Counter(c.bare(line.step) for line in leg.path.steps)
    beside = "gather" in c.program.source("p")
    kinds = {s.name: s.kind for s in c.program.steps}
    for step, n in exact.items():
        kind = kinds[step]
        if (n, lines[step]) == (1, 1) or n == 0 or not (beside or kind in WRITES):
            assert leg.ran[step] == n, f"{step} ran {leg.ran[step]} times, {n} said the plan"
    alike = any(kinds[step] == "final" and lines[step] + n > 2 for step, n in exact.items())
    if still and leg.path.questions == leg.path.questions_at_most and not alike:
        assert leg.asked == leg.path.questions, f"{leg.asked} questions"


def effects_once(c: Case, seen: Seen, story: Story) -> None:
    """Nothing was done twice, as the outside counts; unless a person said that a step under another name is another step."""
    runs = started(c)
    others = {s.base for s in c.program.steps if s.name != s.base} if _said(seen, "code", story) == "run" else set()
    for (thing, x), n in c.world.effects.items():  # each of the runs it starts has effects of its own
        most = max(1, runs[f"{c.called}_kid{thing[1:]}"]) if thing.startswith("k") else 1
        assert n <= most or thing in others, f"{thing}({x}) was done {n} times"
    if story.choices["conflict"] == "same" and "approach" not in seen.chosen:
        once = (seen.before.once() & c.program.once()) - c.world.by_hand - others
        done = Counter(thing for thing, _ in c.world.effects if thing in once)
        assert all(n <= 1 for n in done.values()), f"done under two keys: {c.world.effects}"


def _said(seen: Seen, kind: str, story: Story) -> str | None:
    """What a person said to the questions of a kind; ``None``: there were none."""
    return story.choices[kind] if any(asked == kind for asked, _ in seen.asked) else None


def is_exact(seen: Seen) -> bool:
    """Whether the last plan left nothing open but prices: no branch, no loop, nothing that may come out differently."""
    path = seen.legs[-1].path
    unseen = [told for told in path.unknown if "no cost= declared" not in told]
    open_ = any(line.step == "run.code" or (line.do is Do.ASK and _in_doubt(line)) for line in path.steps)
    if unseen or seen.legs[-1].stumbled or open_:
        return False  # what a person says decides whether it runs
    return seen.status == "done" and all(not line.maybe and line.at_most == line.count for line in path.steps)


def _in_doubt(line: PlannedStep) -> bool:
    """Whether a person is asked what became of a send."""
    return (line.summary or "").startswith(("Did ", "I do not know"))


class Met:
    """How often what came up, so that nobody proves something about nothing."""

    def __init__(self) -> None:
        self.of: Counter[str] = Counter()

    def count(self, seen: Seen | None, story: Story) -> None:
        """One more example."""
        self.of["examples"] += 1
        if seen is None:
            self.of["ended before"] += 1
            return
        self.of["planned"] += 1
        path, ran = seen.legs[0].path, seen.legs[0].ran
        self.of["no call unbounded"] += all(line.at_most is not None for line in path.steps)
        self.of["money bounded"] += path.usd_at_most is not None
        self.of["questions bounded"] += path.questions_at_most is not None
        self.of["exact"] += is_exact(seen)
        self.of["something ran"] += bool(ran)
        self.of["something reused"] += any(line.do is Do.REUSE for line in path.steps)
        self.of["two paths"] += len(seen.legs[0].plan.paths) > 1
        self.of["maybe"] += any(line.maybe for line in path.steps)
        self.of["nothing unseen"] += not any(line.step == "unknown" for line in path.steps)
        self.of[f"status {seen.status}"] += 1
        self.of["code changed"] += bool(story.edits)
        self.of["chosen"] += bool(seen.chosen)
        self.of["died"] += seen.died
        self.of["priced"] += story.earlier
        self.of["started"] += any(line.step.startswith("run.start") for line in path.steps)
        self.of["limit"] += any(line.step == "limit" for line in path.steps)


def prove(tales: Iterable[int]) -> Counter[str]:
    """Every claim, for the tale of each seed."""
    met = Met()
    for seed in tales:
        try:
            holds(*tale(Chance.seeded(seed)), met)
        except BaseException as error:
            error.add_note(f"the tale of seed {seed}")
            raise
    return met.of


def holds(program: Program, story: Story, met: Met) -> None:
    """Every claim, for one tale."""
    with case(program, served=story.served) as c:
        try:
            seen = go(c, program, story)
            met.count(seen, story)
            if seen is not None:
                judge(c, seen, story)
        except BaseException as error:
            error.add_note("\n".join([_told(program), str(story), *c.told]))
            raise


def at_least(met: Counter[str], **shares: float) -> None:
    """What came up often enough, as a share of the plans that were made."""
    for what, share in shares.items():
        told = what.replace("_", " ")
        assert met[told] >= share * met["planned"], f"{told}: {met[told]} of {met['planned']}"


@pytest.mark.slow  # on PostgreSQL with `make soak`
@pytest.mark.timeout(300)
def test_a_resume_never_does_more_than_its_plan_said() -> None:
    """Nothing more runs, is asked or is paid; what was to be reused did not run; no effect twice; looking changes nothing."""
    met = prove(range(FEW[databases.kind()]))
    print(dict(met))  # noqa: T201 - shown with -s: how much was proved
    at_least(met, nothing_unseen=0.95)
    if databases.kind() == "sqlite":  # the others are the first few of the same stories
        at_least(met, no_call_unbounded=0.4, money_bounded=0.15, questions_bounded=0.4, something_ran=0.3, something_reused=0.3)
        at_least(met, exact=0.33, died=0.2, code_changed=0.1, two_paths=0.08, maybe=0.1, chosen=0.1, started=0.1)


FEW = {"sqlite": 70, "postgres": 25, "pooled": 25}


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_a_resume_never_does_more_than_its_plan_said_in_thousands_of_stories() -> None:
    """The same, with others every time; and what fails is made as small as it gets."""
    met = Met()

    @settings(
        max_examples=500 if databases.kind() == "sqlite" else 50, database=None, deadline=None,
        suppress_health_check=list(HealthCheck), report_multiple_bugs=False, phases=PHASES,
    )  # fmt: skip
    @given(st.composite(lambda draw: tale(Chance.drawn(draw)))())
    def small(made: tuple[Program, Story]) -> None:
        holds(*made, met)

    many = 2500 if databases.kind() == "sqlite" else 250
    begin = random.SystemRandom().randrange(1000, 10**9)
    at_least(prove(range(begin, begin + many)), no_call_unbounded=0.4, exact=0.33, died=0.2, two_paths=0.03, chosen=0.1)
    small()
