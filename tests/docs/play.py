"""Plays one page in the current folder, as a reader would: a child process of the tests.

Reads a JSON list of blocks from stdin, writes a JSON list of ``{"output", "error"}``, one per block that was played, to the
file named on the command line. ``python`` blocks share a namespace; ``console`` blocks are shell sessions (``$ command``).
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import signal
import subprocess
import sys
import traceback
from pathlib import Path
from typing import Any

_QUESTION = re.compile(r"\bq_[0-9a-z]{12}\b")


class Reader:
    """Somebody who works through a page, and reads the ids on their own screen where the page shows others."""

    def __init__(self) -> None:
        self.shared: dict[str, Any] = {"__name__": "__main__"}
        self.mine: dict[str, str] = {}  # an id in the page -> the id here
        self.latest = ""

    def play(self, block: dict[str, Any]) -> dict[str, Any]:
        """Work through one block; what was printed, and how it failed."""
        if block["language"] == "console":
            return {"output": self._session(block["body"]), "error": None}
        file = Path(block["file"] or f"line_{block['line']}.py")
        file.write_text(block["body"], "utf-8")  # a real file: the source of a step is part of what is recorded
        if block["file"]:
            return {"output": "", "error": None}
        printed = io.StringIO()
        try:
            with contextlib.redirect_stdout(printed):
                exec(compile(block["body"], str(file.resolve()), "exec", dont_inherit=True), self.shared)
        except BaseException:  # noqa: BLE001 - SystemExit and Superseded, too, are a page that does not run
            return {"output": printed.getvalue(), "error": traceback.format_exc()}
        return {"output": printed.getvalue(), "error": None}

    def _session(self, text: str) -> str:
        """Run the commands of a console block; the output of each comes under it, with the ids of the page."""
        shown = ""
        for part in re.split(r"^(?=\$ )", text, flags=re.MULTILINE):
            line, _, expected = part.partition("\n")
            if not line.startswith("$ "):
                continue
            output = self._run(line[2:])
            ids = list(dict.fromkeys(_QUESTION.findall(output)))
            self.mine.update(zip(dict.fromkeys(_QUESTION.findall(expected)), ids, strict=False))
            self.latest = ids[-1] if ids else self.latest
            shown += f"{line}\n{self._as_in_the_page(output)}"
        return shown

    def _run(self, command: str) -> str:
        if set_for_good := re.fullmatch(r"export ([A-Z_]+)=(\S+)", command.strip()):
            os.environ[set_for_good[1]] = set_for_good[2]  # each command has a shell of its own
            return ""
        for theirs in _QUESTION.findall(command):
            command = command.replace(theirs, self.mine.setdefault(theirs, self.latest))
        done = subprocess.run(
            command, shell=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=60, check=False
        )
        return done.stdout + ("Killed\n" if done.returncode == -signal.SIGKILL else "")  # as a terminal says it

    def _as_in_the_page(self, output: str) -> str:
        theirs = {mine: theirs for theirs, mine in self.mine.items()}
        return _QUESTION.sub(lambda match: theirs.get(match[0], match[0]), output)


def main() -> None:
    """Play every block; stop at the first that fails."""
    sys.path.insert(0, str(Path.cwd()))
    reader, results = Reader(), []
    for block in json.load(sys.stdin):
        results.append(reader.play(block))
        if results[-1]["error"] is not None:
            break
    Path(sys.argv[1]).write_text(json.dumps(results), "utf-8")


if __name__ == "__main__":
    main()
