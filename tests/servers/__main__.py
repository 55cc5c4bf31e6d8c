"""``python -m tests.servers``: servers by hand.

python -m tests.servers              start both, say where they are, end them at Ctrl-C
python -m tests.servers run COMMAND  run a command whose test sessions share one pair of servers
python -m tests.servers install      install what is missing (as root, by apt), or say what to install
"""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

from tests.servers.install import install
from tests.servers.shared import close_session, keep, open_session, servers


def main(arguments: list[str]) -> int:
    """Do what the arguments say."""
    match arguments:
        case ["install"]:
            return install()
        case ["keep", folder]:
            keep(Path(folder))
            return 0
        case ["run", _, *_]:
            folder = open_session()
            signal.signal(signal.SIGINT, lambda *_: None)  # the command has got it, too: wait for its end
            try:
                return subprocess.run(arguments[1:], check=False).returncode
            finally:
                if folder is not None:
                    close_session(folder)
        case []:
            folder = open_session()
            try:
                here = servers()
                sys.stdout.write(f"{here.url()}\n{here.url(pooled=True)}  (PgBouncer)\n")
                sys.stdout.flush()
                signal.sigwait({signal.SIGINT, signal.SIGTERM})
            finally:
                if folder is not None:
                    close_session(folder)
            return 0
    sys.stderr.write(f"{__doc__}\n")
    return 2


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
