"""Classifying exceptions: what is done, what is proven about a write, what a person reads. No library, no I/O.

Longer than other files: the claims about one thing, in sections that share what stands above them.
"""

from __future__ import annotations

import asyncio
import errno
import http.client
import json
import socket
import sqlite3
import ssl
import urllib.error
from collections.abc import Callable
from datetime import UTC, datetime
from email.message import Message
from email.utils import format_datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepseven.decide.classify import Handling, Proof, Verdict, classify
from stepseven.errors import (
    AlreadyDone,
    Conflict,
    Fatal,
    Fixable,
    MissingSecret,
    NotRecordable,
    NotYet,
    Retryable,
    SecretFound,
    StepFailed,
    StoreUnavailable,
    Superseded,
    TooLarge,
)

NOW_US = 1_773_500_000_000_000
REFUSED = {400, 401, 402, 403, 404, 405, 410, 413, 415, 422, 429}


class Answer:
    """A response as the client libraries shape it."""

    def __init__(self, status: int, headers: dict[str, str] | None = None, history: tuple[Any, ...] = ()) -> None:
        self.status_code = status
        self.headers = headers or {}
        self.history = history
        self.url = "https://billing-api/v1/invoices?token=hidden"


class HttpError(Exception):
    """An exception with ``.response``, as httpx and requests raise it."""

    def __init__(self, status: int, headers: dict[str, str] | None = None, history: tuple[Any, ...] = ()) -> None:
        super().__init__(f"{status} for url https://billing-api/")
        self.response = Answer(status, headers, history)


class ModelError(Exception):
    """An exception with ``.status_code``, ``.code`` and ``.body``, as model clients raise it."""

    def __init__(self, status: int | None, *, code: str | None = None, body: object = None, text: str = "") -> None:
        super().__init__(text or "model error")
        self.status_code = status
        self.code = code
        self.body = body


def look(error: BaseException, **known: Any) -> Verdict:
    """The verdict, now."""
    return classify(error, now_us=NOW_US, **known)


def wrapped(outer: BaseException, inner: BaseException) -> BaseException:
    """*outer*, raised explicitly from *inner*."""
    try:
        raise outer from inner  # noqa: TRY301 - only raising links them
    except BaseException as error:  # noqa: BLE001 - a group of signals is one
        return error


def during(outer: BaseException, inner: BaseException) -> BaseException:
    """*outer*, raised while *inner* was being handled."""
    try:
        try:
            raise inner  # noqa: TRY301 - only raising makes it the context
        except BaseException:  # noqa: BLE001
            raise outer  # noqa: B904 - the point of the test
    except BaseException as error:  # noqa: BLE001
        return error


# -- statuses -----------------------------------------------------------------------------------------------------------


@given(st.integers(400, 599))
def test_every_error_status_has_a_verdict(status: int) -> None:
    """A refusal is proven by exactly the statuses of the contract; 429, 503, 529 are deferrals, other 5xx retryable."""
    verdict = look(HttpError(status))
    assert (verdict.proof is Proof.REFUSED) == (status in REFUSED)
    assert verdict.proof in {Proof.REFUSED, Proof.NONE}
    assert verdict.status == status
    assert verdict.signature == f"{status} billing-api"
    if status in {429, 503, 529}:
        assert verdict.handling is Handling.DEFERRAL
    elif status in {408, 425} or status >= 500:
        assert verdict.handling is Handling.RETRYABLE
    else:
        assert verdict.handling is Handling.FIXABLE


@given(st.integers(-(10**6), 10**6).filter(lambda n: not 400 <= n < 600))
def test_a_number_that_is_no_error_status_says_nothing(number: int) -> None:
    """A ``.code`` outside 400 to 599 (a success, a close code, a vendor's number) is not taken for a status."""
    error = RuntimeError("odd")
    error.code = number  # type: ignore[attr-defined]
    assert look(error).status is None
    assert look(error).handling is Handling.FIXABLE


@pytest.mark.parametrize("name", ["status_code", "status", "code", "http_status"])
def test_the_status_is_found_where_libraries_keep_it(name: str) -> None:
    """The status may stand on the exception itself, under any usual name."""
    error = RuntimeError("no")
    setattr(error, name, 403)
    assert look(error).status == 403


def test_a_flag_is_not_a_status() -> None:
    """``True`` is an int in Python, not a status."""
    error = RuntimeError("no")
    error.status = True  # type: ignore[attr-defined]
    assert look(error).status is None


def test_a_reason_is_a_sentence_a_person_understands() -> None:
    """Host and phrase, no class name, nothing of the query."""
    assert look(HttpError(403)).reason == "billing-api answered 403 Forbidden"


def test_the_declared_resource_stands_instead_of_the_host() -> None:
    """Reason, signature and resource all name the step's resource."""
    verdict = look(HttpError(403), resource="ledger")
    assert (verdict.reason, verdict.signature, verdict.resource) == ("ledger answered 403 Forbidden", "403 ledger", "ledger")


@pytest.mark.parametrize("status", [404, 410])
def test_a_missing_subject_is_fatal(status: int) -> None:
    """404 and 410 end the run only where the step reads what the run is about."""
    assert look(HttpError(status), subject=True).handling is Handling.FATAL
    assert look(HttpError(status), subject=False).handling is Handling.FIXABLE
    assert look(HttpError(403), subject=True).handling is Handling.FIXABLE


def test_a_followed_redirect_voids_the_proof() -> None:
    """A 404 after "303 See Other" may mean the first request did its work."""
    assert look(HttpError(404, history=(Answer(303),))).proof is Proof.NONE


def test_an_authentication_challenge_is_not_a_redirect() -> None:
    """Digest authentication answers 401 first; the request that follows is the one that counts."""
    assert look(HttpError(403, history=(Answer(401),))).proof is Proof.REFUSED


@pytest.mark.parametrize("passed", ["resolve_redirects", "http_error_302"])
def test_a_redirect_seen_only_in_the_traceback_voids_the_proof(passed: str) -> None:
    """A connection refused after a redirect says nothing of the redirect: the frames it passed do."""
    owner = {"resolve_redirects": "requests.sessions", "http_error_302": "urllib.request"}[passed]
    scope: dict[str, Any] = {"__name__": owner}
    exec(f"def {passed}():\n    raise ConnectionRefusedError(111, 'refused')", scope)
    with pytest.raises(ConnectionRefusedError) as caught:
        scope[passed]()
    assert look(caught.value).proof is Proof.NONE
    assert look(ConnectionRefusedError(111, "refused")).proof is Proof.NOT_SENT


# -- Retry-After ---------------------------------------------------------------------------------------------------------


@given(
    st.sampled_from([401, 403, 404, 409, 429, 500, 503]), st.integers(0, 100_000), st.sampled_from(["Retry-After", "retry-after"])
)
def test_retry_after_makes_a_deferral_of_any_error(status: int, seconds: int, name: str) -> None:
    """Whatever the status, "come back in n seconds" is "not now"; the proof stays that of the status."""
    verdict = look(HttpError(status, {name: str(seconds)}))
    assert verdict.handling is Handling.DEFERRAL
    assert verdict.retry_after_us == seconds * 1_000_000
    assert verdict.proof is look(HttpError(status)).proof


@given(st.integers(-100_000, 100_000))
def test_retry_after_may_be_a_date(seconds: int) -> None:
    """An HTTP date is turned into a wait from now; a past date is no wait."""
    at = datetime.fromtimestamp(NOW_US // 1_000_000 + seconds, UTC)
    verdict = look(HttpError(429, {"retry-after": format_datetime(at, usegmt=True)}))
    assert verdict.retry_after_us == max(seconds, 0) * 1_000_000


def test_milliseconds_are_more_exact_than_seconds() -> None:
    """``retry-after-ms`` comes before ``retry-after``."""
    verdict = look(HttpError(429, {"Retry-After-Ms": "1500", "Retry-After": "2"}))
    assert verdict.retry_after_us == 1_500_000


@given(st.text(max_size=30))
def test_a_senseless_retry_after_never_breaks_anything(value: str) -> None:
    """Whatever a server puts there, there is a verdict and a wait of 0 to 366 days or none."""
    verdict = look(HttpError(429, {"retry-after": value}))
    assert verdict.handling is Handling.DEFERRAL
    assert verdict.retry_after_us is None or 0 <= verdict.retry_after_us <= 366 * 86_400 * 1_000_000


@pytest.mark.parametrize("value", ["nan", "inf", "-1", "soon", ""])
def test_a_senseless_retry_after_is_ignored(value: str) -> None:
    """A 500 with one stays retryable."""
    assert look(HttpError(500, {"retry-after": value})).handling is Handling.RETRYABLE


# -- models and clouds ---------------------------------------------------------------------------------------------------


def test_an_exhausted_quota_is_for_a_person() -> None:
    """OpenAI's 429 ``insufficient_quota`` does not pass by waiting, even with Retry-After."""
    verdict = look(ModelError(429, code="insufficient_quota"))
    assert (verdict.handling, verdict.proof, verdict.signature) == (Handling.FIXABLE, Proof.REFUSED, "quota")


@pytest.mark.parametrize(
    "error",
    [
        ModelError(400, code="context_length_exceeded"),
        ModelError(None, code="context_length_exceeded"),
        ModelError(400, body={"error": {"code": "context_length_exceeded", "message": "too many tokens"}}),
        ModelError(400, text="prompt is too long: 210000 tokens > 200000 maximum"),
        ModelError(400, text="The input token count (1) exceeds the maximum number of tokens allowed (0)."),
    ],
)
def test_a_context_overflow_asks_for_a_narrower_attempt(error: ModelError) -> None:
    """By code where there is one, by text where there is none."""
    verdict = look(error)
    assert (verdict.handling, verdict.narrow, verdict.signature) == (Handling.RETRYABLE, True, "context-overflow")


def test_the_text_alone_is_not_an_overflow() -> None:
    """The words in an exception without a fitting status mean nothing."""
    assert not look(ValueError("the prompt is too long")).narrow
    assert not look(ModelError(500, text="prompt is too long")).narrow


@pytest.mark.parametrize("code,handling", [("overloaded_error", Handling.DEFERRAL), ("api_error", Handling.RETRYABLE)])
def test_an_error_inside_a_stream_is_known_by_its_code(code: str, handling: Handling) -> None:
    """A stream fails after its 200: only the code tells, and nothing is proven."""
    verdict = look(ModelError(200, body={"type": "error", "error": {"type": code, "message": "Overloaded"}}))
    assert (verdict.handling, verdict.proof) == (handling, Proof.NONE)
    assert verdict.reason == "the other side answered with an error: Overloaded"


def aws(status: int, code: str, retries: int = 0) -> Exception:
    """The shape of botocore's ClientError."""
    error = RuntimeError(f"An error occurred ({code})")
    error.response = {  # type: ignore[attr-defined]
        "Error": {"Code": code, "Message": "Rate exceeded"},
        "ResponseMetadata": {"HTTPStatusCode": status, "HTTPHeaders": {}, "RetryAttempts": retries},
    }
    return error


def test_throttling_by_aws_is_a_deferral() -> None:
    """AWS throttles with 400 and a code; its own retries void the proof."""
    verdict = look(aws(400, "ThrottlingException"))
    assert (verdict.handling, verdict.proof, verdict.status) == (Handling.DEFERRAL, Proof.REFUSED, 400)
    assert look(aws(400, "ThrottlingException", retries=2)).proof is Proof.NONE
    assert look(aws(403, "AccessDenied")).handling is Handling.FIXABLE


# -- chains --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("link", [wrapped, during])
@pytest.mark.parametrize("status", [429, 503, 403, 500])
def test_a_wrapped_status_is_that_status(link: Callable[[BaseException, BaseException], BaseException], status: int) -> None:
    """Frameworks wrap: handling, status and signature are those of the wrapped exception."""
    verdict = look(link(RuntimeError("tool failed"), HttpError(status)))
    plain = look(HttpError(status))
    assert (verdict.handling, verdict.status, verdict.signature) == (plain.handling, plain.status, plain.signature)


def test_a_proof_passes_through_an_explicit_cause_only() -> None:
    """``raise … from`` says why; a ``KeyError`` while a 403 was handled may have come after another request."""
    assert look(wrapped(RuntimeError("tool failed"), HttpError(403))).proof is Proof.REFUSED
    assert look(RuntimeError(HttpError(403))).proof is Proof.REFUSED
    assert look(during(KeyError("id"), HttpError(403))).proof is Proof.NONE
    assert look(during(KeyError("id"), ConnectionRefusedError(111, "refused"))).proof is Proof.NONE


def test_from_none_hides_what_was_handled() -> None:
    """``raise … from None``: the author says the handled exception does not matter."""
    error = RuntimeError("bad")
    error.__context__ = HttpError(429)
    error.__suppress_context__ = True
    assert look(error).handling is Handling.FIXABLE


def test_an_earlier_request_in_doubt_voids_the_proof() -> None:
    """A read time-out, then connection refused at a second address: the first may have arrived."""
    assert look(during(ConnectionRefusedError(111, "refused"), TimeoutError())).proof is Proof.NONE
    assert look(during(HttpError(403), ConnectionResetError(104, "reset"))).proof is Proof.NONE
    assert look(during(ConnectionRefusedError(111, "refused"), KeyError("cache"))).proof is Proof.NOT_SENT
    assert look(during(ConnectionRefusedError(111, "refused"), HttpError(403))).proof is Proof.NOT_SENT


def test_the_latest_event_decides_not_an_older_one() -> None:
    """A time-out while a 403 was being handled is a time-out."""
    assert look(during(TimeoutError(), HttpError(403))).handling is Handling.RETRYABLE


def test_a_cycle_of_causes_ends() -> None:
    """Exceptions that cause each other are classified, not followed for ever."""
    one, two = RuntimeError("one"), RuntimeError("two")
    one.__cause__, two.__cause__ = two, one
    one.__context__, two.__context__ = two, one
    assert look(one).handling is Handling.FIXABLE


@given(st.integers(1, 300))
def test_a_chain_of_any_length_ends(length: int) -> None:
    """A deep chain is followed 50 links far."""
    error: BaseException = HttpError(429)
    for _ in range(length):
        error = wrapped(RuntimeError("again"), error)
    assert look(error).handling is (Handling.DEFERRAL if length < 50 else Handling.FIXABLE)


def test_a_property_that_raises_is_not_there() -> None:
    """An unset ``.request`` of httpx raises; a classifier survives anything."""

    class Odd(Exception):
        @property
        def response(self) -> object:
            raise ZeroDivisionError

        def __str__(self) -> str:
            raise ZeroDivisionError

    assert look(Odd()).reason == "Odd"


# -- groups --------------------------------------------------------------------------------------------------------------

MEMBERS = st.sampled_from([400, 403, 404, 429, 500, 503])


@given(st.lists(MEMBERS, min_size=1, max_size=6))
def test_a_group_is_as_bad_as_its_worst_member(statuses: list[int]) -> None:
    """Worst handling; a proof only if every member proves it."""
    order = list(Handling)
    verdict = look(ExceptionGroup("tasks", [HttpError(status) for status in statuses]))
    alone = [look(HttpError(status)) for status in statuses]
    assert verdict.handling is max((v.handling for v in alone), key=order.index)
    assert (verdict.proof is Proof.REFUSED) == all(v.proof is Proof.REFUSED for v in alone)


def test_a_group_of_one_reads_like_its_member() -> None:
    """A task group around one failure adds nothing, nor does nesting."""
    group = ExceptionGroup("tasks", [ExceptionGroup("tasks", [HttpError(403)])])
    assert look(group) == look(HttpError(403))
    assert look(ExceptionGroup("t", [HttpError(403), HttpError(403)])).reason.endswith("403 Forbidden (and 1 more)")


# -- connections ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "error,handling,proof",
    [
        (ConnectionRefusedError(111, "refused"), Handling.RETRYABLE, Proof.NOT_SENT),
        (OSError(errno.ECONNREFUSED, "refused"), Handling.RETRYABLE, Proof.NOT_SENT),
        (urllib.error.URLError(ConnectionRefusedError(111, "refused")), Handling.RETRYABLE, Proof.NOT_SENT),
        (socket.gaierror(-2, "unknown"), Handling.RETRYABLE, Proof.NOT_SENT),
        (ssl.SSLCertVerificationError(1, "self-signed"), Handling.FIXABLE, Proof.NOT_SENT),
        (ssl.SSLError(1, "unexpected eof"), Handling.RETRYABLE, Proof.NONE),
        (ConnectionResetError(104, "reset"), Handling.RETRYABLE, Proof.NONE),
        (BrokenPipeError(32, "pipe"), Handling.RETRYABLE, Proof.NONE),
        (http.client.RemoteDisconnected("closed"), Handling.RETRYABLE, Proof.NONE),
        (http.client.IncompleteRead(b""), Handling.RETRYABLE, Proof.NONE),
        (asyncio.IncompleteReadError(b"", 4), Handling.RETRYABLE, Proof.NONE),
        (TimeoutError(), Handling.RETRYABLE, Proof.NONE),
        (OSError(errno.EHOSTUNREACH, "no route"), Handling.RETRYABLE, Proof.NONE),
        (OSError("Multiple exceptions: [Errno 111] …, [Errno 111] …"), Handling.RETRYABLE, Proof.NONE),
        (asyncio.CancelledError(), Handling.RETRYABLE, Proof.NONE),
        (urllib.error.URLError("unknown url type: ftp"), Handling.FIXABLE, Proof.NONE),
        (FileNotFoundError(2, "no such file"), Handling.FIXABLE, Proof.NONE),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else str(value),
)
def test_connection_failures(error: BaseException, handling: Handling, proof: Proof) -> None:
    """Only DNS, refused, connect time-out and certificate check prove "not sent"; a bare SSLError never does."""
    verdict = look(error)
    assert (verdict.handling, verdict.proof) == (handling, proof)


def test_a_connect_error_around_a_bare_tls_failure_proves_nothing() -> None:
    """A library's "connect error" counts only if no bare SSLError is under it."""

    def connect_error(inner: BaseException) -> BaseException:
        outer = type("ConnectError", (Exception,), {"__module__": "httpx"})("connect")
        return wrapped(outer, inner)

    assert look(connect_error(ssl.SSLError(1, "eof"))).proof is Proof.NONE
    assert look(connect_error(ssl.SSLCertVerificationError(1, "self-signed"))).proof is Proof.NOT_SENT
    assert look(connect_error(OSError("all failed"))).proof is Proof.NOT_SENT


def test_a_time_out_says_where_if_it_knows() -> None:
    """Without a host the sentence stays whole; the step then stands in the signature."""
    assert look(TimeoutError(), step="pull").reason == "no answer within the time-out"
    assert look(TimeoutError(), step="pull").signature == "timeout pull"
    assert look(TimeoutError(), resource="crm").reason == "no answer from crm within the time-out"


def test_the_reason_of_an_http_error_hides_credentials() -> None:
    """User, password and query of the URL never reach a person's screen; the scheme's own port is left out."""
    error = urllib.error.HTTPError("https://ann:pw@API.example:443/x?key=1", 403, "Forbidden", Message(), None)
    assert look(error).reason == "api.example answered 403 Forbidden"


# -- databases -----------------------------------------------------------------------------------------------------------


def test_a_locked_sqlite_file_is_a_deferral() -> None:
    """By the error code of a real lock, not by its text."""
    one, two = (sqlite3.connect("file:classify?mode=memory&cache=shared", uri=True, timeout=0) for _ in range(2))
    try:
        one.execute("CREATE TABLE t (x)")
        one.commit()
        one.execute("BEGIN IMMEDIATE")
        with pytest.raises(sqlite3.OperationalError) as caught:
            two.execute("BEGIN IMMEDIATE")
    finally:
        one.close()
        two.close()
    assert look(caught.value).handling is Handling.DEFERRAL
    assert look(sqlite3.OperationalError("no such table: t")).handling is Handling.FIXABLE


@pytest.mark.parametrize(
    "state,handling",
    [
        ("40001", Handling.DEFERRAL),
        ("40P01", Handling.DEFERRAL),
        ("55P03", Handling.DEFERRAL),
        ("57P01", Handling.RETRYABLE),
        ("53300", Handling.RETRYABLE),
        ("08006", Handling.RETRYABLE),
        ("28P01", Handling.FIXABLE),
        ("23505", Handling.FIXABLE),
    ],
)
def test_databases_are_understood_by_sqlstate(state: str, handling: Handling) -> None:
    """Locks wait, an unreachable server is tried again, the rest is for a person; nothing is proven about a write."""
    error = RuntimeError("db")
    error.sqlstate = state  # type: ignore[attr-defined]
    assert (look(error).handling, look(error).proof) == (handling, Proof.NONE)


# -- raised by hand, our own, unknown -------------------------------------------------------------------------------------


def test_exceptions_raised_by_hand_declare_that_nothing_was_done() -> None:
    """The author's word: handling, reason, missing fact and question are as given."""
    assert look(Retryable("busy")).handling is Handling.RETRYABLE
    later = look(Retryable("busy", retry_after=1.5))
    assert (later.handling, later.retry_after_us) == (Handling.DEFERRAL, 1_500_000)
    missing = look(Fixable("no VAT number", needs="vat_number", ask="What is it?"))
    assert (missing.handling, missing.needs, missing.ask) == (Handling.FIXABLE, "vat_number", "What is it?")
    assert look(Fatal("client left")).reason == "client left"
    assert {look(error).proof for error in (Retryable("a"), Fixable("b"), Fatal("c"))} == {Proof.DECLARED}


def test_a_word_by_hand_counts_more_than_what_it_was_raised_from() -> None:
    """Raised from or during a time-out, ``Retryable`` still declares "not done"; wrapped explicitly it stays."""
    for error in (wrapped(Retryable("x"), TimeoutError()), during(Retryable("x"), TimeoutError())):
        assert look(error).proof is Proof.DECLARED
    assert look(wrapped(RuntimeError("tool"), Fatal("x"))).handling is Handling.FATAL
    assert look(during(KeyError("x"), Fatal("x"))).proof is Proof.NONE


@pytest.mark.parametrize("error", [AlreadyDone(1), Conflict(1), NotYet(), Superseded("r", "taken")])
def test_what_is_not_a_failure_is_refused(error: BaseException) -> None:
    """Handing in a signal or a probe's answer is a programming error, also inside a group."""
    with pytest.raises(ValueError, match="not a failure"):
        look(error)
    with pytest.raises(ValueError, match="not a failure"):
        look(BaseExceptionGroup("tasks", [KeyError("x"), error]))


@pytest.mark.parametrize(
    "error", [NotRecordable("x", "a set"), SecretFound("x", "a key"), TooLarge("x", 2, 1), MissingSecret("API_KEY")]
)
def test_our_own_errors_are_for_a_person_and_already_sentences(error: Exception) -> None:
    """Fixable, in their own words, never narrower."""
    verdict = look(error)
    assert (verdict.handling, verdict.reason, verdict.narrow) == (Handling.FIXABLE, str(error), False)


def test_an_inner_step_that_failed_for_good_is_not_repeated() -> None:
    """The inner step used its attempts; fatal stays fatal. A store that is away comes back."""
    assert look(StepFailed("pull", "403", kind="retryable")).handling is Handling.FIXABLE
    assert look(StepFailed("pull", "gone", kind="fatal")).handling is Handling.FATAL
    assert look(StoreUnavailable("sqlite:///x", "locked")).handling is Handling.RETRYABLE


@given(st.text(max_size=600))
def test_unknown_exceptions_are_fixable_and_prove_nothing(text: str) -> None:
    """Class and message, on one line of at most 300 characters."""
    verdict = look(ValueError(text))
    assert (verdict.handling, verdict.proof) == (Handling.FIXABLE, Proof.NONE)
    assert verdict.reason.startswith("ValueError")
    assert len(verdict.reason) <= 300
    assert "\n" not in verdict.reason


def test_an_unknown_exception_is_named_by_the_users_own_code() -> None:
    """The signature is the user's function, not the library it called, and not the message."""

    def parse(text: str) -> object:
        return json.loads(text)

    signatures = set()
    for text in ("{1", "[nope"):
        with pytest.raises(json.JSONDecodeError) as caught:
            parse(text)
        signatures.add(look(caught.value, step="pull").signature)
    assert signatures == {"JSONDecodeError test_classify.py:parse+1"}


def test_two_causes_in_one_function_are_two_and_one_cause_is_one() -> None:
    """The line within the function tells causes apart; what a message names (an item, a client's path, a number) does not."""

    def check(item: str, path: str) -> None:
        if not item:
            raise ValueError(f"no price for {item}")
        raise FileNotFoundError(2, "not there", path)

    signatures = []
    for item, path in (("", "a"), ("pear", "/data/acme/1.csv"), ("apple", "/data/bolt/2.csv")):
        with pytest.raises((ValueError, OSError)) as caught:
            check(item, path)
        signatures.append(look(caught.value, step="pull").signature)
    assert signatures == [
        "ValueError test_classify.py:check+2", "FileNotFoundError test_classify.py:check+3",
        "FileNotFoundError test_classify.py:check+3",
    ]  # fmt: skip


def test_names_paths_and_addresses_do_not_make_a_new_cause() -> None:
    """Without a place the message names the cause: what is quoted in it, paths, addresses and ids are folded."""
    one = look(ValueError("no file '/data/acme/1.csv' for ann@acme.example (id 7f3a9c2e-11)")).signature
    two = look(ValueError("no file '/data/bolt/22.csv' for ben@bolt.example (id 0b3a9c2e-42)")).signature
    assert one == two == "ValueError no file # for # (id #)"


@given(st.integers(0), st.integers(0))
def test_numbers_do_not_make_a_new_cause(one: int, two: int) -> None:
    """Without a place the message names the cause, its numbers folded."""
    assert look(ValueError(f"order {one} is late")).signature == look(ValueError(f"order {two} is late")).signature
    assert look(ValueError(f"order {one} is late")).signature == "ValueError order # is late"


# -- overrides -----------------------------------------------------------------------------------------------------------


def test_the_first_override_with_an_answer_counts() -> None:
    """Step before layer; ``None`` means "not mine"."""
    verdict = look(HttpError(403), overrides=[lambda _: None, lambda _: "retryable", lambda _: Handling.FATAL])
    assert (verdict.handling, verdict.proof, verdict.status) == (Handling.RETRYABLE, Proof.REFUSED, 403)


def test_an_override_by_hand_gives_its_words_but_no_proof() -> None:
    """The proof stays what the exception itself proves."""
    late = look(TimeoutError(), overrides=[lambda _: Retryable("busy", retry_after=2)])
    assert (late.handling, late.retry_after_us, late.proof) == (Handling.DEFERRAL, 2_000_000, Proof.NONE)
    asked = look(HttpError(409), overrides=[lambda _: Fixable("taken", needs="name")])
    assert (asked.reason, asked.needs, asked.proof, asked.status) == ("taken", "name", Proof.NONE, 409)


def test_an_override_may_raise_its_answer() -> None:
    """``raise Fatal(…)`` in a classify function is the same as returning it."""

    def override(_: BaseException) -> None:
        raise Fatal("closed account")

    assert look(HttpError(403), overrides=[override]).handling is Handling.FATAL


@pytest.mark.parametrize("answer", ["perhaps", 7, AlreadyDone(1)])
def test_a_senseless_override_is_refused_aloud(answer: Any) -> None:
    """A wrong answer is a mistake in the code, not a verdict."""
    with pytest.raises(ValueError, match="classify= answered"):
        look(KeyError("x"), overrides=[lambda _: answer])
