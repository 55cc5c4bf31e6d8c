"""Credentials in text: finding them before a write, and masking them.

A clean kilobyte of prose costs about two microseconds: nearly every credential has a run of twenty characters out of
``[A-Za-z0-9_-]``, so one pass of ``bytes.translate`` decides whether anything else is looked at (the exceptions have
their own substring). Then come plain substrings, then one pattern for the prefixes of providers at the start of a word; only
where it finds one do the full patterns look. They also hold on JSON text, where a line break before a credential is a
backslash and a letter.
"""

from __future__ import annotations

import re

MASK = "•••"

_RUN = b"a" * 20
_TO_RUN = bytes(ord("a") if chr(c).isalnum() or chr(c) in "_-" else ord(" ") for c in range(128)) + b" " * 128

# A prefix that is not even in the text as a substring needs no pattern: by the character that all of a group share.
_BY_MARK = (
    ("_", ("k_live_", "k_test_", "whsec_", "hp_", "ho_", "hu_", "hs_", "hr_", "github_pat_", "npm_", "sbp_", "hf_")),
    ("7", ("s7_", "s7s_", "s7t_", "s7x_")),
    ("-", ("sk-", "glpat-", "xox", "xapp-", "GOCSPX-", "pypi-")),
    (".", ("ya29.", "SG.", "pat")),
    ("", ("AKIA", "ASIA", "AIza", "eyJ")),
)
_WORDS = ("PRIVATE KEY", "earer", "EARER", "ccess", "CCESS", "wilio")
# The same prefixes where they count: at the start of a word. Beginning with a character class, it scans fast.
_PREFIX = re.compile(
    r"[^A-Za-z0-9_-](?:[bfnrt]|u[0-9a-fA-F]{4})?(?:sk-|[sr]k_(?:live|test)_|whsec_|gh[pousr]_|github_pat_|glpat-|xox[a-z]-|xapp-"
    r"|A(?:KIA|SIA|Iza)|ya29\.|GOCSPX-|SG\.|npm_|pypi-|sbp_|pat[A-Za-z0-9]{14}\.|hf_|eyJ"
    r"|s7[stx]?_)"
)
_WORD = re.compile(r"PRIVATE KEY|[bB](?:earer|EARER)\s|[aA](?:ccess_?[kK]ey|CCESS_?KEY)|[tT]wilio")

# Where a credential may start: not in the middle of a word or of URL-safe base64 (where chance makes ``sk-``), but right
# after an escape of JSON text.
_START = r"(?:(?<![A-Za-z0-9_-])|(?<=\\[bfnrt])|(?<=\\u[0-9a-fA-F]{4}))"
_QUOTES = r"[\"'\s:=\\,]{1,8}"
_HEADER = rf"[aA](?i:uthorization){_QUOTES}"

# (what it is, pattern). The group ``secret`` is what must not be kept; without it the whole match.
_PATTERNS: tuple[tuple[str, re.Pattern[str]], ...] = tuple(
    (what, re.compile(pattern))
    for what, pattern in (
        ("an Anthropic key", rf"{_START}sk-ant-[A-Za-z0-9_-]{{20,}}"),
        ("an OpenAI key", rf"{_START}sk-(?:proj|svcacct|admin|None)-[A-Za-z0-9_-]{{20,}}"),
        ("an OpenAI key", rf"{_START}sk-(?:or-v1-|test-|live-)?(?=[A-Za-z]*[0-9])[A-Za-z0-9]{{20,}}"),
        ("a Stripe key", rf"{_START}[sr]k_(?:live|test)_[A-Za-z0-9]{{16,}}"),
        ("a webhook secret", rf"{_START}whsec_[A-Za-z0-9+/]{{20,}}={{0,2}}"),
        ("a GitHub token", rf"{_START}(?:gh[pousr]_[A-Za-z0-9]{{30,}}|github_pat_[A-Za-z0-9_]{{22,}})"),
        ("a GitLab token", rf"{_START}glpat-[A-Za-z0-9_-]{{20,}}"),
        ("a Slack token", rf"{_START}(?:xox[a-z]|xapp)-(?=[A-Za-z-]*[0-9])[A-Za-z0-9-]{{16,}}"),
        ("an AWS access key", rf"{_START}(?:AKIA|ASIA)[A-Z0-9]{{16}}(?![A-Za-z0-9])"),
        ("an AWS secret key", rf"(?i:secret_?access_?key){_QUOTES}(?P<secret>[A-Za-z0-9/+]{{40}})(?![A-Za-z0-9/+])"),
        ("a Google key", rf"{_START}(?:AIza[A-Za-z0-9_-]{{35}}|ya29\.[A-Za-z0-9_-]{{20,}}|GOCSPX-[A-Za-z0-9_-]{{20,}})"),
        ("a SendGrid key", rf"{_START}SG\.[A-Za-z0-9_-]{{16,}}\.[A-Za-z0-9_-]{{16,}}"),
        ("a Twilio key", rf"[tT]wilio[^\n]{{0,80}}?{_START}(?P<secret>SK[0-9a-f]{{32}})(?![A-Za-z0-9])"),
        ("an npm token", rf"{_START}npm_[A-Za-z0-9]{{36,}}"),
        ("a PyPI token", rf"{_START}pypi-AgE[A-Za-z0-9_-]{{16,}}"),
        ("a Supabase token", rf"{_START}sbp_[0-9a-f]{{40}}"),
        ("an Airtable token", rf"{_START}pat[A-Za-z0-9]{{14}}\.[0-9a-f]{{64}}"),
        ("a Hugging Face token", rf"{_START}hf_[A-Za-z0-9]{{30,}}"),
        ("a stepseven token", rf"{_START}s7[stx]?_[0-9a-f]{{12}}[A-Za-z0-9_-]{{43}}"),
        ("a signed token (JWT)", rf"{_START}eyJ[A-Za-z0-9_-]{{10,}}\.eyJ[A-Za-z0-9_-]{{10,}}\.[A-Za-z0-9_-]{{10,}}"),
        (
            "a private key",
            r"-----BEGIN (?:[A-Z0-9]+ )*PRIVATE KEY(?: BLOCK)?-----(?:(?!-----)[^\"]){16,}(?:-----END [A-Z0-9 ]+-----)?",
        ),
        ("a bearer token", rf"{_HEADER}(?i:bearer|token)\s+(?P<secret>[A-Za-z0-9._~+/=-]{{8,}})"),
        ("a bearer token", r"(?i:\bbearer)\s+(?=[A-Za-z._~+/=-]*[0-9])(?P<secret>[A-Za-z0-9._~+/=-]{20,})"),
        ("a password in a header", rf"{_HEADER}(?i:basic)\s+(?P<secret>[A-Za-z0-9+/]{{6,}}={{0,2}})"),
    )
)
# Passwords that documentation shows, and those already masked, are not credentials.
_URL = re.compile(
    r"://[^\s/\"'@:<>]*:(?!(?i:password|passwd|pass|pwd|secret|x+|\*+|\.+)@)(?P<secret>[^\s/\"'@<>{}$•]{3,})@",
)


def find_secret(text: str) -> str | None:
    """What kind of credential *text* holds.

    Args:
        text: free text, or JSON text as it is about to be stored.

    Returns:
        A phrase such as ``"an OpenAI key"`` for the first kind found, or ``None``.
    """
    if "@" in text and _URL.search(text):
        return "a password in a URL"
    if not _suspicious(text):
        return None
    return next((what for what, pattern in _PATTERNS if pattern.search(text)), None)


def mask(text: str) -> str:
    """*text* with ``MASK`` in place of every credential. Masking twice changes nothing more."""
    if "@" in text:
        text = _URL.sub(_masked, text)
    if _suspicious(text):
        for _, pattern in _PATTERNS:
            text = pattern.sub(_masked, text)
    return text


def _suspicious(text: str) -> bool:
    """Whether the full patterns have to look at *text*."""
    if len(text) < len(_RUN):
        return "uthorization" in text
    if "uthorization" in text:
        return True
    if _RUN not in text.encode("utf-8", "surrogatepass").translate(_TO_RUN):
        return False
    if any(word in text for word in _WORDS) and _WORD.search(text):
        return True
    for mark, prefixes in _BY_MARK:
        if mark in text and any(prefix in text for prefix in prefixes):
            return _PREFIX.search(" " + text) is not None
    return False


def _masked(match: re.Match[str]) -> str:
    """The match with its secret part replaced."""
    if "secret" not in match.re.groupindex:
        return MASK
    start, end = match.span("secret")
    return match.string[match.start() : start] + MASK + match.string[end : match.end()]
