"""The command line: ``stepseven …``. typer and rich are loaded when it runs, never by ``import stepseven``."""

from __future__ import annotations

from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command.

    Args:
        arguments: without the program's name; default: ``sys.argv[1:]``.

    Returns:
        The exit code: 0 done or looked up, 1 refused, 2 usage, 3 waiting and 4 failed (from ``run``, ``resume``, ``demo``
        only), 5 store unreachable, 130 and 143 stopped by Ctrl-C and SIGTERM.
    """
    from stepseven.cli._app import invoke
    from stepseven.cli._common import forgiving

    forgiving()
    return invoke(arguments)


__all__ = ["main"]
