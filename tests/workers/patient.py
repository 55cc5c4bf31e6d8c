"""The command line under faketime, which lets Python's ``time.sleep`` (an absolute ``clock_nanosleep``) fail with EINVAL."""

from __future__ import annotations

import runpy
import threading
import time


def _sleep(seconds: float) -> None:
    threading.Event().wait(seconds)


if __name__ == "__main__":
    time.sleep = _sleep
    runpy.run_module("stepseven", run_name="__main__")
