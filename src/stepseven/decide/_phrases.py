"""Words for people: step names, reasons, money, times and counts as an operator reads them. Pure.

Everything that reaches a sentence passes ``one_line`` or ``clip`` first: reasons and arguments come from outside, and may
hold newlines, terminal escapes or a whole traceback.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

MAX_WORDS = 120
_UNDO = "undo."  # before the name of a step: the step that takes its effect back

_IRREGULAR = {
    "begin": ("began", "begun"), "build": ("built", "built"), "buy": ("bought", "bought"), "cancel": ("cancelled", "cancelled"),
    "choose": ("chose", "chosen"), "do": ("did", "done"), "draw": ("drew", "drawn"), "embed": ("embedded", "embedded"),
    "find": ("found", "found"), "forecast": ("forecast", "forecast"), "format": ("formatted", "formatted"),
    "get": ("got", "fetched"), "give": ("gave", "given"), "hold": ("held", "held"), "label": ("labelled", "labelled"),
    "make": ("made", "made"), "map": ("mapped", "mapped"), "pay": ("paid", "paid"), "plan": ("planned", "planned"),
    "put": ("put", "put"), "read": ("read", "read"), "run": ("ran", "run"),
    "scan": ("scanned", "scanned"), "sell": ("sold", "sold"), "send": ("sent", "sent"),
    "set": ("set", "set"), "split": ("split", "split"), "submit": ("submitted", "submitted"),
    "sum": ("summed", "summed"), "take": ("took", "taken"),
    "tag": ("tagged", "tagged"), "transfer": ("transferred", "transferred"), "undo": ("undid", "undone"),
    "write": ("wrote", "written"),
}  # fmt: skip
_VERBS = (
    "add analyse analyze apply approve archive ask assess assign attach book calculate call change charge check classify "
    "clean close collect compare compile compose compute convert copy create deduct delete deliver deploy describe download "
    "draft email embed enrich estimate evaluate export extract fetch file fill filter finish forecast format generate "
    "import insert inspect issue list load mail mark match measure merge message move notify open parse place post "
    "predict prepare price print process produce publish pull purchase push query rank record refund register release "
    "remind remove rename render reply report request reserve resolve retrieve review save scan schedule score scrape "
    "search sign sort start stage store subscribe sum summarise summarize sync test transcribe transfer transform translate "
    "trigger update upload upsert validate verify"
)
_REGULAR = frozenset(_VERBS.split())
_SMALL = "a and as at by for from in into of off on or out over the to up with"
_LINKS = frozenset(_SMALL.split())
_SPELLED = "api bic crm csv erp html iban id json kpi pdf sku sms sql uid uri url vat vies xml zip"
_ACRONYMS = frozenset(_SPELLED.split())
_CLASSES = {
    "ConnectError": "it could not be reached", "ConnectionError": "the connection failed",
    "ConnectionRefusedError": "it could not be reached", "ConnectionResetError": "the connection broke off",
    "ConnectTimeout": "it could not be reached in time", "FileNotFoundError": "a file is missing",
    "JSONDecodeError": "its answer could not be read", "KeyError": "a field is missing",
    "MemoryError": "there was not enough memory", "PermissionError": "access was refused",
    "ReadError": "the connection broke off", "ReadTimeout": "no answer in time",
    "RemoteProtocolError": "the connection broke off", "Timeout": "no answer in time", "TimeoutError": "no answer in time",
    "ValidationError": "the data has another shape than expected",
}  # fmt: skip
_STRICT = r"(?:[A-Za-z_]\w*\.)*(?:[A-Z]\w*(?:Error|Exception|Timeout|Warning|Interrupt|Refused|Failed|Exit)|Timeout)"
_LOOSE = rf"{_STRICT}|(?:[a-z_]\w*\.)*[A-Z][a-z]+[A-Z]\w*"  # RateLimitExceeded, but also GitHub: only where it stands alone
# These three take longer to compile than all else here to load, and only failures are told by them: ``re`` does it then, once.
_TRACE_LINE = rf"^(?:{_LOOSE})(?::.*)?$"
_BARE = rf"^({_LOOSE})(?:\(\))?[.:]?$"
_PREFIXED = rf"^({_STRICT}): (.+)$"
_QUOTED = re.compile(r"""^(['"])([^'"]+)\1$""")
_PASSING = re.compile(
    r"\b(?:408|425|429|5\d\d)\b|time[d-]?[ -]?out|no answer in time|reset|broke off|unavailable|overload|rate limit|reached",
    re.IGNORECASE,
)
_ESCAPE = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|.)?")


def one_line(text: object) -> str:
    """*text* on one line: escapes and what does not print are gone, runs of spaces are one."""
    bare = _ESCAPE.sub("", str(text))
    return " ".join("".join(c if c.isprintable() else " " for c in bare).split())


def clip(text: object, *, words: int = 16, chars: int = 100) -> str:
    """*text* on one line, at most so many words and characters; a cut shows as ``…``."""
    line = one_line(text)
    parts = line.split(" ")
    short = " ".join(parts[:words])[:chars].rstrip()
    return short if short == line else short.rstrip(",;:.") + "…"


def count_words(text: str) -> int:
    """How many words a reader meets in *text*."""
    return len(text.split())


def compose(*lines: Sequence[str]) -> str:
    """Join sentences to lines. Over ``MAX_WORDS`` the last sentences go first: the caller orders by importance."""
    kept = [[one_line(s) for s in line if one_line(s)] for line in lines]
    while sum(count_words(s) for line in kept for s in line) > MAX_WORDS and sum(map(len, kept)) > 1:
        next(line for line in reversed(kept) if line).pop()
    whole = [" ".join(line) for line in kept if line]
    if len(whole) == 1:
        return clip(whole[0], words=MAX_WORDS, chars=2_000)
    return "\n".join(whole)


def sentence(text: str) -> str:
    """*text* with a full stop (or what it ends with) at its end, and a capital unless it begins with somebody's name."""
    line = one_line(text)
    if not line:
        return ""
    word = line.split(" ", 1)[0].rstrip(",.:;")
    start = line[0].upper() if word.isalpha() else line[0]  # `billing-api` and `invoice-037.xml` stay as they are called
    return start + line[1:] + ("" if line[-1] in ".?!…" else ".")


def listing(items: Sequence[str], *, most: int = 3, more: str = "more") -> str:
    """``a, b and c``; a long list folds to ``a, b, c and 4 more``."""
    shown = list(items[:most])
    if len(items) > most:
        shown.append(f"{len(items) - most} {more}")
    return shown[0] if len(shown) == 1 else ", ".join(shown[:-1]) + f" and {shown[-1]}" if shown else ""


def in_order(items: Sequence[str], *, most: int = 3) -> str:
    """``a, then b``: things that come one after the other; a long list folds."""
    return ", then ".join([*items[:most], *([f"{len(items) - most} more"] if len(items) > most else [])])


# -- names ------------------------------------------------------------------------------------------------------------


def humanise(name: str) -> str:
    """``pull_tickets``, ``jobs.pullTickets`` → ``pull tickets``; a name that is words already stays as it is."""
    line = one_line(name)
    if re.fullmatch(r"[\w.\-]+", line):
        last = line.strip(".").removeprefix(_UNDO).rsplit(".", 1)[-1]
        last = f"undo_{last}" if line.startswith(_UNDO) else last
        spaced = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", " ", last)
        words = [w for w in re.split(r"[\s_\-]+", spaced) if w]
        line = " ".join(w.upper() if w.lower() in _ACRONYMS or w.isupper() else w.lower() for w in words)
    return clip(line, words=8, chars=60) or "this step"


def coming(name: str) -> str:
    """A step that comes, as it is told; ``unknown``: the source does not show what is called there."""
    return "something the code does not show" if name == "unknown" else humanise(name)


def who(client: str) -> str:
    """The client as a name: a plain lower-case id gets its capital, any other stays as it was given."""
    line = clip(client, words=5, chars=40) or "this client"
    return line.capitalize() if re.fullmatch(r"[a-z]+", line) else line


def possessive(name: str) -> str:
    """``Acme's``, ``Jones'``."""
    return name + ("'" if name.endswith(("s", "S")) else "'s")


def _verb(step: str) -> tuple[str, str, str, str] | None:
    """``(verb, past, participle, rest)`` of a step name that starts with a verb we know."""
    first, _, rest = humanise(step).partition(" ")
    word = first.lower()
    if word in _IRREGULAR:
        return (word, *_IRREGULAR[word], rest)
    if word not in _REGULAR:
        return None
    past = word + "d" if word.endswith("e") else word[:-1] + "ied" if re.search(r"[^aeiou]y$", word) else word + "ed"
    return word, past, past, rest


def to_do(step: str) -> str:
    """After "I could not": ``pull billing``; without a verb ``finish “billing”``."""
    known = _verb(step)
    return f"{known[0]} {known[3]}".rstrip() if known else f"finish “{humanise(step)}”"


def participle(step: str) -> str:
    """After "nothing was": ``posted`` for ``post_invoice``; ``changed`` where the name tells no verb."""
    known = _verb(step)
    return known[2] if known else "changed"


def plural(noun: str) -> str:
    """The plural of the last word of *noun*, by the simple English rules."""
    if noun.endswith("s") and not noun.endswith("ss"):
        return noun
    if re.search(r"[^aeiou]y$", noun):
        return noun[:-1] + "ies"
    return noun + ("es" if re.search(r"(ss|x|z|ch|sh)$", noun) else "s")


def counted(step: str, count: int, of: int | None) -> str:
    """``posted 36 of 50 invoices``: how often a repeated step was done."""
    figure = f"{count} of {of}" if of is not None else str(count)
    known = _verb(step)
    if known and known[3] and not _LINKS & set(known[3].split()):
        return f"{known[1]} {figure} {plural(known[3])}"
    often = f"{figure} times" if of is not None else times(count)
    return f"{known[1]} {known[3]}".rstrip() + f" {often}" if known else f"finished “{humanise(step)}” {often}"


def did(step: str, summary: str | None, count: int = 1, of: int | None = None) -> str:
    """After "I": ``pulled 214 tickets``, ``checked invoice (3 errors)``, ``posted 36 of 50 invoices (latest: R-36)``."""
    known, short = _verb(step), clip(summary, words=8, chars=60) if summary else ""
    if count != 1 or of is not None:
        return counted(step, count, of) + (f" (latest: {short})" if short else "")
    what = f"{known[1]} {known[3]}".rstrip() if known else f"finished “{humanise(step)}”"
    if not short:
        return what
    # "pulled tickets (214 tickets)" says it twice; only where the summary names the object itself is it taken as the object
    if known and known[3] and re.match(r"(\d|no )", short) and known[3].lower() in short.lower():
        return f"{known[1]} {short}"
    return f"{what} ({short})"


# -- reasons ----------------------------------------------------------------------------------------------------------


def reason_of(text: object, *, words: int = 16, chars: int = 110) -> str:
    """A failure's reason as words: of a traceback the last line, without class names where anything else is known."""
    lines = [one_line(part) for part in str(text).splitlines() if one_line(part)]
    if lines and lines[0].startswith("Traceback "):
        lines = [x for x in lines if re.match(_TRACE_LINE, x)][-1:] or lines[-1:]
    line = lines[0] if lines else ""
    if prefixed := re.match(_PREFIXED, line):
        name, line = prefixed[1].rsplit(".", 1)[-1], prefixed[2]
        if quoted := _QUOTED.match(line):
            line = f"the field {quoted[2]!r} is missing" if name == "KeyError" else quoted[2]
    if bare := re.match(_BARE, line):
        name = bare[1].rsplit(".", 1)[-1]
        line = _CLASSES.get(name, f"it broke off and gave no reason ({name})")
    return clip(line, words=words, chars=chars).rstrip(".") or "no reason was given"


def from_resource(reason: str, resource: str | None) -> str:
    """``billing-api answered 403 Forbidden``: the reason with the system it came from, unless it names it."""
    name = clip(resource, words=4, chars=60) if resource else ""
    if not name or name.lower() in reason.lower():
        return reason
    return f"{name} answered {reason}" if re.match(r"[1-5]\d\d\b", reason) else f"{name}: {reason}"


def passing(reason: str) -> bool:
    """Whether a reason reads like one that goes away by itself: an overload, a time-out, a broken connection."""
    return bool(_PASSING.search(reason))


# -- figures ----------------------------------------------------------------------------------------------------------


def times(n: int) -> str:
    """``once``, ``twice``, ``5 times``."""
    return {1: "once", 2: "twice"}.get(n, f"{n} times")


def number(value: object) -> float | None:
    """*value* as a finite float; ``None`` for everything that is not a number."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if math.isfinite(value) else None


def money(usd: float) -> str:
    """US dollars: ``$0.41``, ``$1,250.00``; below a cent two digits that say something: ``$0.0042``."""
    sign = "-" if usd < 0 else ""
    size = abs(usd)
    if 0 < size < 0.01:  # noqa: PLR2004 - a cent
        digits = min(8, 1 - math.floor(math.log10(size)))
        return f"{sign}${size:.{digits}f}"
    return f"{sign}${size:,.2f}"


def duration(seconds: float) -> str:
    """A length of time in one unit: ``38 s``, ``4 min``, ``5 h``, ``3 days``. Never negative."""
    left = max(0.0, seconds)
    for unit, size, upto in (("s", 1, 100), ("min", 60, 100), ("h", 3600, 48)):
        if round(left / size) < upto:
            return f"{round(left / size)} {unit}"
    return f"{round(left / 86_400)} days"


def used_of(what: str, used: float, ceiling: float) -> str:
    """How much of a limit is used: ``$1.98 of $2.00``, ``20,412 of 20,000 tokens``, ``29 min of 30 min``."""
    whole = quantity(what, ceiling)
    return f"{quantity(what, used) if 'usd' in what or what == 'seconds' else f'{used:,.0f}'} of {whole}"


def quantity(what: str, amount: float) -> str:
    """An amount of a limit with its unit: ``$2.00``, ``50 steps``, ``18,200 tokens``, ``30 min``."""
    if "usd" in what:
        return money(amount)
    if what == "seconds":
        return duration(amount)
    return f"{amount:,.0f} {what if amount != 1 else what.removesuffix('s')}"


def shown(value: object) -> str:
    """A value from the record in a few words, exact where it is short: no rounding, no separators."""
    if value is None or isinstance(value, bool):
        return {None: "none", True: "yes", False: "no"}[value]
    if isinstance(value, float) and value.is_integer() and abs(value) < 1e15:  # noqa: PLR2004 - beyond, digits are invented
        return str(int(value))
    if isinstance(value, Mapping):
        return clip(", ".join(f"{k} {shown(v)}" for k, v in list(value.items())[:4]), words=12, chars=80) or "nothing"
    if isinstance(value, list | tuple):
        return clip(f"{len(value)} items: " + ", ".join(shown(v) for v in value[:3]), words=10, chars=60) if value else "nothing"
    return clip(value, words=10, chars=60) or "empty"


def leaves(value: object, path: str = "") -> Iterator[tuple[str, Any]]:
    """Each value inside nested mappings with its dotted path; a list is one value."""
    if isinstance(value, Mapping) and value:
        for key, inner in value.items():
            yield from leaves(inner, f"{path}.{key}" if path else str(key))
    else:
        yield path or "value", value


def plain(value: object, depth: int = 8) -> Any:
    """*value* as JSON can hold it; what JSON has no form for becomes text."""
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, int | float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, Mapping) and depth:
        return {str(k): plain(v, depth - 1) for k, v in value.items()}
    if isinstance(value, list | tuple | set | frozenset) and depth:
        return [plain(v, depth - 1) for v in value]
    return str(value)
