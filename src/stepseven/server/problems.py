"""What goes wrong, as ``application/problem+json`` (RFC 9457): one sentence, and fields that a program can act on."""

from __future__ import annotations

import json
import logging
import traceback
from collections.abc import Mapping
from typing import Any

from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from stepseven import errors
from stepseven.store.codec import free_text

MEDIA_TYPE = "application/problem+json"
_log = logging.getLogger("stepseven.server")

_TITLES = {
    400: "Bad request", 401: "Not signed in", 403: "Not allowed", 404: "Not found", 405: "Method not allowed", 409: "Conflict",
    410: "Gone", 413: "Too large", 415: "Unsupported media type", 421: "Wrong host", 422: "Invalid", 429: "Too many requests",
    500: "Broken off", 503: "Not available",
}  # fmt: skip


class Problem(Exception):
    """A request that is refused.

    Args:
        status: of HTTP.
        code: what it is, for programs: the same word for the same cause, for ever.
        detail: one sentence that says what to do.
        headers: of the answer.
        more: fields that a program can act on.
    """

    def __init__(self, status: int, code: str, detail: str, *, headers: Mapping[str, str] | None = None, **more: Any) -> None:
        super().__init__(detail)
        self.status = status
        self.code = code
        self.detail = detail
        self.headers = dict(headers or {})
        self.more = more

    @property
    def response_title(self) -> str:
        """The refusal in two words."""
        return _TITLES.get(self.status, "Refused")

    def response(self) -> Response:
        """As it is sent."""
        body = {
            "type": f"urn:stepseven:problem:{self.code}", "title": self.response_title, "status": self.status,
            "code": self.code, "detail": self.detail, **self.more,
        }  # fmt: skip
        text = json.dumps(body, ensure_ascii=False, default=str)
        return Response(text, self.status, headers=self.headers, media_type=MEDIA_TYPE)


def not_found(what: str, id_: str) -> Problem:
    """There is none with this id, or none that this token may know of: the two look the same."""
    return Problem(404, "not_found", f"there is no {what} {free_text(id_, 200)}")


def invalid(detail: str, **more: Any) -> Problem:
    """What was sent is not of the form that is taken. Nothing was changed."""
    return Problem(422, "invalid", detail, **more)


#: The errors of the layer: status and code. Those that are not here have a field more, or are a fault of ours.
_KNOWN: tuple[tuple[type[Exception], int, str], ...] = (
    (errors.UnknownRun, 404, "not_found"),
    (errors.UnknownClient, 404, "not_found"),
    (errors.UnknownQuestion, 404, "not_found"),
    (errors.UnknownIncident, 404, "not_found"),
    (errors.RunConflict, 409, "conflict"),
    (errors.ClientBusy, 409, "conflict"),
    (errors.UnknownWorkflow, 409, "not_loaded"),
    (errors.AmbiguousWorkflow, 409, "not_loaded"),
    (errors.TooLarge, 413, "too_large"),
    (errors.InvalidAnswer, 422, "invalid"),
    (errors.InvalidChoice, 422, "invalid"),
    (errors.InvalidArgument, 422, "invalid"),
    (errors.NotRecordable, 422, "invalid"),
    (errors.SecretFound, 422, "secret_found"),
)


def problem_of(error: BaseException) -> Problem:
    """Whatever was raised, as what is sent. What is nobody's fault but ours is logged, and its words stay here."""
    if isinstance(error, Problem):
        return error
    if isinstance(error, RequestValidationError):
        return _misfit(error)
    if isinstance(error, HTTPException):
        return _http(error)
    if isinstance(error, errors.StepsevenError | errors.Superseded):
        return _said(error)
    if type(error) is ValueError:  # what a check of ours said in one sentence
        return invalid(free_text(str(error)))
    where = "".join(traceback.format_tb(error.__traceback__))
    _log.error("a request broke off: %s\n%s", free_text(f"{type(error).__name__}: {error}"), where)
    return Problem(500, "broken_off", "the request broke off; what is on record stands, and the server's log says where it broke")


def _said(error: errors.StepsevenError | errors.Superseded) -> Problem:
    """What the layer raised."""
    if isinstance(error, errors.AlreadyAnswered):
        return Problem(409, "answered", str(error), by=error.by, answer=errors.readable(error.answer), answered_at=error.at)
    if isinstance(error, errors.QuestionExpired):
        return Problem(410, error.status, str(error))
    if isinstance(error, errors.Superseded):
        return Problem(409, "superseded", f"{error}: nothing was changed")
    if isinstance(error, errors.StoreUnavailable | errors.SchemaMismatch):
        _log.error("the store cannot be used: %s", free_text(str(error)))
        return Problem(503, "unavailable", "the store cannot be used now: try again", headers={"Retry-After": "5"})
    known = ((status, code) for kind, status, code in _KNOWN if isinstance(error, kind))
    status, code = next(known, (409, "refused"))
    return Problem(status, code, free_text(str(error)))


def _misfit(error: RequestValidationError) -> Problem:
    """A body, a path or a query that does not fit. What was sent is not repeated: it may be a credential."""
    told = [{"at": ".".join(str(part) for part in each["loc"]), "why": str(each["msg"])} for each in error.errors()[:20]]
    first = told[0] if told else {"at": "body", "why": "it does not fit"}
    return invalid(free_text(f"{first['at']}: {first['why']}", 500), errors=told)


def _http(error: HTTPException) -> Problem:
    """What the framework refuses by itself: no such path, no such method."""
    codes = {404: "not_found", 405: "method_not_allowed", 413: "too_large", 415: "unsupported_media_type"}
    known = {404: "there is nothing at this path: /openapi.json lists what there is", 405: "this path does not take this method"}
    detail = known.get(error.status_code) or free_text(str(error.detail), 300)
    return Problem(error.status_code, codes.get(error.status_code, "refused"), detail, headers=error.headers)


async def handle(request: Request, error: Exception) -> Response:
    """What the application does with whatever is raised."""
    del request
    return problem_of(error).response()
