"""One way to done, line by line: calls that are alike are one line, and each line has its price. Pure."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from stepseven._dataclass import dataclass
from stepseven.decide import _phrases as say
from stepseven.decide.plan import UNKNOWN, Coming, Do, Drifted, Met, Observed, Path, PlannedStep, Price, Standing
from stepseven.decide.prices import CHILD, child
from stepseven.model import INTERNAL

DRIFT = "drift"  #: the line that says what moved
RUN = "run"  #: the line of a question that holds the whole run
LIMIT = "limit"  #: the line of a question about a limit
CONTINUE = "continue"
IF_ELSE = "only if what comes before gives another result"
ASKED_IF = "asked about first, as it is done"
_ASKS, _WAITS = frozenset({"run.ask", "run.approve"}), frozenset({"run.sleep", "run.wait_for"})  # neither costs: they are no work
_PARTICULAR = re.compile(r"[“\"'][^”\"']*[”\"']|\S*[/\\]\S*|\S*\d\S*")  # what tells two reasons of one kind apart
_APPROVED = "a person approves it first"
_FREE = Price(usd=0.0, usd_most=0.0, seconds=0.0, tokens=0.0)


@dataclass(slots=True, kw_only=True)
class _Line:
    """Calls that are alike, as they are found."""

    step: str
    do: Do
    why: str = ""
    effect: str | None = None
    price_of: str  # the name its price has
    new: bool = True
    ahead: bool = False  # read in the source
    summary: str | None = None
    certain: int = 0
    maybe: int = 0
    possible: int = 0  # of those that may be, the ones that earlier runs can tell of
    many: bool = False
    free: bool = False  # nothing of it costs: a question, a wait
    questions: int = 0
    questions_maybe: int = 0
    usd: float | None = None  # of a reuse: what it has cost
    seconds: float | None = None
    tokens: int | None = None
    cost_usd: float | None = None  # declared for one try
    cost_seconds: float | None = None
    tries: int = 1
    anew: bool = False  # what waits for somebody in its own code begins from its top after each answer

    def declare(self, call: Met | Coming) -> None:
        """One more call; the dearest counts."""
        self.tries, self.anew = max(self.tries, call.tries), self.anew or call.anew
        self.cost_usd = _larger(self.cost_usd, call.cost_usd)
        self.cost_seconds = _larger(self.cost_seconds, call.cost_seconds)

    def count(self, *, maybe: bool, asks: bool) -> None:
        """One more call, and whether a person is asked."""
        self.certain, self.maybe = self.certain + (not maybe), self.maybe + maybe
        self.questions, self.questions_maybe = self.questions + (asks and not maybe), self.questions_maybe + (asks and maybe)


def _larger(one: float | None, other: float | None) -> float | None:
    return other if one is None else one if other is None else max(one, other)


def _plus(one: float | None, other: float | None) -> float | None:
    return None if one is None and other is None else (one or 0.0) + (other or 0.0)


def way(name: str, observed: Observed, prices: Mapping[str, Price]) -> Path:
    """See ``plan.priced``."""
    lines = _lines(observed)
    expected = _expected(lines, observed, prices)
    unseen = _unseen(observed)
    asks, waits = _asked_at_most(lines, unseen), sum(line.certain + line.maybe for line in lines if line.step in _WAITS)
    begins = None if asks is None else 1 + asks + waits
    steps = [_planned(line, about, _price(line, prices), begins) for line, about in zip(lines, expected, strict=True)]
    tells = any(price.calls is not None for price in prices.values())
    if unseen and tells:
        steps += _as_before(prices, {line.price_of for line in lines})
    running = [s for s in steps if s.do is not Do.REUSE]
    dark = bool(unseen) and not tells

    def expected_of(what: str) -> float | None:
        return None if dark else _sum(getattr(s, what) for s in running)

    return Path(
        name=name, steps=tuple(steps), questions=sum(line.questions for line in lines),
        questions_at_most=asks,
        usd=expected_of("usd"), seconds=expected_of("seconds"), tokens=expected_of("tokens"),
        usd_p90=expected_of("usd_p90"), seconds_p90=expected_of("seconds_p90"), tokens_p90=expected_of("tokens_p90"),
        usd_at_most=None if unseen else _sum(s.usd_at_most for s in steps),
        usd_at_most_known=round(sum(s.usd_at_most or 0 for s in steps), 6), unbounded=tuple(_unbounded(steps, unseen)),
        unknown=(*unseen, *_unpriced(steps, bounded=not unseen)),
    )  # fmt: skip


def _asked_at_most(lines: Sequence[_Line], unseen: Sequence[str]) -> int | None:
    started = any(line.do is Do.RUN and line.step.startswith(CHILD) for line in lines)  # what those runs ask is not seen here
    endless = bool(unseen) or started or any(line.many and (line.questions or line.questions_maybe) for line in lines)
    return None if endless else sum(line.questions + line.questions_maybe for line in lines)


def _unbounded(steps: Sequence[PlannedStep], unseen: Sequence[str]) -> dict[str, None]:
    """The names of what may cost any amount."""
    return dict.fromkeys((*(s.step for s in steps if s.usd_at_most is None), *((UNKNOWN,) if unseen else ())))


def _sum(values: Iterable[float | None]) -> float | None:
    """Their sum; ``None`` if one is not known."""
    known = list(values)
    return None if None in known else round(sum(v for v in known if v is not None), 6)


# -- lines ------------------------------------------------------------------------------------------------------------


def _lines(observed: Observed) -> list[_Line]:
    made: dict[tuple[object, ...], _Line] = {}
    runs = {(m.name, m.branch) for m in observed.met if m.do is Do.RUN}
    asked = {(m.name, m.branch) for m in observed.met if m.do is Do.ASK}
    standing = {m.question for m in observed.met if m.do is Do.ASK and not m.maybe}
    kinds: dict[str, str] = {"": ""}
    for m in observed.met:
        if m.why not in kinds:
            kinds[m.why] = _PARTICULAR.sub("#", m.why)
        # Not both asked about and run, in two lines: then the one costs, and the other asks.
        alone = m.do is Do.REUSE or (m.name, m.branch) not in (runs if m.do is Do.ASK else asked)
        key = (m.name, m.do, kinds[m.why], m.effect, m.maybe, m.new, m.question, m.cost_usd is None, alone)
        line = made.get(key)
        if line is None:
            line = made[key] = _Line(step=m.name, do=m.do, why=m.why, effect=m.effect, price_of=_priced_as(m), new=m.new)
            line.free = m.do is Do.ASK and (not alone or is_no_step(m.name))
        _meet(line, m, alone=alone)
    if observed.broke is not None:
        why = f"the workflow breaks off here: {observed.broke}"
        body = made["broke",] = _Line(step="run.body", do=Do.ASK, why=why, price_of="run.body", new=False, free=True)
        body.count(maybe=any(m.name == "run.body" for m in observed.met), asks=True)  # it is asked already: once more, at most
    for c in observed.coming:
        line = _come(made, c, stale=c.name in observed.stale)
        if line is not None and c.text is not None and c.text in standing and c.maybe:
            line.summary = f"once more: {c.text}"
        if line is not None and c.name in observed.receipts:  # the same thing as before, or a second one?
            line.questions_maybe += 1
            line.why = ASKED_IF if line.why == IF_ELSE else line.why
    return list(made.values())


def _meet(line: _Line, m: Met, *, alone: bool) -> None:
    """Add a call that was made."""
    line.summary = m.question or m.summary or line.summary
    if m.do is Do.REUSE:
        line.usd, line.seconds = _plus(line.usd, m.usd), _plus(line.seconds, m.seconds)
        line.tokens = line.tokens if m.tokens is None else (line.tokens or 0) + m.tokens
        if not m.maybe:
            line.certain += 1
            return
    line.declare(m)
    line.count(maybe=m.maybe, asks=m.do is Do.ASK or (m.effect == "irreversible" and m.do is Do.RUN and m.new and alone))


def _priced_as(m: Met) -> str:
    """The key of a run that is started begins with its workflow's name, unless the author gave one."""
    return child(m.key.partition("=")[0]) if m.name == CHILD and "=" in m.key else m.name


def is_no_step(name: str) -> bool:
    return (name.startswith("run.") and name != CHILD) or name in (RUN, LIMIT)


def _come(made: dict[tuple[object, ...], _Line], c: Coming, *, stale: bool) -> _Line | None:
    """Add a call that the source has. *stale*: of this step something is on record that was not asked for yet."""
    if c.name == UNKNOWN:
        dark = _Line(step=UNKNOWN, do=Do.RUN, why=c.where, price_of=UNKNOWN, many=True, free=True, maybe=1)
        made.setdefault((UNKNOWN, c.where), dark)
        return None
    if c.name.startswith(INTERNAL) and c.name not in _ASKS | _WAITS | {CHILD}:
        return None  # a map's count, a pinned text: nothing that costs or asks
    if c.given is not None:
        kept = made.setdefault(
            (c.name, Do.REUSE, c.given, c.effect),
            _Line(step=c.name, do=Do.REUSE, why=c.given, effect=c.effect, new=False, ahead=True, price_of=c.name, free=True),
        )  # fmt: skip
        kept.certain += 1
        return kept
    approved = c.effect == "irreversible"
    asks = approved or c.name in _ASKS
    why = IF_ELSE if stale else _APPROVED if approved else ""
    key = (c.name, asks, why, c.effect, c.text, c.maybe and not c.many, c.cost_usd is None)
    line = made.get(key)
    if line is None:
        line = made[key] = _Line(
            step=c.name, do=Do.ASK if asks else Do.RUN, why=why, effect=c.effect, new=not stale, ahead=True, summary=c.text,
            price_of=child(c.text) if c.name == CHILD and c.text else c.name, free=c.name in _ASKS | _WAITS,
        )  # fmt: skip
    line.declare(c)
    maybe = c.maybe or c.many or stale
    line.count(maybe=maybe, asks=asks)
    line.possible += maybe and not stale
    line.many = line.many or c.many
    if c.many and asks and not c.maybe and not stale:  # once at least, as far as anybody knows
        line.questions, line.questions_maybe = 1, line.questions_maybe - 1
    return line


# -- how often --------------------------------------------------------------------------------------------------------


def _expected(lines: Sequence[_Line], observed: Observed, prices: Mapping[str, Price]) -> list[float | None]:
    """How many calls of each line are expected; ``None``: nobody knows.

    Of those that may come: as many as earlier runs made of the step, without the ones that were made or are certain to be.
    """
    asked = {line.price_of for line in lines if line.possible}
    calls = ((_priced_as(m), m.branch, m.key) for m in observed.met if not m.maybe)
    met = Counter(name for name, *_ in {call for call in calls if call[0] in asked})
    left = {name: seen - met[name] for name in asked if (seen := _seen(name, prices).calls) is not None}
    for line in lines:
        if line.ahead and line.price_of in left:
            left[line.price_of] -= line.certain
    found: list[float | None] = []
    for line in lines:
        more: float | None = 0.0
        if line.possible and line.price_of in left:
            more = max(0.0, left[line.price_of] if line.many else min(line.possible, left[line.price_of]))
            left[line.price_of] -= more
        elif line.possible and line.many:
            more = None
        found.append(None if more is None else line.certain + more)
    return found


def _seen(name: str, prices: Mapping[str, Price]) -> Price:
    return prices.get(name) or (prices.get(CHILD) if name.startswith(f"{CHILD}/") else None) or Price()


def _as_before(prices: Mapping[str, Price], listed: set[str]) -> list[PlannedStep]:
    """Where something cannot be seen: the steps that earlier runs called, and that are nowhere else."""
    return [
        PlannedStep(
            step=name, do=Do.RUN, why="as in earlier runs", count=0, at_most=None, about=price.calls, maybe=True, new=True,
            usd=_times(price.usd, price.calls), seconds=_times(price.seconds, price.calls), n=price.n,
            tokens=_times(price.tokens, price.calls), usd_p90=_times(_high(price.usd_p90, price.usd), price.calls),
            seconds_p90=_times(_high(price.seconds_p90, price.seconds), price.calls),
            tokens_p90=_times(_high(price.tokens_p90, price.tokens), price.calls),
        )
        for name, price in prices.items()
        if price.calls and name not in listed and not name.startswith(CHILD)
    ]  # fmt: skip


# -- how much ---------------------------------------------------------------------------------------------------------


def _price(line: _Line, prices: Mapping[str, Price]) -> Price:
    """What one call costs: as seen, else as declared. At most: what is declared for all tries, or was seen."""
    if line.free:
        return _FREE
    seen, declared = _seen(line.price_of, prices), line.cost_usd
    most = None if declared is None else max(declared * line.tries, seen.usd_seen or 0.0)
    if most is None and seen.usd_most is not None:  # of a run that is started
        most = max(seen.usd_most, seen.usd_seen or 0.0)
    if most is None and (seen.n or seen.here) and seen.usd_seen == 0:
        most = 0.0
    return replace(
        seen, usd=declared if seen.usd is None else seen.usd, usd_most=most,
        seconds=(line.cost_seconds or None) if seen.seconds is None else seen.seconds,
    )  # fmt: skip


def _planned(line: _Line, about: float | None, price: Price, begins: int | None) -> PlannedStep:
    """*begins*: how often the code of a call that waits for somebody is begun at most; ``None``: not known."""
    calls = line.certain + line.maybe
    begun = None if line.many or (line.anew and begins is None) else calls * (begins or 1 if line.anew else 1)
    if line.do is Do.REUSE:
        most = _times(price.usd_most, begun and begun - line.certain) if line.maybe else 0.0
        return PlannedStep(
            step=line.step, do=line.do, why=line.why, count=calls, at_most=begun if line.maybe else calls, about=calls,
            maybe=line.maybe > 0, new=False, usd=line.usd, usd_at_most=most, seconds=line.seconds,
            summary=line.summary, effect=line.effect, tokens=None if line.tokens is None else float(line.tokens),
        )  # fmt: skip
    return PlannedStep(
        step=line.step, do=line.do, why=line.why, count=line.certain, at_most=begun, about=about,
        maybe=line.certain == 0, new=line.new, usd=_times(price.usd, about), n=price.n, summary=line.summary, effect=line.effect,
        usd_at_most=_times(price.usd_most, begun), seconds=_times(price.seconds, about),
        tokens=_times(price.tokens, about), usd_each=price.usd, usd_p90=_times(_high(price.usd_p90, price.usd), about),
        seconds_p90=_times(_high(price.seconds_p90, price.seconds), about),
        tokens_p90=_times(_high(price.tokens_p90, price.tokens), about),
    )  # fmt: skip


def _high(p90: float | None, usual: float | None) -> float | None:
    """What nine in ten calls do not exceed; of what was never seen, what is declared."""
    return usual if p90 is None else p90


def _times(each: float | None, count: float | None) -> float | None:
    """So many times *each*: nothing is nothing however often, and never costs nothing whatever the price."""
    if each == 0 or count == 0:
        return 0.0
    return None if each is None or count is None else round(each * count, 6)


# -- what is not known ------------------------------------------------------------------------------------------------


def _unseen(observed: Observed) -> tuple[str, ...]:
    """What may be called and cannot be seen, in words."""
    where = dict.fromkeys(c.where for c in observed.coming if c.name == UNKNOWN)
    told = [f"what is called at {say.listing(list(where), most=4)}"] if where else []
    if observed.broke is not None:
        told.append("what comes after the place where the workflow breaks off")
    return tuple(dict.fromkeys((*told, *observed.unknown)))


def _unpriced(steps: Sequence[PlannedStep], *, bounded: bool) -> list[str]:
    """What prices are missing, in words. *bounded*: nothing else keeps the whole from having an upper bound."""
    steps = [replace(s, step=spoken(s)) for s in steps]
    running = [s for s in steps if s.do is not Do.REUSE and s.step != UNKNOWN]
    often = dict.fromkeys(s.step for s in running if s.about is None and (s.usd is None or s.seconds is None))
    costs = dict.fromkeys(s.step for s in running if s.usd is None and s.step not in often)
    boundless = [s for s in steps if bounded and s.usd_at_most is None and s.step not in often and s.step not in costs]
    endless = dict.fromkeys(s.step for s in boundless if s.at_most is None)
    open_ = dict.fromkeys(s.step for s in boundless if s.at_most is not None)
    told = []
    if often:
        told.append(f"how often {_names(often)} {_runs(often)}")
    if costs:
        unseen = " (no cost= declared, and never seen)" if bounded else ""  # without the code nobody can say that
        told.append(f"what {_names(costs)} {'costs' if len(costs) == 1 else 'cost'}{unseen}")
    if endless:
        told.append(f"how often {_names(endless)} may run")
    if open_:
        told.append(f"what {_names(open_)} can cost at most (no cost= declared)")
    return told


def spoken(step: PlannedStep) -> str:
    """A step by its name; a run that is started by that of its workflow, where that is known."""
    if not step.step.startswith(CHILD):
        return step.step
    name = step.step.removeprefix(CHILD).removeprefix("/") or (step.summary or "" if step.do is not Do.REUSE else "")
    return f"the run of {name}" if name else "the run that is started"


def _names(steps: Iterable[str]) -> str:
    return say.listing(list(steps), most=4)


def _runs(steps: Mapping[str, None]) -> str:
    return "runs" if len(steps) == 1 else "run"


# -- the whole --------------------------------------------------------------------------------------------------------


def with_questions(path: Path, run: Standing, drift: Sequence[Drifted]) -> Path:
    """Add what is asked before anything runs: what moved, and open questions that the code did not meet."""
    met = {say.one_line(s.summary).rstrip("…."): None for s in path.steps if s.do is Do.ASK and s.summary}
    first = [
        PlannedStep(step=RUN, do=Do.ASK, why="asked, and not answered yet", usd=0.0, usd_at_most=0.0, seconds=0.0, summary=text)
        for text in run.questions
        if (line := say.one_line(text)).rstrip("….") not in met and not any(map(line.startswith, met))
    ]
    if run.asks and drift:
        what = say.listing([d.key for d in drift if d.read] or [d.key for d in drift])
        first.append(PlannedStep(
            step=DRIFT, do=Do.ASK, why="it is not what the run built on", usd=0.0, usd_at_most=0.0, seconds=0.0,
            summary=f"{what} changed",
        ))  # fmt: skip
    most = path.questions_at_most
    return replace(
        path, steps=(*first, *path.steps), questions=path.questions + len(first),
        questions_at_most=None if most is None else most + len(first),
    )  # fmt: skip


def cheapest(paths: Sequence[Path]) -> Path | None:
    """By money, then questions, then time. A way with more steps of unknown price loses; ``continue`` wins a tie."""

    def key(path: Path) -> tuple[int, bool, float, int, float, bool]:
        running = [s for s in path.steps if s.do is not Do.REUSE]
        unpriced = {s.step for s in running if s.usd is None or (s.maybe and s.usd_at_most is None)}
        dark = path.usd is None and not unpriced  # nobody knows what comes
        seconds = float("inf") if path.seconds is None else path.seconds
        return len(unpriced), dark, sum(s.usd or 0 for s in running), path.questions, seconds, path.name != CONTINUE

    return min(paths, key=key, default=None)
