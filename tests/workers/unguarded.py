"""The command line, or another program, with one guard taken away from outside: what the tests beside this have to notice.

TEST_WITHOUT=GUARD python -m tests.workers.unguarded worker …          TEST_WITHOUT=GUARD … solo …
"""

from __future__ import annotations

import os
import runpy
import sys

from stepseven.runtime import sending
from stepseven.runtime.services import Worker
from stepseven.transitions import effects

GUARDS = {
    # the last check before something is sent is none
    "gate": lambda: setattr(sending, "gate", lambda *_: lambda: None),
    # how long another worker can still send is told by the wall clock it made its claim by
    "steady clock": lambda: setattr(Worker, "could_send_us", lambda *_: None),
    # anybody may go on from anybody's claim
    "inheritance": lambda: setattr(effects, "_may_inherit", lambda *_: True),
}

if __name__ == "__main__":
    GUARDS[os.environ["TEST_WITHOUT"]]()
    if sys.argv[1] == "solo":
        del sys.argv[1]
        runpy.run_module("tests.workers.solo", run_name="__main__")
    else:
        runpy.run_module("stepseven", run_name="__main__")
