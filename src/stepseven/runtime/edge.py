"""Where time, chance, ids and the machine come in. Everything below takes them from here, so a test can replace them."""

from __future__ import annotations

import asyncio
import os
import random
import secrets
import socket
import time
from collections.abc import Callable
from pathlib import Path

from stepseven._dataclass import dataclass

_ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"  # no i, l, o, u: ids are read aloud
_CLOCK: int | None = getattr(time, "CLOCK_BOOTTIME", None)  # it goes on while the machine sleeps: a gate shuts meanwhile


class Edge:
    """The real world. ``stepseven.testing`` has one with a clock that is moved by hand."""

    def now_us(self) -> int:
        """Wall clock, integer microseconds since 1970, UTC."""
        return time.time_ns() // 1000

    def file_clock(self) -> float:
        """The clock that files are stamped with, seconds since 1970: the machine's own, also where a test moves the other."""
        return time.time()

    def monotonic(self) -> float:
        """A clock that never jumps, in seconds."""
        return time.monotonic()

    def since_boot(self) -> float:
        """The same, but it goes on while the machine is suspended, where the system can tell: what others see pass of us."""
        return time.monotonic() if _CLOCK is None else time.clock_gettime(_CLOCK)

    def chance(self) -> float:
        """Uniform in [0, 1)."""
        return random.random()  # noqa: S311 - spreads retries, guards nothing

    def new_id(self, prefix: str) -> str:
        """A fresh id such as ``q_7f3k9m2xw4tp`` (60 bits: not to be guessed)."""
        bits = int.from_bytes(secrets.token_bytes(8))
        return f"{prefix}_{''.join(_ALPHABET[bits >> shift & 31] for shift in range(0, 60, 5))}"

    def new_secret(self) -> tuple[bytes, str]:
        """Six random bytes that name a fresh secret, and the secret: 32 more as 43 characters that may stand in a URL."""
        return secrets.token_bytes(6), secrets.token_urlsafe(32)

    def new_uuid(self) -> str:
        """A fresh random UUID."""
        raw = bytearray(secrets.token_bytes(16))
        raw[6] = raw[6] & 0x0F | 0x40
        raw[8] = raw[8] & 0x3F | 0x80
        text = raw.hex()
        return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"

    def call_at(self, at_us: int, callback: Callable[[], None]) -> Callable[[], object]:
        """Call *callback* in the running loop at *at_us*; returns what cancels it."""
        delay = max(0.0, (at_us - self.now_us()) / 1e6)
        return asyncio.get_running_loop().call_later(delay, callback).cancel

    async def sleep_until(self, at_us: int) -> None:
        """Wait until the wall clock says *at_us*."""
        while (rest := at_us - self.now_us()) > 0:  # noqa: ASYNC110 - it is the clock that is waited for
            await asyncio.sleep(min(rest / 1e6, 60))  # a clock that jumps is noticed within a minute


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """A process of some machine, so that its death can be proven: a pid alone is reused."""

    host: str
    boot: str
    pid: int
    started: str


def this_process() -> Process:
    """The running process."""
    pid = os.getpid()
    return Process(host=socket.gethostname(), boot=_boot(), pid=pid, started=started(pid) or "unknown")


def _boot() -> str:
    """Which start of the machine this is, and which of its processes are seen here: containers share a kernel and its boot."""
    try:
        if Path("/proc/self").readlink().name != str(os.getpid()):
            return "unknown"  # this /proc shows another namespace's processes
        boot_id = Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()
        return f"{boot_id}:{Path('/proc/self/ns/pid').readlink()}"
    except OSError:
        return "unknown"  # no proof of death then: the lease decides


def started(pid: int) -> str | None:
    """When the kernel started *pid*; ``None`` if there is no such process, or it is a zombie; else ``unknown``."""
    try:
        stat = _stat(pid)
    except FileNotFoundError:
        return None if _all_visible() else "unknown"
    except OSError:
        return "unknown"
    fields = stat.rpartition(")")[2].split()  # the name before it may hold spaces
    return None if fields[0] in ("Z", "X") else fields[19]


def _stat(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text("ascii", errors="replace")


def _all_visible() -> bool:
    """Whether a process that is not in /proc is gone, and not only hidden from us (``hidepid``, or no /proc at all)."""
    try:
        return bool(_stat(1) and _stat(os.getpid()))
    except OSError:
        return False


def proven_dead(p: Process, here: Process) -> bool:
    """Whether *p* certainly runs no more: same host and start of the machine, and its pid is gone or someone else's."""
    if not _comparable(p, here):
        return False
    now = started(p.pid)
    return now is None or (now not in ("unknown", p.started))


def seen_alive(p: Process, here: Process) -> bool:
    """Whether *p* certainly runs, or is stopped, on this machine."""
    return _comparable(p, here) and started(p.pid) == p.started


def _comparable(p: Process, here: Process) -> bool:
    return p.host == here.host and p.boot == here.boot and "unknown" not in (here.boot, p.started)
