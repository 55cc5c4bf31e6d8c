"""The real exceptions of the real libraries, from a server on the loopback interface that misbehaves on request.

Longer than other files: the claims about one thing, in sections that share what stands above them.
"""

from __future__ import annotations

import asyncio
import errno
import shutil
import socket
import ssl
import struct
import subprocess
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from stepseven.decide.classify import Handling, Proof, Verdict, classify

REFUSED = {400, 401, 402, 403, 404, 405, 410, 413, 415, 422, 429}
STATUSES = [400, 401, 402, 403, 404, 405, 408, 409, 410, 413, 415, 422, 425, 429, 500, 502, 503, 504, 529]
HTTP = ["httpx", "httpx-async", "requests", "aiohttp", "urllib"]
MODELS = ["openai", "anthropic"]
SHORT = 0.3  #: seconds; only time-outs that must expire use it
LONG = 10.0  #: seconds; far more than anything else here takes


# -- clients: each sends one request and lets the library's own exception out -------------------------------------------


def _httpx(url: str, method: str, timeout: float) -> None:
    httpx = pytest.importorskip("httpx")
    with httpx.Client(timeout=timeout, follow_redirects=True, trust_env=False) as client:
        client.request(method, url).raise_for_status()


def _httpx_async(url: str, method: str, timeout: float) -> None:
    httpx = pytest.importorskip("httpx")

    async def send() -> None:
        async with httpx.AsyncClient(timeout=timeout, follow_redirects=True, trust_env=False) as client:
            (await client.request(method, url)).raise_for_status()

    asyncio.run(send())


def _requests(url: str, method: str, timeout: float) -> None:
    requests = pytest.importorskip("requests")
    with requests.Session() as session:
        session.trust_env = False
        session.request(method, url, timeout=timeout).raise_for_status()


def _aiohttp(url: str, method: str, timeout: float) -> None:
    aiohttp = pytest.importorskip("aiohttp")

    async def send() -> None:
        limits = aiohttp.ClientTimeout(sock_connect=timeout, sock_read=timeout)
        async with (
            aiohttp.ClientSession(timeout=limits, raise_for_status=True) as session,
            session.request(method, url) as answer,
        ):
            await answer.read()

    asyncio.run(send())


def _urllib(url: str, method: str, timeout: float) -> None:
    request = urllib.request.Request(url, method=method, data=b"{}" if method == "POST" else None)
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(request, timeout=timeout) as answer:
            answer.read()
    except urllib.error.HTTPError as error:
        error.close()  # the exception is the response; an open one warns
        raise


def _openai(url: str, _method: str, timeout: float) -> None:
    openai = pytest.importorskip("openai")
    with openai.OpenAI(api_key="none", base_url=url, max_retries=0, timeout=timeout) as client:
        client.models.list()


def _anthropic(url: str, _method: str, timeout: float) -> None:
    anthropic = pytest.importorskip("anthropic")
    with anthropic.Anthropic(api_key="none", base_url=url, max_retries=0, timeout=timeout) as client:
        client.models.list()


CLIENTS: dict[str, Callable[[str, str, float], None]] = {
    "httpx": _httpx,
    "httpx-async": _httpx_async,
    "requests": _requests,
    "aiohttp": _aiohttp,
    "urllib": _urllib,
    "openai": _openai,
    "anthropic": _anthropic,
}


def failure(client: str, url: str, *, method: str = "POST", timeout: float = LONG) -> Exception:
    """The exception *client* raises for one request."""
    with pytest.raises(Exception) as caught:  # noqa: PT011 - which exception it is, is the question
        CLIENTS[client](url, method, timeout)
    return caught.value


def look(error: BaseException, **known: Any) -> Verdict:
    """The verdict, now."""
    return classify(error, now_us=time.time_ns() // 1_000, **known)


# -- servers ------------------------------------------------------------------------------------------------------------


class Handler(BaseHTTPRequestHandler):
    """Each ``on_WORD`` answers ``/WORD/…``; what follows in the path are its arguments."""

    stopped: threading.Event

    def do_GET(self) -> None:
        self.rfile.read(int(self.headers.get("content-length") or 0))
        what, _, rest = self.path.lstrip("/").partition("/")
        getattr(self, f"on_{what}")(rest.split("/"))

    do_POST = do_GET  # noqa: N815 - the base class's name

    def answer(self, status: int, body: str = "{}", **headers: str) -> None:
        self.send_response(status, "Status")
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body.encode())

    def on_status(self, rest: list[str]) -> None:
        self.answer(int(rest[0]))

    def on_wait(self, rest: list[str]) -> None:
        self.answer(int(rest[0]), Retry_After=rest[1])

    def on_date(self, rest: list[str]) -> None:
        self.answer(429, Retry_After=formatdate(time.time() + int(rest[0]), usegmt=True))

    def on_error(self, rest: list[str]) -> None:
        text = "prompt is too long: 210000 tokens > 200000 maximum" if rest[1] == "invalid_request_error" else "no"
        self.answer(int(rest[0]), f'{{"error": {{"type": "{rest[1]}", "code": "{rest[1]}", "message": "{text}"}}}}')

    def on_see(self, rest: list[str]) -> None:
        self.answer(303, Location=f"/{'/'.join(rest)}")

    def on_away(self, rest: list[str]) -> None:
        self.answer(303, Location=f"http://127.0.0.1:{rest[0]}/")

    def on_reset(self, _: list[str]) -> None:
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # close() sends a reset
        self.wfile.close()
        self.connection.close()

    def on_silent(self, _: list[str]) -> None:
        self.stopped.wait(LONG)

    def on_hangup(self, _: list[str]) -> None:
        self.close_connection = True

    def on_half(self, _: list[str]) -> None:
        self.send_response(200)
        self.send_header("content-length", "1000")
        self.end_headers()
        self.wfile.write(b"{")

    def log_message(self, format: str, *args: Any) -> None:
        """Silent."""


class Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that went away is what the tests want."""


def serving(wrap: Callable[[Server], None] = lambda _: None) -> Iterator[Server]:
    """A server in a thread, stopped at the end."""
    stopped = threading.Event()
    server = Server(("127.0.0.1", 0), type("Stoppable", (Handler,), {"stopped": stopped}))
    wrap(server)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    yield server
    stopped.set()
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """Base URL of the misbehaving server."""
    for server in serving():
        yield f"http://127.0.0.1:{server.server_port}"


@pytest.fixture(scope="module")
def tls_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Base URL of a server whose certificate nobody vouches for."""
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("no openssl here to make a certificate")
    folder: Path = tmp_path_factory.mktemp("tls")
    key, cert = folder / "key.pem", folder / "cert.pem"
    made = [openssl, "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=127.0.0.1"]
    subprocess.run([*made, "-keyout", key, "-out", cert], check=True, capture_output=True, timeout=30)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(cert, key)

    def secure(server: Server) -> None:
        server.socket = context.wrap_socket(server.socket, server_side=True)

    for server in serving(secure):
        yield f"https://127.0.0.1:{server.server_port}"


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests to the loopback interface go there, whatever the machine is set up for."""
    for name in ("http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


@pytest.fixture
def closed_port() -> Iterator[int]:
    """A port that refuses: bound, so that nobody else gets it, and not listening."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        yield held.getsockname()[1]


@pytest.fixture
def full_port() -> Iterator[int]:
    """A port whose queue is full, so that the kernel drops every further connection request."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        waiting = [socket.socket() for _ in range(8)]
        for one in waiting:
            one.setblocking(False)
            assert one.connect_ex(listener.getsockname()) in {0, errno.EINPROGRESS}
        yield listener.getsockname()[1]
        for one in waiting:
            one.close()


# -- statuses -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("client", [*HTTP, *MODELS])
@pytest.mark.parametrize("status", STATUSES)
def test_a_status_is_understood(client: str, status: int, url: str) -> None:
    """Every library's exception for a status gives the table's handling, proof and place."""
    verdict = look(failure(client, f"{url}/status/{status}"))
    assert verdict.status == status
    assert verdict.resource == url.removeprefix("http://")
    assert verdict.signature.startswith(f"{status} ") or verdict.narrow
    assert (verdict.proof is Proof.REFUSED) == (status in REFUSED)
    if status in {429, 503, 529}:
        assert verdict.handling is Handling.DEFERRAL
    elif status >= 500 or status in {408, 425}:
        assert verdict.handling is Handling.RETRYABLE
    elif status == 413 and client == "anthropic":  # its "request too large" is a prompt that is too long
        assert (verdict.handling, verdict.narrow) == (Handling.RETRYABLE, True)
    else:
        assert verdict.handling is Handling.FIXABLE


@pytest.mark.parametrize("client", [*HTTP, *MODELS])
def test_retry_after_is_read(client: str, url: str) -> None:
    """Seconds and HTTP dates, on 429 and on a 403."""
    verdict = look(failure(client, f"{url}/wait/403/7"))
    assert (verdict.handling, verdict.retry_after_us, verdict.proof) == (Handling.DEFERRAL, 7_000_000, Proof.REFUSED)
    dated = look(failure(client, f"{url}/date/3600"))
    assert dated.handling is Handling.DEFERRAL
    assert dated.retry_after_us is not None
    assert 3_500_000_000 < dated.retry_after_us <= 3_600_000_000


@pytest.mark.parametrize("client", HTTP)
def test_a_missing_subject_is_fatal(client: str, url: str) -> None:
    """404 on what the run is about ends it."""
    assert look(failure(client, f"{url}/status/404", method="GET"), subject=True).handling is Handling.FATAL


@pytest.mark.parametrize("client", [*HTTP, *MODELS])
def test_a_followed_redirect_voids_the_proof(client: str, url: str, closed_port: int) -> None:
    """POST, "303 See Other", then 404 or connection refused: the POST may have done its work."""
    seen = look(failure(client, f"{url}/see/status/404"))
    assert (seen.status, seen.proof) == (404, Proof.NONE)
    away = look(failure(client, f"{url}/away/{closed_port}"))
    assert (away.handling, away.proof) == (Handling.RETRYABLE, Proof.NONE)


# -- connections ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("client", [*HTTP, *MODELS])
def test_connection_refused_is_not_sent(client: str, closed_port: int) -> None:
    """Nobody listens: retryable, proven not sent, the same signature in every library."""
    verdict = look(failure(client, f"http://127.0.0.1:{closed_port}/x"))
    assert (verdict.handling, verdict.proof) == (Handling.RETRYABLE, Proof.NOT_SENT)
    assert verdict.reason == f"no connection to 127.0.0.1:{closed_port} (refused)"
    assert verdict.signature == f"connect-refused 127.0.0.1:{closed_port}"


@pytest.mark.parametrize("client", [*HTTP, *MODELS])
def test_an_unknown_host_is_not_sent(client: str) -> None:
    """A name that does not resolve: retryable, proven not sent."""
    verdict = look(failure(client, "http://nowhere.invalid/x"))
    assert (verdict.handling, verdict.proof) == (Handling.RETRYABLE, Proof.NOT_SENT)
    assert verdict.signature == "dns nowhere.invalid"


@pytest.mark.parametrize("client", [*HTTP, *MODELS])
def test_a_refused_certificate_is_not_sent(client: str, tls_url: str) -> None:
    """A self-signed certificate: a person must look, nothing was sent."""
    verdict = look(failure(client, f"{tls_url}/status/200"))
    assert (verdict.handling, verdict.proof) == (Handling.FIXABLE, Proof.NOT_SENT)
    assert verdict.signature == f"certificate {tls_url.removeprefix('https://')}"


@pytest.mark.parametrize("client", HTTP)
def test_a_failed_handshake_proves_nothing(client: str, url: str) -> None:
    """TLS spoken to a plain server is a bare SSLError: retryable, unknown."""
    verdict = look(failure(client, f"{url.replace('http:', 'https:')}/x"))
    assert (verdict.handling, verdict.proof) == (Handling.RETRYABLE, Proof.NONE)


@pytest.mark.parametrize("client", [*HTTP, *MODELS])
def test_a_connect_time_out_is_not_sent(client: str, full_port: int) -> None:
    """The connection was never accepted, so nothing was sent (urllib does not tell: unknown)."""
    verdict = look(failure(client, f"http://127.0.0.1:{full_port}/x", timeout=SHORT))
    assert verdict.handling is Handling.RETRYABLE
    assert verdict.proof is (Proof.NONE if client == "urllib" else Proof.NOT_SENT)
    assert verdict.resource == f"127.0.0.1:{full_port}"


@pytest.mark.parametrize("client", [*HTTP, *MODELS])
def test_a_read_time_out_is_unknown(client: str, url: str) -> None:
    """The request arrived and nobody answered: it may have been done."""
    verdict = look(failure(client, f"{url}/silent", timeout=SHORT), step="pull")
    assert (verdict.handling, verdict.proof) == (Handling.RETRYABLE, Proof.NONE)
    assert verdict.signature == f"timeout {url.removeprefix('http://')}"


@pytest.mark.parametrize("client", [*HTTP, *MODELS])
@pytest.mark.parametrize("how", ["reset", "hangup", "half"])
def test_a_lost_connection_is_unknown(client: str, how: str, url: str) -> None:
    """Reset, closed without an answer, or half an answer: retryable, unknown."""
    verdict = look(failure(client, f"{url}/{how}"))
    assert (verdict.handling, verdict.proof) == (Handling.RETRYABLE, Proof.NONE)


# -- models ---------------------------------------------------------------------------------------------------------------


def test_openai_names_quota_and_overflow_by_code(url: str) -> None:
    """429 ``insufficient_quota`` is for a person; ``context_length_exceeded`` wants a narrower attempt."""
    quota = look(failure("openai", f"{url}/error/429/insufficient_quota"))
    assert (quota.handling, quota.proof) == (Handling.FIXABLE, Proof.REFUSED)
    overflow = look(failure("openai", f"{url}/error/400/context_length_exceeded"))
    assert (overflow.handling, overflow.narrow, overflow.proof) == (Handling.RETRYABLE, True, Proof.REFUSED)


def test_anthropic_says_too_long_in_words(url: str) -> None:
    """Its 400 has no code for it."""
    overflow = look(failure("anthropic", f"{url}/error/400/invalid_request_error"))
    assert (overflow.handling, overflow.narrow) == (Handling.RETRYABLE, True)
    assert look(failure("anthropic", f"{url}/error/529/overloaded_error")).handling is Handling.DEFERRAL


def test_a_missing_api_key_is_for_a_person(monkeypatch: pytest.MonkeyPatch) -> None:
    """OpenAI's client refuses to start without one."""
    openai = pytest.importorskip("openai")
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with pytest.raises(openai.OpenAIError) as caught:
        openai.OpenAI()
    assert look(caught.value).handling is Handling.FIXABLE


@pytest.mark.parametrize("client", MODELS)
def test_a_clients_own_retry_voids_the_proof(client: str, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The client tried twice: the proof of the second try says nothing about the first."""
    library = pytest.importorskip(client)
    monkeypatch.setattr(time, "sleep", lambda _: None)
    make = library.OpenAI if client == "openai" else library.Anthropic
    with (
        make(api_key="none", base_url=f"{url}/status/429", max_retries=1) as api,
        pytest.raises(library.RateLimitError) as caught,
    ):
        api.models.list()
    assert (look(caught.value).handling, look(caught.value).proof) == (Handling.DEFERRAL, Proof.NONE)


def test_a_retrying_adapter_voids_the_proof(closed_port: int) -> None:
    """urllib3 repeats inside requests, and only the last try is told: what the first did is unknown."""
    requests = pytest.importorskip("requests")
    with requests.Session() as session:
        session.trust_env = False
        session.mount("http://", requests.adapters.HTTPAdapter(max_retries=1))
        with pytest.raises(requests.ConnectionError) as caught:
            session.post(f"http://127.0.0.1:{closed_port}/x", timeout=LONG)
    assert (look(caught.value).handling, look(caught.value).proof) == (Handling.RETRYABLE, Proof.NONE)


# -- PostgreSQL ------------------------------------------------------------------------------------------------------------


def test_a_database_that_refuses_the_connection_is_not_sent(closed_port: int) -> None:
    """One class of psycopg stands for everything; that it was still connecting shows in the traceback."""
    psycopg = pytest.importorskip("psycopg")
    with pytest.raises(psycopg.OperationalError) as caught:
        psycopg.connect(f"host=127.0.0.1 port={closed_port} dbname=x user=x")
    verdict = look(caught.value)
    assert (verdict.handling, verdict.proof) == (Handling.RETRYABLE, Proof.NOT_SENT)
    assert verdict.resource == f"127.0.0.1:{closed_port}"


def test_a_database_that_does_not_accept_is_not_sent() -> None:
    """A connect time-out has a class of its own."""
    psycopg = pytest.importorskip("psycopg")
    error = psycopg.errors.ConnectionTimeout("connection timeout expired")
    assert (look(error).handling, look(error).proof) == (Handling.RETRYABLE, Proof.NOT_SENT)


@pytest.mark.parametrize(
    "name,handling",
    [
        ("SerializationFailure", Handling.DEFERRAL),
        ("DeadlockDetected", Handling.DEFERRAL),
        ("LockNotAvailable", Handling.DEFERRAL),
        ("AdminShutdown", Handling.RETRYABLE),
        ("OperationalError", Handling.RETRYABLE),
        ("InvalidPassword", Handling.FIXABLE),
        ("UniqueViolation", Handling.FIXABLE),
    ],
)
def test_database_errors_by_class(name: str, handling: Handling) -> None:
    """Lock conflicts wait, lost servers are tried again, the rest is for a person; a write stays unknown."""
    psycopg = pytest.importorskip("psycopg")
    error = getattr(psycopg.errors, name, None) or getattr(psycopg, name)
    verdict = look(error("said the server"))
    assert (verdict.handling, verdict.proof) == (handling, Proof.NONE)


# -- data -----------------------------------------------------------------------------------------------------------------


def test_data_that_does_not_validate_is_for_a_person() -> None:
    """A ValidationError of pydantic is fixable, and its many lines become one."""
    pydantic = pytest.importorskip("pydantic")
    model = pydantic.create_model("Invoice", amount=(int, ...))
    with pytest.raises(pydantic.ValidationError) as caught:
        model(amount="many")
    verdict = look(caught.value)
    assert verdict.handling is Handling.FIXABLE
    assert "\n" not in verdict.reason
