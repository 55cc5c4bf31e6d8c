"""``python -m examples.invoices FOLDER --api URL [--client ID]``: post a folder; the same command again continues."""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from stepseven import Layer, StepsevenError, StoreUnavailable

from .workflow import Summary, list_files, post_invoices

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stepseven import Outcome, Question

_DONE, _REFUSED, _USAGE, _WAITING, _FAILED, _NO_STORE = 0, 1, 2, 3, 4, 5


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line.

    Returns:
        The exit code: 0 done, 1 refused, 2 usage, 3 waiting (for a person or a timer), 4 failed, 5 store unreachable.
    """
    args = _parser().parse_args(arguments)
    folder = Path(args.folder).resolve()
    if not folder.is_dir():
        return _refuse(f"{args.folder} is not a folder: name the one that holds the invoices", _USAGE)
    if not args.api.startswith(("http://", "https://")):
        return _refuse(f"{args.api} is no address of an API: give one that begins with http:// or https://", _USAGE)
    try:
        run_id = args.run_id or _run_id(args.client, folder)
    except OSError as error:
        return _refuse(f"{args.folder} cannot be read: {error.strerror or error}", _USAGE)
    try:
        outcome = asyncio.run(_run(args.store, folder, args.api.rstrip("/"), args.client, run_id))
    except StoreUnavailable as error:
        return _refuse(str(error), _NO_STORE)
    except StepsevenError as error:
        return _refuse(str(error), _REFUSED)
    return _report(outcome)


async def _run(store: str | None, folder: Path, api: str, client: str, run_id: str) -> Outcome[Summary]:
    async with Layer(store) as layer:
        return await layer.run(post_invoices(folder=str(folder), api=api), client=client, run_id=run_id)


def _run_id(client: str, folder: Path) -> str:
    """The same client, folder and file names are the same run; a file more is a new one, which posts only what is new."""
    names = [client, str(folder), *list_files.fn(str(folder))]
    digest = hashlib.blake2b(json.dumps(names).encode("utf-8"), digest_size=5).hexdigest()
    readable = re.sub(r"[^A-Za-z0-9]+", "-", f"{client}-{folder.name}").strip("-")[:60]
    return f"invoices-{readable}-{digest}"


def _report(outcome: Outcome[Summary]) -> int:
    if outcome.status == "done":
        print(f"{outcome.run_id}: done: {_sentence(outcome.result())}")
        return _DONE
    if outcome.status.ended:
        reason = outcome.failure.reason if outcome.failure else "no reason was recorded"
        print(f"{outcome.run_id}: {outcome.status}: {reason}")
        return _FAILED
    count = len(outcome.questions)
    waits = f"{count} question{'s' if count > 1 else ''}" if count else outcome.waiting_for or "another worker"
    print(f"{outcome.run_id}: waiting for {waits}; the same command again continues")
    for question in outcome.questions:
        print(_asked(question))
    return _WAITING


def _sentence(summary: Summary) -> str:
    totals = ", ".join(f"{amount:,} {currency}" for currency, amount in summary.totals.items())
    return f"{summary.posted} posted, {summary.already_there} already there, {summary.skipped} skipped" + (
        f"; in the books {totals}" if totals else ""
    )


def _asked(question: Question) -> str:
    lines = [f"{question.id}: {question.text}"]
    lines += [f"  stepseven answer {question.id} {option.id}   ({option.label})" for option in question.options]
    return "\n".join(lines)


def _refuse(sentence: str, code: int) -> int:
    print(sentence, file=sys.stderr)
    return code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m examples.invoices", description="Post a folder of UBL 2.1 invoices and credit notes, each once."
    )
    parser.add_argument("folder", metavar="FOLDER", help="its files are the documents")
    parser.add_argument("--api", metavar="URL", required=True, help="the accounting API")
    parser.add_argument("--client", metavar="ID", default="demo", help="whose documents they are (default: demo)")
    parser.add_argument("--store", metavar="URL", help="default: STEPSEVEN_URL, else sqlite:///stepseven.db")
    parser.add_argument("--run-id", metavar="ID", help="default: made from client, folder and the names of its files")
    return parser


if __name__ == "__main__":
    sys.exit(main())
