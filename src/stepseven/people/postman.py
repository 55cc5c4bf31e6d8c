"""The postman: a thread that does what is due for open questions, and sends the messages that are due.

It holds up nobody: it has a thread of its own, sends in a child process, and writes like everybody else. Several of them on one
store share the work: of two that see a message due one gets it. Whoever dies between sending and writing that down lets the
message be sent a second time, ten minutes later.
"""

from __future__ import annotations

import json
import logging
import os
import shlex
import threading
from functools import partial

from stepseven.decide import channels, letter
from stepseven.decide.ladder import Purpose
from stepseven.decide.letter import Letter, Ways
from stepseven.errors import StoreUnavailable
from stepseven.people import links
from stepseven.people.sending import AppriseSender, Sender
from stepseven.runtime.edge import Edge
from stepseven.store.base import Row, Store, Tx
from stepseven.store.codec import free_text
from stepseven.transitions import delivering, ladders
from stepseven.transitions.delivering import Try
from stepseven.transitions.state import question_of

EVERY_S = 2.0  #: between two looks
ALONE_S = 30.0  #: while there is nobody who could be told
_AWAY_S = 5.0  # while the store is away
_MOST = 50  # of one look
_STOPS_S = 5.0  # what is under way may go out when the worker stops

_log = logging.getLogger("stepseven.worker")


class Postman:
    """Tells people what waits for them.

    Args:
        store: the store.
        edge: where time comes from.
        public_url: where the pages are reached from outside; default: STEPSEVEN_PUBLIC_URL. Without it messages name the command.
        sender: how messages go out; default: Apprise.

    Raises:
        ValueError: *public_url* is none, or STEPSEVEN_LINK_KEY is too short.
    """

    def __init__(self, store: Store, edge: Edge, *, public_url: str | None = None, sender: Sender | None = None) -> None:
        self._store = store
        self._edge = edge
        self._public = links.public_url(public_url)
        links.told_key()  # before the first message needs it
        self._sender: Sender = sender if sender is not None else AppriseSender()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._said: str | None = None  # what keeps it from working, as it was said last

    # -- at work ----------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Work in a thread of its own until ``stop``."""
        self._thread = threading.Thread(target=self._work, name="stepseven postman", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """What is under way may go out; then nothing more is sent."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join(_STOPS_S)
        self._sender.close()
        if self._thread is not None:
            self._thread.join(_STOPS_S)

    def _work(self) -> None:
        pause_s = 0.0
        while not self._stop.wait(pause_s):
            try:
                if not self._anybody():
                    pause_s = ALONE_S
                    continue
                pause_s = 0.0 if self.turn() else EVERY_S
            except StoreUnavailable:
                pause_s = _AWAY_S  # the worker says it
            except Exception:  # noqa: BLE001 - a postman that is gone helps nobody: it says so, and looks again
                _log.exception("the postman could not do its round; it tries again")
                pause_s = _AWAY_S

    def _anybody(self) -> bool:
        return bool(self._store.read_now(lambda tx: tx.all(tx.sql.persons, {})))

    def turn(self) -> bool:
        """One round: every ladder that is due is climbed, every message that is due is tried once.

        Returns:
            Whether there may be more at once.

        Raises:
            StoreUnavailable: the store cannot be reached.
        """
        why = self._sender.missing()
        self._say(why)
        if why is not None:  # nobody could be told: a ladder that is climbed all the same would hand over what nobody has seen
            return False
        climbed = self._climb()
        seen = self._store.read_now(lambda tx: tx.all(tx.sql.due_deliveries, {"now": self._edge.now_us(), "limit": _MOST}))
        for row in seen:
            if self._stop.is_set():
                return False
            self._try(row)
        if not seen:
            self._sender.rest()
        return climbed == _MOST or len(seen) == _MOST

    def _say(self, why: str | None) -> None:
        if why is not None and why != self._said:
            _log.warning("nobody is told anything: %s", why)
        self._said = why

    def _climb(self) -> int:
        now = self._edge.now_us()
        due = self._store.read_now(lambda tx: tx.all(tx.sql.due_ladders, {"now": now, "limit": _MOST}))
        for row in due:
            unit = partial(ladders.climb, question_id=row["id"], now_us=now)
            self._store.write_now(unit, durable=True, client=row["client_id"])
        return len(due)

    # -- one message ------------------------------------------------------------------------------------------------------

    def _try(self, seen: Row) -> None:
        """Try a message once, if it is ours."""
        now = self._edge.now_us()
        mine = self._store.write_now(lambda tx: delivering.claim(tx, seen, now), durable=True, client=None)
        if mine is None:
            return
        channel: str | None
        try:
            message = self._letter(mine)
        except Exception as error:  # noqa: BLE001 - one that cannot be written must hold up no other, and is counted like any that fails
            channel, reason = None, f"it could not be written ({type(error).__name__}: {free_text(str(error), 100)})"
        else:
            channel, reason = send(self._sender, mine.person, message)

        def unit(tx: Tx) -> None:
            if channel is not None:
                delivering.delivered(tx, mine, channel, self._edge.now_us())
            else:
                delivering.refused(tx, mine, reason, self._edge.now_us())

        self._store.write_now(unit, durable=True, client=mine.run["client_id"])

    def _letter(self, mine: Try) -> Letter:
        now, row = self._edge.now_us(), mine.question
        if row is None:
            return letter.failed(mine.run, now)
        purpose = Purpose(mine.delivery["purpose"])
        link = None
        if self._public is not None and purpose is not Purpose.EXPIRED:
            link = links.url(self._public, links.signing_key(self._store, self._edge), mine.delivery)
        # The link stays as it is: what looks like a credential is masked in what others wrote, and this is ours.
        ways = Ways(command=f"stepseven answer {shlex.quote(row['id'])} CHOICE", link=link, sign_in=links.needs_sign_in(row))
        return letter.question(question_of(row, row["run_id"]), purpose, ways, others=mine.others, now_us=now)


def send(sender: Sender, person: Row, message: Letter) -> tuple[str | None, str]:
    """Send a message over the first of a person's channels that takes it.

    Returns:
        That channel, as people see it, and nothing; or ``None``, and why none of them did.
    """
    reasons = []
    for channel in json.loads(person["channels"]):
        url = os.environ.get(channel[4:], "") if channel.startswith("env:") else channel
        shown = channels.shown(channel)
        if not url.strip():
            reasons.append(f"{shown}: this environment variable is not set where the messages are sent")
            continue
        why = sender.send(url.strip(), message.subject, message.body)
        if why is None:
            return shown, ""
        reasons.append(f"{shown}: {free_text(why, 200)}")
    return None, "; ".join(reasons) or "there is no channel"
