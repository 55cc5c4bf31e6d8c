"""``Client``: what is known about one client, from outside its runs: what ``layer.client(id)`` gives."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from stepseven._dataclass import dataclass
from stepseven.model import ClientStatus, Fact, Failure, Forgotten, Question
from stepseven.runtime import briefing, checks, erasing
from stepseven.runtime import facts as said
from stepseven.runtime.services import Services
from stepseven.store.base import Tx
from stepseven.store.codec import free_text, from_canonical, storable
from stepseven.transitions import clients, exporting
from stepseven.transitions.clients import Given

T = TypeVar("T")

_KEY = "give the name of a fact, as text"
_WHO = "say who says so, as text"
_HOW_LONG = "say how long the fact holds, such as '90d' or '12h', or leave it out: for good"


class Client:
    """One client: its facts, and whether anything may begin for it. Every call is synchronous.

    Attributes:
        id: its id.
    """

    def __init__(self, services: Services, id: str, *, learned: Callable[[str, str], None] | None = None) -> None:
        self.id = id
        self._services = services
        self._learned = learned  # told the client and the key of what was said

    def __repr__(self) -> str:
        return f"Client({self.id!r})"

    # -- facts ----------------------------------------------------------------------------------------------------------

    def get(self, key: str, default: T | None = None) -> Any:
        """The fact's value; *default* if it is not known, or no longer holds."""
        checks.any_text("key", key, _KEY)
        if not storable(key):
            return default
        now = self._services.edge.now_us()
        row = self._services.store.read_now(lambda tx: said.holding(tx, self.id, key, now))
        return default if row is None else from_canonical(row["value"])

    def set(self, key: str, value: Any, *, source: str | None = None, by: str | None = None, valid: str | None = None) -> Fact:
        """Say what a fact is. The first word about a client creates it; runs that wait to know the fact go on.

        A source that says again what it said last says nothing new: there is no new version, and what was said since by others
        stays the value.

        Args:
            key: the fact's name, such as ``"vat_number"``.
            value: anything recordable; no credential.
            source: where it comes from, such as ``"crm"``.
            by: the person who said it. A person's word is a decision: it settles what sources said before.
            valid: how long it holds, such as ``"90d"`` or ``"12h"`` (units s m h d w); after that it counts as not known.
                Default: for good. Where nothing new is said, a source that does not say it leaves it as it is.

        Returns:
            The fact as it stands now, with what contradicts it.

        Raises:
            InvalidArgument: the key, *valid*, *source* or *by* is none. NotRecordable, TooLarge, SecretFound: the value cannot
                be kept.
        """
        checks.texts_or_none(source=source)
        checks.person_or_none("by", by, _WHO)
        checks.said("key", checks.any_text("key", key, _KEY), said.checked_key)
        checks.said("valid", checks.text_or_none("valid", valid, _HOW_LONG), said.lasting_us)
        now = self._services.edge.now_us()
        word = said.given(self.id, key, value, source=source, by=by, valid=valid, now_us=now)

        def unit(tx: Tx) -> tuple[bool, Fact | None]:
            return clients.learn(tx, word, now).new, clients.standing(tx, self.id, key, now)

        new, fact = self._services.store.write_now(unit, durable=True, client=self.id)
        assert fact is not None  # just said, or said before  # noqa: S101
        if new and self._learned is not None:
            self._learned(self.id, key)
        return fact

    def facts(self) -> list[Fact]:
        """Every fact as it stands, by key, with what contradicts it. One whose ``valid_until_us`` is past counts as not known."""
        now = self._services.edge.now_us()
        return self._services.store.read_now(lambda tx: clients.all_standing(tx, self.id, now))

    def history(self, key: str) -> list[Fact]:
        """Every version of a fact, newest first; the newest with what contradicts it."""
        checks.any_text("key", key, _KEY)
        if not storable(key):
            return []
        now = self._services.edge.now_us()
        rows = self._services.store.read_now(lambda tx: tx.all(tx.sql.fact_history, {"client_id": self.id, "key": key}))
        if not rows:
            return []
        return [clients.stands(self.id, rows, now), *(clients.fact_of(self.id, row) for row in reversed(rows[:-1]))]

    # -- what is open, what went wrong --------------------------------------------------------------------------------------

    def open_questions(self) -> list[Question]:
        """The questions of its runs that wait for an answer, oldest first; at most 200. ``[]`` for an unknown client."""
        return self._services.store.read_now(lambda tx: briefing.open_questions_of(tx, self.id))

    def failures(self, *, days: float = 90) -> list[Failure]:
        """The tries that failed in all its runs in the last *days*, newest first; at most 200. ``[]`` for an unknown client.

        Raises:
            InvalidArgument: *days* is not above 0.
        """
        if not (checks.is_number(days) and days > 0):
            raise checks.refused("days", days, "give a number of days, more than 0")
        now = self._services.edge.now_us()
        return self._services.store.read_now(lambda tx: briefing.failures_of(tx, self.id, days, now))

    # -- whether anything may begin ---------------------------------------------------------------------------------------

    @property
    def status(self) -> ClientStatus | None:
        """Whether anything may begin for it; ``None`` when nothing was ever run for it or said about it."""
        row = self._services.store.read_now(lambda tx: tx.one(tx.sql.client, {"id": self.id}))
        return None if row is None else ClientStatus(row["status"])

    def pause(self, *, reason: str | None = None, by: str | None = None) -> None:
        """Let nothing new begin for the client.

        New runs are admitted and stay queued. A run that is executed is given back within about a second: writes in flight are
        finished and recorded first. Questions still take their answers.

        Args:
            reason: why, in words.
            by: who says so.

        Raises:
            UnknownClient: nothing was ever run for it or said about it: a mistyped id must not look like a pause.
        """
        checks.texts_or_none(reason=reason)
        checks.person_or_none("by", by, _WHO)
        why, who = (free_text(text, 300) if text else None for text in (reason, by))
        now = self._services.edge.now_us()
        self._services.store.write_now(
            lambda tx: clients.pause(tx, self.id, reason=why, by=who, now_us=now), durable=True, client=self.id
        )

    def unpause(self, *, by: str | None = None) -> None:
        """Let things begin again: ``resume`` (or a worker) goes on with its runs. No change if it is not paused.

        Args:
            by: who says so.

        Raises:
            UnknownClient: nothing was ever run for it or said about it.
        """
        checks.person_or_none("by", by, _WHO)
        who, now = (free_text(by, 300) if by else None), self._services.edge.now_us()
        self._services.store.write_now(lambda tx: clients.unpause(tx, self.id, by=who, now_us=now), durable=True, client=self.id)
        self._services.stir()

    # -- when it leaves ---------------------------------------------------------------------------------------------------

    def forget(self, *, by: str, reason: str | None = None) -> Forgotten:
        """Delete everything known about the client; that it existed, and that things were done and what they cost, stays.

        Facts in all versions, inputs, goals, values, results, summaries, tries, questions with their answers, arguments and
        receipts of effects, large results. Of runs the id, workflow, status, times and money stay, of effects the name, state
        and times; business keys stay as digests. The file is written anew afterwards, so that no copy is left in it: others
        wait meanwhile. Done again it completes what a crash interrupted. The client may come back, as a new one.

        Args:
            by: who says so; kept with the client's id.
            reason: why; kept, too.

        Raises:
            UnknownClient: nothing was ever run for it or said about it.
            ClientBusy: runs have not ended, or claims are unsettled; nothing was changed.
            InvalidArgument: nobody is named, or something is no text; nothing was changed.
        """
        checks.person("by", by, "say who forgets the client, as text")
        checks.text_or_none("reason", reason)
        return erasing.forget(self._services, self.id, by=by, reason=reason)

    def export(self) -> dict[str, Any]:
        """All that is known about the client as one JSON document, to hand over.

        Facts with their history, runs with inputs, values, steps and their results, tries, effects with receipts, questions
        with answers. Results over 64 KiB are there by reference, ``{"hash", "bytes", "file"}``: a file in the artifact folder.

        Raises:
            UnknownClient: nothing was ever run for it or said about it.
        """
        return self._services.store.read_now(lambda tx: exporting.export(tx, self.id))


# -- many facts at once -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Imported:
    """What an import did, or would do: the facts that are new, how many only repeat, and those that contradict others."""

    new: tuple[Fact, ...]
    unchanged: int
    conflicts: tuple[Fact, ...]


def import_facts(
    services: Services,
    words: Iterable[Given],
    *,
    dry_run: bool = False,
    learned: Callable[[str, str], None] | None = None,
) -> Imported:
    """Say many things at once: all of them, or none.

    Args:
        services: of the layer.
        words: what is said; one word about each fact.
        dry_run: only tell what would change; nothing is written.
        learned: told the client and the key of what is new.
    """
    given, now = list(words), services.edge.now_us()

    def unit(tx: Tx) -> Imported:
        new: list[Fact] = []
        against: list[Fact] = []
        unchanged = 0
        for word in given:
            news, fact = clients.would_stand(tx, word, now)
            new.extend([fact] if news else [])
            unchanged += 0 if news else 1
            against.extend([fact] if fact.conflicts else [])
            if not dry_run:
                clients.learn(tx, word, now)
        return Imported(new=tuple(new), unchanged=unchanged, conflicts=tuple(against))

    done = (
        services.store.read_now(unit)
        if dry_run
        else services.store.write_now(unit, durable=True, client=tuple({word.client_id for word in given}))
    )
    if learned is not None and not dry_run:
        for fact in done.new:
            learned(fact.client_id, fact.key)
    return done
