"""References: what may be one, where a look may go, what is shown of it, and what counts as another thing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from stepseven import Reference
from stepseven.decide import elsewhere
from stepseven.decide.elsewhere import Kept, allowed, changed, kept_in, scheme_of, shown
from stepseven.store.codec import Typed

HASH = "sha256:" + "a" * 64


@pytest.mark.parametrize(
    "url,scheme",
    [
        ("invoices/7.pdf", "file"),
        ("/a/b", "file"),
        ("a:b.pdf", "file"),
        ("file:///a/b", "file"),
        ("file:b", "file"),
        ("s3://bucket/key?x", "s3"),
        ("HTTPS://h/x", "https"),
        ("http://127.0.0.1:8/x", "http"),
    ],
)
def test_a_path_and_four_kinds_of_urls_are_understood(url: str, scheme: str) -> None:
    """A path, file:, s3://, https:// and http:// can be a reference."""
    assert scheme_of(Kept(url).url) == scheme


@pytest.mark.parametrize(
    "url",
    [
        "",
        "ftp://h/x",
        "gopher://h",
        "https://ann:hunter22@h/x",
        "https://ann@h/x",
        "s3://key:hunter22@bucket/x",
        "https:///x",
        "https://[::1/x",
        "https://h:port/x",
        "file://other.example/x",
        "https://h/a\nb",
        "a\0b",
    ],
)
def test_what_is_no_reference_is_refused_in_a_sentence_without_its_secrets(url: str) -> None:
    """Other schemes, a name or password in the URL, no host, another machine's files, control characters: refused at once."""
    with pytest.raises(ValueError, match=r"reference|file: URL") as refused:
        Reference(url)
    assert "hunter22" not in str(refused.value)


def test_a_hash_is_named_by_its_kind() -> None:
    """A hash without sha256: in front is refused: nobody could compare it."""
    with pytest.raises(ValueError, match="say 'sha256:'"):
        Reference("x", hash="abc")


# -- where a look may go ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "entry,url",
    [
        ("files.example.com", "https://files.example.com/a/b"),
        ("Files.Example.com", "https://files.EXAMPLE.com/a"),
        ("files.example.com", "https://files.example.com:443/a"),
        ("files.example.com:8443", "https://files.example.com:8443/a"),
        ("https://files.example.com/invoices", "https://files.example.com/invoices/7.pdf"),
        ("https://files.example.com/invoices/", "https://files.example.com/invoices/7.pdf?sig=x"),
        ("https://files.example.com/a", "https://files.example.com/a"),
        ("http://127.0.0.1:8000", "http://127.0.0.1:8000/x"),
        ("s3://bucket", "s3://bucket/a/b"),
        ("s3://bucket/2026", "s3://bucket/2026/b"),
        ("nothing", "/etc/hosts"),
    ],
)
def test_what_the_list_names_is_allowed(entry: str, url: str) -> None:
    """A host by https, or the beginning of a URL; files of this machine need no list."""
    assert allowed(url, ["other.example", entry])


@pytest.mark.parametrize(
    "entry,url",
    [
        ("files.example.com", "http://files.example.com/a"),
        ("files.example.com", "https://files.example.com:8443/a"),
        ("files.example.com", "https://files.example.com.evil.example/a"),
        ("example.com", "https://files.example.com/a"),
        ("files.example.com", "s3://files.example.com/a"),
        ("https://files.example.com/invoices", "https://files.example.com/invoices2/7.pdf"),
        ("https://files.example.com/invoices", "https://files.example.com/invoices/../secret"),
        ("https://files.example.com/invoices", "https://files.example.com/invoices/%2e%2e/secret"),
        ("https://files.example.com/invoices", "https://files.example.com/invoices/..%5csecret"),
        ("127.0.0.1:8000", "http://127.0.0.1:8000/x"),
        ("s3://bucket/2026", "s3://bucket/2027/x"),
        ("s3://bucket", "s3://bucket2/x"),
        ("s3://", "s3://bucket/x"),
        ("https://", "https://h/x"),
        ("https://ann@h", "https://h/x"),
        ("h:port", "https://h/x"),
        ("[h", "https://h/x"),
        ("", "https://h/x"),
        ("*", "https://h/x"),
    ],
)
def test_what_the_list_does_not_name_is_not_allowed(entry: str, url: str) -> None:
    """Another scheme, port, host, folder, a way out of the folder, or an entry that says nothing: no."""
    assert not allowed(url, [entry])


# -- in what is stored ----------------------------------------------------------------------------------------------------


def test_references_are_found_anywhere_in_a_result_by_their_shape() -> None:
    """In lists, in objects, with more fields than ours, each once and in order; without the code's types."""
    told = {"url": "a", "hash": HASH, "size": 3, "etag": None, "modified": None}
    value = {"x": [1, {"deep": told}], "y": {**told, "url": "https://h/b", "note": "mine"}, "z": told}
    assert [k.url for k in kept_in(json.dumps(value))] == ["a", "https://h/b"]


@pytest.mark.parametrize(
    "other",
    [
        {"url": "a", "hash": "md5", "size": 3, "etag": None, "modified": None},
        {"url": 7, "hash": None, "size": 3, "etag": None, "modified": None},
        {"url": "a", "hash": None, "size": True, "etag": None, "modified": None},
        {"url": "a", "hash": None, "size": "3", "etag": None, "modified": None},
        {"url": "ftp://h", "hash": None, "size": 3, "etag": None, "modified": None},
        {"url": "a", "hash": None, "size": 3, "etag": None},
        ["url", "hash", "etag", "modified"],
    ],
)
def test_somebody_else_s_object_is_none(other: Any) -> None:
    """An object that lacks a field, or holds something else in one, is not looked at."""
    assert kept_in(json.dumps(other)) == ()


@pytest.mark.parametrize(
    "annotation,value",
    [
        (Reference, Reference("a", HASH, 3)),
        (list[Reference], [Reference("https://h/a", etag='"x"'), Reference("s3://b/k", modified="2026-01-05")]),
        (dict[str, Reference | None], {"pdf": Reference("a"), "none": None}),
    ],
)
def test_a_reference_is_recorded_comes_back_equal_and_is_found(annotation: Any, value: Any) -> None:
    """Alone or in containers it round-trips as a step's result, and its stored text is recognised."""
    text, again = Typed(annotation, where="step()").roundtrip(value)
    assert again == value
    assert len(kept_in(text)) == text.count('"url"')


# -- for people, and compared -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "url,text",
    [
        ("https://h:8/a/b.pdf?X-Amz-Signature=abc#d", "https://h:8/a/b.pdf"),
        ("file:///a/b%20c", "/a/b c"),
        ("s3://bucket/a?b", "s3://bucket/a?b"),
    ],
)
def test_what_stands_behind_the_question_mark_is_never_shown(url: str, text: str) -> None:
    """Signatures and tokens stand there."""
    assert shown(url) == text


def test_a_long_url_is_shown_by_its_end() -> None:
    """The end names the file."""
    assert len(shown("/" + "x" * 500 + "/7.pdf")) == 90
    assert shown("/" + "x" * 500 + "/7.pdf").endswith("/7.pdf")


@pytest.mark.parametrize(
    "kept,now,other",
    [
        ({"hash": HASH}, {"hash": HASH, "etag": "b"}, False),
        ({"hash": HASH, "etag": "a"}, {"hash": HASH, "etag": "b"}, False),
        ({"hash": HASH}, {"hash": "sha256:" + "b" * 64}, True),
        ({"etag": '"a"'}, {"etag": 'W/"a"'}, False),
        ({"etag": '"a"'}, {"etag": '"b"'}, True),
        ({"etag": '"a"', "modified": "x"}, {"etag": '"a"', "modified": "y"}, False),
        ({"etag": '"a"', "size": 3}, {"size": 4}, True),
        ({"size": 3, "modified": "x"}, {"size": 3, "modified": "y"}, True),
        ({"size": 3}, {"size": 3, "etag": "new"}, False),
        ({}, {"size": 3, "etag": "new"}, False),
    ],
)
def test_the_surest_of_what_both_tell_decides(kept: dict[str, Any], now: dict[str, Any], other: bool) -> None:
    """The hash first, then size, etag, time; what only one side tells says nothing."""
    assert changed(Kept("x", **kept), Kept("x", **now)) is other


# -- made of what is there ------------------------------------------------------------------------------------------------------


def test_of_a_file_its_hash_size_and_absolute_path_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """So that it is found from another folder too; not its times, which differ when the same is made again."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a b.txt").write_text("hello")
    made = Reference.of("a b.txt")
    assert made == Reference.of(tmp_path / "a b.txt") == Reference.of(Path("a b.txt"))
    assert (made.url, made.size, made.etag, made.modified) == (str(tmp_path / "a b.txt"), 5, None, None)
    assert made.hash == "sha256:2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824"
    by_url = f"file://{tmp_path}/a%20b.txt"
    assert Reference.of(by_url) == Reference(by_url, made.hash, 5)


def test_there_is_no_reference_to_nothing_to_a_folder_or_to_a_device(tmp_path: Path) -> None:
    """Each is one sentence."""
    with pytest.raises(FileNotFoundError):
        Reference.of(tmp_path / "nothing")
    with pytest.raises(ValueError, match="is a folder"):
        Reference.of(tmp_path)
    with pytest.raises(ValueError, match="no ordinary file"):
        Reference.of("/dev/null")


def test_the_web_is_asked_only_where_the_list_allows(monkeypatch: pytest.MonkeyPatch) -> None:
    """`Reference.of` of a URL that is not on the list is refused, and says which variable to set; nothing is asked."""
    monkeypatch.delenv("STEPSEVEN_ALLOW", raising=False)
    with pytest.raises(ValueError, match=r"name files\.example in STEPSEVEN_ALLOW") as refused:
        Reference.of("https://files.example/a?sig=hunter22")
    assert "hunter22" not in str(refused.value)
    with pytest.raises(ValueError, match="name s3://bucket in STEPSEVEN_ALLOW"):
        Reference.of("s3://bucket/a")


def test_hosts_and_buckets_are_what_is_asked() -> None:
    """For notes: the host with its port, the bucket."""
    assert elsewhere.host_of("https://H:8/a") == "h:8"
    assert elsewhere.host_of("s3://bucket/a/b") == "s3://bucket"
