"""``stepseven serve`` and ``stepseven token`` as users call them, with a real client on a real port."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import httpx
import pytest

from stepseven.cli import main
from tests.http.desk import served
from tests.servers.databases import kind, rows, url
from tests.workers.crew import Crew, environment

pytestmark = [pytest.mark.slow, pytest.mark.timeout(110)]


def command(tmp_path: Path, *arguments: str, code: int = 0) -> str:
    """What a command prints: of a refusal, what it says. In this process: a start of Python costs more than the command."""
    out, err = StringIO(), StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        given = main(["--store", url(tmp_path), *arguments])
    assert given == code, err.getvalue()
    return out.getvalue() if code == 0 else err.getvalue()


def made(tmp_path: Path, *arguments: str) -> str:
    """A fresh token, by the command."""
    told = json.loads(command(tmp_path, "token", "create", *arguments, "--json"))
    assert {"id", "token", "scopes", "clients"} <= set(told)
    return str(told["token"])


def test_a_run_over_http_is_executed_by_a_worker_answered_and_seen_to_end(tmp_path: Path) -> None:
    """The whole way: started with a token, taken by a worker in another process, asked, answered by somebody else, done.

    What is streamed meanwhile tells of it. SIGTERM ends server and stream. No secret is in any byte that was stored or printed.
    """
    with Crew(url(tmp_path), tmp_path) as crew, served(tmp_path, modules=("tests.workers.flows",)) as server:
        crew.hire()
        agent, ann = made(tmp_path, "--scope", "report", "--scope", "read"), made(tmp_path, "--scope", "answer", "--name", "ann")
        asked, stream = threading.Event(), []

        def listen() -> None:
            with httpx.stream("GET", f"{server.url}/v1/runs/r1/events", headers=bearer(agent), timeout=60) as told:
                for line in told.iter_lines():
                    stream.append(line)
                    if line == "event: question":
                        asked.set()

        body = {"workflow": "asking", "client_id": "acme", "run_id": "r1"}
        assert httpx.post(f"{server.url}/v1/runs", json=body, headers=bearer(agent)).status_code == 201
        listener = threading.Thread(target=listen)
        listener.start()
        assert asked.wait(60)
        question = httpx.get(f"{server.url}/v1/questions", headers=bearer(ann)).json()["items"][0]["id"]
        answered = httpx.post(f"{server.url}/v1/questions/{question}/answer", json={"value": "yes"}, headers=bearer(ann))
        assert answered.json()["answered_by"] == "ann"
        listener.join(60)
        assert stream[-3] == "event: end"
        assert any('"status": "done"' in line for line in stream)
        signed = httpx.post(f"{server.url}/sign-in", data={"token": server.sign_in.partition("token=")[2]})
        secrets = [agent, ann, server.sign_in.partition("token=")[2], *signed.cookies.values()]
        open_stream(server.url, agent, tmp_path)
        server.process.send_signal(signal.SIGTERM)
        out, err = server.process.communicate(timeout=30)
        assert server.process.returncode == 0, err
        assert not [secret for secret in secrets if secret in out + err]
    stored = everything(tmp_path)
    assert not [secret for secret in secrets if secret in stored or secret[15:] in stored]


def bearer(text: str) -> dict[str, str]:
    """What somebody with this token sends."""
    return {"Authorization": f"Bearer {text}"}


def open_stream(base: str, text: str, tmp_path: Path) -> None:
    """A stream of a run that does not end, left open in a thread: the server must end all the same."""
    body = {"workflow": "serve_elsewhere", "client_id": "acme", "run_id": "r2"}
    assert httpx.post(f"{base}/v1/runs", json=body, headers=bearer(text)).status_code == 201
    first = threading.Event()

    def read() -> None:
        with httpx.stream("GET", f"{base}/v1/runs/r2/events", headers=bearer(text), timeout=60) as told:
            for _ in told.iter_lines():
                first.set()

    threading.Thread(target=read, daemon=True).start()
    assert first.wait(30)


def everything(tmp_path: Path) -> str:
    """Every byte of the store, or every row of it where it is on a server."""
    if kind() == "sqlite":
        return "".join(path.read_bytes().decode("latin-1") for path in tmp_path.glob("s7.db*") if path.is_file())
    tables = ("token", "session", "reply", "run", "step", "question", "fact", "event")
    return str([rows(tmp_path, f"SELECT * FROM {table}") for table in tables])


def test_tokens_are_made_listed_and_revoked(tmp_path: Path) -> None:
    """Shown once; the list has no secret; a running server refuses a revoked one within seconds. Two servers, two ports."""
    text = made(tmp_path, "--scope", "read", "--scope", "read", "--client", "acme", "--name", "n8n", "--expires", "90d")
    listed = command(tmp_path, "token", "list", "--json")
    assert text not in listed
    item: dict[str, Any] = json.loads(listed)["items"][0]
    assert (item["name"], item["scopes"], item["clients"], item["revoked_us"]) == ("n8n", ["read"], ["acme"], None)
    assert "n8n" in command(tmp_path, "token", "list")
    assert command(tmp_path, "token", "create", "--scope", "admin").startswith("s7_")
    with served(tmp_path) as server:
        assert httpx.get(f"{server.url}/v1/runs", headers=bearer(text)).status_code == 200
        assert "holds no longer" in command(tmp_path, "token", "revoke", item["id"])
        give_up = time.monotonic() + 15
        while httpx.get(f"{server.url}/v1/runs", headers=bearer(text)).status_code == 200:
            assert time.monotonic() < give_up
            time.sleep(0.2)
        assert httpx.get(f"{server.url}/v1/runs", headers=bearer(text)).status_code == 401
        port = server.url.rpartition(":")[2]
        assert "name another --port" in command(tmp_path, "serve", "--port", port, code=1)


@pytest.mark.parametrize(
    "arguments,code,told",
    [
        (("token", "create"), 2, "--scope with one of read, report, answer, operate, admin"),
        (("token", "create", "--scope", "write"), 2, "--scope write is none"),
        (("token", "create", "--scope", "read", "--expires", "soon"), 2, "say 90d"),
        (("token", "create", "--scope", "read", "--client", "a/b"), 1, "without '/'"),
        (("serve", "--public-url", "s7.example.com"), 1, "such as https://"),
        (("serve", "--host", "no.such.host.invalid", "--port", "0"), 1, "say 127.0.0.1"),
    ],
)
def test_what_cannot_be_done_is_said(tmp_path: Path, arguments: tuple[str, ...], code: int, told: str) -> None:
    """One sentence, before anything is made."""
    assert told in command(tmp_path, *arguments, code=code)


def test_it_says_what_it_does_not_do_and_warns_of_other_machines(tmp_path: Path) -> None:
    """At its start: where, how to sign in, that a worker executes runs; with an address for other machines a warning."""
    called = [sys.executable, "-u", "-m", "stepseven", "--store", url(tmp_path), "serve", "--port", "0", "--host", "0.0.0.0"]
    process = subprocess.Popen(called, cwd=tmp_path, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        lines = [process.stdout.readline() for _ in range(4)]
    finally:
        os.kill(process.pid, signal.SIGINT)
        out, err = process.communicate(timeout=30)
    assert "is at http://127.0.0.1:" in lines[0]
    assert "/sign-in?token=s7_" in lines[1]
    assert "It executes no runs: a worker does" in lines[3]
    assert "Stopped." in out
    assert "put https in front of it" in err
    assert process.returncode == 0
