"""Values to text and back: canonical inputs, typed results, and forms of text that cannot fail.

What is accepted comes back equal and of equal type; everything else is refused at once with the path to it. The text
never holds a NUL or half a character, so that both databases take it.
"""

from __future__ import annotations

import binascii
import hashlib
import re
from collections.abc import Callable
from inspect import Parameter
from typing import TYPE_CHECKING, Any

from pydantic_core import ValidationError, from_json, to_json

from stepseven.errors import NotRecordable, SecretFound, TooLarge
from stepseven.store._plain import Refused, difference, dump_sorted, input_other, part, plain, result_other, same_plain, untag
from stepseven.store.redact import MASK, find_secret, mask

if TYPE_CHECKING:
    from stepseven.store._adapt import Adapter

DIGEST_VERSION = "1"
MAX_RESULT = 16 * 1024 * 1024  #: bytes of JSON text
MAX_FREE_TEXT = 4000  #: characters
_MAX_FALLBACK = 2000
_DIGEST = hashlib.blake2b(digest_size=16, key=b"stepseven/digest/" + DIGEST_VERSION.encode())
_URL_SAFE = bytes.maketrans(b"+/", b"-_")  # as in a URL; asked of ``base64`` it takes twice as long as the digest itself
_BUILT_IN = (dict, list, str, int)
_HALF = re.compile("[\ud800-\udfff]")


def digest(data: bytes | str) -> str:
    """The name of *data* by its content.

    Args:
        data: text (taken as UTF-8) or bytes.

    Returns:
        23 characters of ``[A-Za-z0-9_-]``: the version, then a keyed BLAKE2b of 16 bytes. Equal data, equal digest,
        on every machine and in every process.
    """
    state = _DIGEST.copy()
    state.update(data.encode("utf-8", "surrogatepass") if isinstance(data, str) else data)
    return DIGEST_VERSION + binascii.b2a_base64(state.digest(), newline=False).translate(_URL_SAFE)[:22].decode()


def canonical(value: Any, path: str = "value") -> str:
    """The one JSON text of an input: keys sorted, no spaces. Equal inputs, equal text; ``1``, ``1.0`` and ``True`` differ.

    Args:
        value: JSON types, tuples (as lists), sets, bytes, dates and durations, ``Decimal``, ``UUID``, paths, enums,
            dataclasses, pydantic models, ``Secret`` (by name).
        path: what to call *value* in an error, such as ``"inputs.tickets"``.

    Raises:
        NotRecordable: something in it has no such text; the error's ``path`` leads to it.
    """
    try:
        return dump_sorted(plain(value, input_other))
    except Refused as refused:
        raise refused.at(path) from refused


def from_canonical(text: str) -> Any:
    """The value of a canonical text: JSON types, with bytes, sets and ``Secret`` restored.

    Dates, enums, dataclasses and the like stay as JSON has them; ``Typed.validate_python`` makes them of it.
    """
    return untag(from_json(text))


class Typed:
    """Writes and reads the values of one return annotation. One per step, kept; the adapter is built at first use.

    Without an annotation (or with ``Any``) values are JSON types and bytes. With one: dataclasses, pydantic models, typed
    dicts, named tuples, enums, dates, ``Decimal``, bytes, ``UUID`` and containers and unions of them.
    """

    __slots__ = ("_adapter", "_built", "_open", "annotation", "where")

    def __init__(self, annotation: Any, *, where: str) -> None:
        """Keep the annotation.

        Args:
            annotation: a resolved type; ``inspect.Parameter.empty`` or an unresolved name counts as ``Any``.
            where: what to call the value in errors, such as ``"pull_tickets()"``.
        """
        self.annotation = annotation
        self.where = where
        self._built = annotation is Any or annotation is Parameter.empty
        self._open = self._built
        self._adapter: Adapter | None = None

    def encode(self, value: Any) -> str:
        """The JSON text of *value*. Raises as ``roundtrip`` does."""
        return self.roundtrip(value)[0]

    def roundtrip(self, value: Any) -> tuple[str, Any]:
        """Write *value* and read it back.

        Returns:
            The JSON text, and the value read from it: what the caller gets, the first time and every other.

        Raises:
            NotRecordable: it would not come back equal and of equal type; ``path`` leads to the part that would not.
            TooLarge: the text is over ``MAX_RESULT`` bytes.
        """
        if not self._built:
            self._build()
        if self._open:
            return self._plain_roundtrip(value)
        raw, again = self._typed_roundtrip(value)
        return raw.decode(), again

    def decode(self, text: str) -> Any:
        """The value of a stored text.

        Raises:
            NotRecordable: it cannot be rebuilt as the annotation says today; ``path`` names the field. The text is
                unharmed.
        """
        if not self._built:
            self._build()
        if self._open:
            return self._fits(self._parse(text))
        value = self._load(self._adapter.load, text)  # type: ignore[union-attr]  # only open types have none
        if not self._adapter.whole:  # type: ignore[union-attr]  # the same
            self._nothing_renamed(text, value)
        return value

    def validate_python(self, value: Any) -> Any:
        """The typed value of plain data that a person or another program gave.

        Args:
            value: what JSON has (dates and the like as text), or a value that has the type already.

        Raises:
            NotRecordable: it is not of the type; ``path`` and ``why`` say what is missing or wrong.
        """
        if not self._built:
            self._build()
        if self._open:
            return self._plain_roundtrip(value)[1]
        return self._load(self._adapter.load_given, self._dump(value))  # type: ignore[union-attr]  # only open types have none

    def json_schema(self) -> dict[str, Any] | None:
        """The JSON schema of the annotation; ``None`` when it says nothing, or has none."""
        if not self._built:
            self._build()
        if self._adapter is None:
            return None
        from pydantic.errors import PydanticInvalidForJsonSchema

        try:
            return self._adapter.schema()
        except PydanticInvalidForJsonSchema:
            return None

    def _build(self) -> None:
        from stepseven.store._adapt import adapter_for, is_open

        self._adapter = adapter_for(self.annotation, self.where)
        self._open = self._adapter is None or is_open(self.annotation)
        self._built = True

    def _plain_roundtrip(self, value: Any) -> tuple[str, Any]:
        """JSON types and bytes. The fast way is exact too: whatever it cannot prove equal goes the slow way."""
        try:
            raw = to_json(value)
            self._check_size(raw)
            again = from_json(raw, allow_inf_nan=False)
            if b"$" not in raw and same_plain(value, again):
                return raw.decode(), self._fits(again)
        except ValueError:  # what pydantic cannot write or read, and what marshal does not know
            pass
        try:
            raw = to_json(plain(value, result_other))
        except Refused as refused:
            raise refused.at(self.where) from refused
        self._check_size(raw)
        return raw.decode(), self._fits(untag(from_json(raw)))

    def _typed_roundtrip(self, value: Any) -> tuple[bytes, Any]:
        raw = self._dump(value)
        self._check_size(raw)
        again = self._load(self._adapter.load, raw, value)  # type: ignore[union-attr]  # only open types have none
        if b"NaN" in raw or b"Infinity" in raw:  # a model may be set to write these, which are not JSON
            self._load(_strict_json, raw, value)
        if type(value) in _BUILT_IN and same_plain(value, again):
            return raw, again
        found = difference(value, again)
        if found is not None:
            raise found.at(self.where)
        return raw, again

    def _dump(self, value: Any) -> bytes:
        try:
            return self._adapter.dump(value)  # type: ignore[union-attr]  # only open types have none
        except Exception as exc:
            canonical(value, self.where)  # says where, if it is what no input may hold either
            why = str(exc).split("\n", 1)[0].removeprefix("Error serializing to JSON: ")
            if "utf-8" in why:
                why = "bytes in a pydantic model need ser_json_bytes='base64' and val_json_bytes='base64' in its model_config"
            raise NotRecordable(self.where, why) from exc

    def _load(self, load: Callable[[str | bytes], Any], text: str | bytes, value: Any = None) -> Any:
        try:
            return load(text)
        except Exception as exc:
            if value is not None:
                canonical(value, self.where)  # the path to a NaN is better than that of what it was written as
            if not isinstance(exc, ValidationError):  # a validator of the author's
                raise NotRecordable(self.where, f"{type(exc).__name__} while it was rebuilt: {mask(str(exc))}") from exc
            first = exc.errors(include_url=False, include_input=False, include_context=False)[0]
            raise NotRecordable(self.where + "".join(map(part, first["loc"])), _sentence(mask(first["msg"]))) from exc

    def _fits(self, value: Any) -> Any:
        """*value*, if an open annotation such as ``list[Any]`` lets it be one."""
        if self._adapter is not None:
            self._load(self._adapter.check, value)
        return value

    def _parse(self, text: str) -> Any:
        try:
            value = from_json(text)
            return untag(value) if "$" in text else value
        except ValueError as exc:
            raise NotRecordable(self.where, f"the stored text cannot be read: {exc}") from exc

    def _check_size(self, raw: bytes) -> None:
        if len(raw) > MAX_RESULT:
            raise TooLarge(self.where, len(raw), MAX_RESULT)

    def _nothing_renamed(self, text: str, value: Any) -> None:
        """Refuse an object that lost a stored field while a new one took its default: a renamed field, emptied."""
        raw = self._dump(value)
        if raw != text.encode():
            path = _renamed(from_json(text), from_json(raw), self.where)
            if path is not None:
                raise NotRecordable(path, "the type has no such field any more, and a new field would take its place empty")


def _renamed(old: Any, new: Any, path: str) -> str | None:
    """The path of a key that *old* has and *new* has not, in an object that also has a key more."""
    pairs: list[tuple[str, Any, Any]] = []
    if isinstance(old, dict) and isinstance(new, dict):
        lost = old.keys() - new.keys()
        if lost and new.keys() - old.keys():
            return path + part(min(lost))
        pairs = [(path + part(key), old[key], new[key]) for key in old.keys() & new.keys()]
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        pairs = [(path + part(i), x, y) for i, (x, y) in enumerate(zip(old, new, strict=True))]
    return next(filter(None, (_renamed(x, y, p) for p, x, y in pairs)), None)


def _strict_json(text: str | bytes) -> Any:
    return from_json(text, allow_inf_nan=False)


def _sentence(message: str) -> str:
    return message[:1].lower() + message[1:]


# -- credentials, and text that cannot fail ----------------------------------------------------------------------------


def guard(text: str, path: str, *, secrets: str) -> str:
    """Let *text* pass to the store only without credentials.

    Args:
        text: JSON text about to be stored.
        path: what to call it in an error.
        secrets: ``"refuse"`` or ``"mask"``.

    Returns:
        *text*, or with ``"mask"`` valid JSON with ``MASK`` in place of each credential.

    Raises:
        SecretFound: ``"refuse"`` and there is one; ``path`` leads to it.
    """
    what = find_secret(text)
    if what is None:
        return text
    value = from_json(text)
    if secrets == "mask":
        return _masked(value)
    raise SecretFound(path + mask(_path_of_secret(value) or ""), what)


def _path_of_secret(value: Any) -> str | None:
    """The path to the first text that holds a credential, alone or with its key; ``None`` when none does."""
    if isinstance(value, str):
        return "" if find_secret(value) else None
    pairs: Any = ()
    if isinstance(value, dict):
        pairs = value.items()
    elif isinstance(value, list):
        pairs = enumerate(value)
    for key, item in pairs:
        if isinstance(key, str) and find_secret(to_json({key: item}).decode() if isinstance(item, str) else key):
            return part(key)
        below = _path_of_secret(item)
        if below is not None:
            return part(key) + below
    return None


def _masked(value: Any) -> str:
    text = to_json(_mask_texts(value)).decode()
    if find_secret(text) is None:
        return text
    text = mask(text)  # what only a key together with its value shows, such as {"Authorization": "Bearer …"}
    try:
        from_json(text)
    except ValueError:
        return to_json(MASK).decode()
    return text


def _mask_texts(value: Any) -> Any:
    if isinstance(value, str):
        return mask(value)
    if isinstance(value, list):
        return [_mask_texts(item) for item in value]
    if isinstance(value, dict):
        return {mask(key): _mask_texts(item) for key, item in value.items()}
    return value


def free_text(text: str, limit: int = MAX_FREE_TEXT) -> str:
    r"""Text of errors, questions and notes as it may be stored. Cannot fail.

    Args:
        text: anything that was said.
        limit: characters to keep, with the ``…`` that marks a cut.

    Returns:
        The text with credentials masked, NUL shown as ``\0``, halves of characters as ``�``.
    """
    shown = str(text)
    shown = mask(shown[: limit + 20_000])  # before the cut, which could leave half a credential unrecognised
    shown = _HALF.sub("\ufffd", shown).replace("\0", "\\0")
    return shown if len(shown) <= limit else shown[: max(0, limit - 1)] + "…"


def storable(*texts: object) -> bool:
    """Whether all of them are texts that a row may hold as they are. What is not can be looked for nowhere: none is found."""
    return all(text is None or (isinstance(text, str) and "\0" not in text and not _HALF.search(text)) for text in texts)


def fallback(value: Any) -> str:
    """JSON text that says what *value* was, when it cannot be stored itself. Cannot fail.

    Returns:
        A JSON string: the type's name and the masked ``repr``, at most 2,000 characters.
    """
    return to_json(free_text(f"{type(value).__name__}: {_repr(value)}", _MAX_FALLBACK)).decode()


def _repr(value: Any) -> str:
    try:
        return repr(value)
    except Exception as exc:  # noqa: BLE001 - a repr is the user's code, and this may not fail
        return f"(its repr raised {type(exc).__name__})"
