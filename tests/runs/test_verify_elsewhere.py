"""What results name on web servers and in object stores: asked only where it is allowed, and only what is gone counts as gone."""

from __future__ import annotations

import http.server
import threading
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from stepseven import Reference, Run, step, testing, workflow
from stepseven.runtime import references
from stepseven.testing import TestLayer
from tests.runs.worldly import kinds

SIGNED = "?sig=hunter22"


class Page:
    """What a path answers with. ``head``: the status of a HEAD, where it is another one."""

    def __init__(self, body: bytes = b"hello", status: int = 200, head: int | None = None, **headers: str) -> None:
        self.body = body
        self.status = status
        self.head = head
        self.headers = {name.replace("_", "-"): value for name, value in headers.items()}


class Site:
    """A web server of pages, and what it was asked."""

    def __init__(self) -> None:
        self.pages: dict[str, Page] = {}
        self.asked: list[str] = []
        site = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                site.asked.append(f"{self.command} {self.path.partition('?')[0]}")
                page = site.pages.get(self.path.partition("?")[0], Page(b"", 404))
                self.send_response(page.head if self.command == "HEAD" and page.head is not None else page.status)
                for name, value in page.headers.items():
                    self.send_header(name, value)
                if "Content-Length" not in page.headers:
                    self.send_header("Content-Length", str(len(page.body)))
                self.end_headers()
                if self.command == "GET":
                    self.wfile.write(page.body)

            do_HEAD = do_GET  # noqa: N815 - the name the server looks for

            def log_message(self, *_: Any) -> None:
                """Quiet."""

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True)
        self.thread.start()
        self.url = f"http://127.0.0.1:{self.server.server_port}"

    def close(self) -> None:
        """No more answers."""
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()


@pytest.fixture
def site(monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    """A server that is on the allow-list."""
    made = Site()
    monkeypatch.setenv("STEPSEVEN_ALLOW", f"files.example, {made.url}")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    yield made
    if made.thread.is_alive():
        made.close()


heard: list[str] = []
ran: Counter[str] = Counter()
urls: list[Reference] = []


@pytest.fixture
async def layer() -> AsyncIterator[TestLayer]:
    """A layer whose notes are heard."""
    heard.clear()
    ran.clear()
    urls.clear()

    def told(_: str, what: str, details: dict[str, Any]) -> None:
        if what == "note":
            heard.append(details["text"])

    async with testing.layer() as made:
        made.services.watchers.append(told)
        yield made


@step
async def upload(n: int) -> Reference:
    """Gives the reference the test says."""
    ran[f"upload {n}"] += 1
    return urls[n]


@workflow(name="verify_elsewhere")
async def flow(run: Run, count: int = 1) -> Any:
    """So many, then a person."""
    return [*[(await upload(n)).url for n in range(count)], await run.ask("ok?", about="it")]


async def resumed(layer: TestLayer, *kept: Reference, then: Any = None) -> None:
    """Record these, let *then* happen outside, answer and resume."""
    urls[:] = kept
    outcome = await layer.run(flow(count=len(kept)), client="acme", run_id="r")
    assert kinds(outcome) == ["ask"], outcome
    if then is not None:
        then()
    await layer.answer_next("yes")
    assert (await layer.resume("r")).result()[-1] == "yes"
    assert not any("hunter22" in note for note in heard)


# -- the web ------------------------------------------------------------------------------------------------------------


async def test_of_a_page_its_etag_and_size_are_kept_or_its_time(site: Site) -> None:
    """`Reference.of` asks with HEAD. Where there is an etag the time is left out: it differs when the same is put there again."""
    site.pages["/a"] = Page(ETag='"1"', Last_Modified="Mon, 05 Jan 2026 09:00:00 GMT")
    site.pages["/b"] = Page(Last_Modified="Mon, 05 Jan 2026 09:00:00 GMT")
    site.pages["/no-head"] = Page(head=405, ETag='"2"')
    assert Reference.of(f"{site.url}/a") == Reference(f"{site.url}/a", None, 5, '"1"')
    assert Reference.of(f"{site.url}/b") == Reference(f"{site.url}/b", None, 5, None, "Mon, 05 Jan 2026 09:00:00 GMT")
    assert Reference.of(f"{site.url}/no-head").etag == '"2"'
    assert site.asked == ["HEAD /a", "HEAD /b", "HEAD /no-head", "GET /no-head"]
    with pytest.raises(FileNotFoundError, match="there is nothing at"):
        Reference.of(f"{site.url}/nothing{SIGNED}")


async def test_a_page_that_is_the_same_is_reused(site: Site, layer: TestLayer) -> None:
    """One HEAD, no more."""
    site.pages["/a"] = Page(ETag='"1"')
    await resumed(layer, Reference(f"{site.url}/a{SIGNED}", etag='"1"'))
    assert (site.asked, ran, heard) == (["HEAD /a"], {"upload 0": 1}, [])


@pytest.mark.parametrize(
    "page,became",
    [
        (None, "is gone"),
        (Page(b"", 410), "is gone"),
        (Page(ETag='"2"'), "was changed"),
        (Page(b"longer", ETag='"1"'), "was changed"),
        (Page(head=404, ETag='"2"'), "was changed"),
    ],
)
async def test_a_page_that_is_gone_or_another_one_is_made_again(
    site: Site, layer: TestLayer, page: Page | None, became: str
) -> None:
    """404, 410, another etag, another size. What only a HEAD calls gone is looked at with GET first."""
    if page is not None:
        site.pages["/a"] = page
    await resumed(layer, Reference(f"{site.url}/a{SIGNED}", None, 5, '"1"'))
    assert ran == {"upload 0": 2}
    assert heard == [f"upload runs again: its file {site.url}/a {became}"]


@pytest.mark.parametrize(
    "page,reason",
    [
        (Page(b"", 403), "it answered 403"),
        (Page(b"", 500), "it answered 500"),
        (Page(b"", 302, Location="/elsewhere"), "it answered 302 with a redirect, which is not followed"),
    ],
)
async def test_an_answer_that_says_neither_is_no_gone(site: Site, layer: TestLayer, page: Page, reason: str) -> None:
    """A refusal, an error, a redirect (which is not followed): kept, and noted without the URL's query."""
    site.pages["/a"] = page
    site.pages["/elsewhere"] = Page()
    await resumed(layer, Reference(f"{site.url}/a{SIGNED}", etag='"1"'))
    assert ran == {"upload 0": 1}
    host = site.url.removeprefix("http://")
    assert heard == [f"upload: could not look at {host} ({reason}). What is on record is kept."]
    assert "GET /elsewhere" not in site.asked
    assert "HEAD /elsewhere" not in site.asked


async def test_a_refused_head_is_asked_again_with_get(site: Site, layer: TestLayer) -> None:
    """Addresses that are signed for GET refuse a HEAD."""
    site.pages["/a"] = Page(head=403, ETag='"1"')
    await resumed(layer, Reference(f"{site.url}/a{SIGNED}", etag='"1"'))
    assert (site.asked, ran, heard) == (["HEAD /a", "GET /a"], {"upload 0": 1}, [])


@pytest.mark.parametrize("body,again", [(b"hello", 1), (b"hallo", 2)])
async def test_where_the_hash_is_known_the_content_decides(site: Site, layer: TestLayer, body: bytes, again: int) -> None:
    """The server gives the same content another etag: nothing changed. Other content of the same size is another thing."""
    site.pages["/a"] = Page(body, ETag='"new"')
    known = "sha256:2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824"
    await resumed(layer, Reference(f"{site.url}/a", known, 5, '"old"'))
    assert (site.asked, ran) == (["HEAD /a", "GET /a"], {"upload 0": again})


async def test_a_server_that_is_away_is_asked_once_and_nothing_counts_as_gone(site: Site, layer: TestLayer) -> None:
    """The network is down: all is kept, and said once."""
    kept = [Reference(f"{site.url}/{n}", etag='"1"') for n in range(5)]
    await resumed(layer, *kept, then=site.close)
    assert set(ran.values()) == {1}
    host = site.url.removeprefix("http://")
    assert heard == [f"upload: could not look at {host} (Connection refused). What is on record is kept."]


async def test_a_server_that_does_not_answer_is_given_up(layer: TestLayer, monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes the connection and says nothing: after a while nobody can tell."""
    import socket

    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        monkeypatch.setenv("STEPSEVEN_ALLOW", url)
        monkeypatch.setenv("NO_PROXY", "127.0.0.1")
        monkeypatch.setattr(references, "ANSWER_S", 0.2)
        await resumed(layer, Reference(f"{url}/a", etag='"1"'))
    assert ran == {"upload 0": 1}
    assert heard == [
        f"upload: could not look at {url.removeprefix('http://')} (no answer within 0.2 s). What is on record is kept."
    ]


async def test_what_is_not_on_the_list_is_not_asked(site: Site, layer: TestLayer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither a host nobody named, nor plain http that is not written out. Kept, and noted once for each host."""
    host = site.url.removeprefix("http://")
    monkeypatch.setenv("STEPSEVEN_ALLOW", host)  # by https only
    kept = [Reference(f"{site.url}/{n}{SIGNED}", etag='"1"') for n in range(3)]
    await resumed(layer, *kept, Reference("https://other.example/a", etag='"1"'))
    assert (site.asked, set(ran.values())) == ([], {1})
    why = "it is not on the allow-list, STEPSEVEN_ALLOW"
    assert heard == [f"upload: could not look at {at} ({why}). What is on record is kept." for at in (host, "other.example")]


async def test_an_answer_beside_one_that_cannot_be_had_still_counts(site: Site, layer: TestLayer) -> None:
    """A result names two pages: one cannot be looked at, the other is gone. That is enough."""

    @step
    async def both() -> list[Reference]:
        ran["both"] += 1
        return [Reference("https://other.example/a"), Reference(f"{site.url}/b")]

    @workflow(name="verify_both")
    async def two(run: Run) -> Any:
        return [len(await both()), await run.ask("ok?", about="it")]

    await layer.run(two(), client="acme", run_id="r")
    await layer.answer_next("yes")
    assert (await layer.resume("r")).result() == [2, "yes"]
    assert ran == {"both": 2}


# -- object stores ----------------------------------------------------------------------------------------------------------


class Bucket:
    """An object store: its objects by path, and what each look raises."""

    objects: dict[str, bytes]
    broken: Exception | None = None


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[Bucket]:
    """One under s3://, on the allow-list."""
    fsspec = pytest.importorskip("fsspec")
    made = Bucket()
    made.objects = {}

    class Objects(fsspec.AbstractFileSystem):  # type: ignore[misc]  # it has no types
        cachable = False

        def info(self, path: str, **_: Any) -> dict[str, Any]:
            if made.broken is not None:
                raise made.broken
            if path not in made.objects:
                raise FileNotFoundError(path)
            content = made.objects[path]
            return {"name": path, "size": len(content), "ETag": f'"{content.hex()}"', "type": "file"}

        @classmethod
        def _strip_protocol(cls, path: str) -> str:
            return path.removeprefix("s3://")

    before = fsspec.registry.get("s3")
    fsspec.register_implementation("s3", Objects, clobber=True)
    monkeypatch.setenv("STEPSEVEN_ALLOW", "s3://invoices")
    yield made
    fsspec.register_implementation("s3", before or "s3fs.S3FileSystem", clobber=True)


async def test_an_object_is_looked_at_like_a_file(bucket: Bucket, layer: TestLayer) -> None:
    """There and the same: reused. Gone, or another one: made again."""
    for name in ("same", "gone", "other"):
        bucket.objects[f"invoices/{name}"] = b"hello"
    kept = [Reference.of(f"s3://invoices/{name}") for name in ("same", "gone", "other")]
    assert kept[0].size == 5
    assert kept[0].etag

    def outside() -> None:
        del bucket.objects["invoices/gone"]
        bucket.objects["invoices/other"] = b"hallo"

    await resumed(layer, *kept, then=outside)
    assert ran == {"upload 0": 1, "upload 1": 2, "upload 2": 2}
    assert heard == [
        "upload runs again: its file s3://invoices/gone is gone",
        "upload runs again: its file s3://invoices/other was changed",
    ]
    with pytest.raises(FileNotFoundError):
        Reference.of("s3://invoices/nothing")


async def test_an_object_store_that_cannot_be_asked_says_nothing(bucket: Bucket, layer: TestLayer) -> None:
    """No credentials, no network: kept, and noted once."""
    for n in range(3):
        bucket.objects[f"invoices/{n}"] = b"hello"
    kept = [Reference.of(f"s3://invoices/{n}") for n in range(3)]

    def outside() -> None:
        bucket.broken = RuntimeError("Unable to locate credentials hunter22")

    await resumed(layer, *kept, then=outside)
    assert set(ran.values()) == {1}
    assert heard == ["upload: could not look at s3://invoices (RuntimeError). What is on record is kept."]


async def test_without_s3fs_that_is_said(layer: TestLayer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is installed to look with: `Reference.of` says what to install; a recovery keeps what is on record."""
    import sys

    monkeypatch.setitem(sys.modules, "fsspec.core", None)
    monkeypatch.setenv("STEPSEVEN_ALLOW", "s3://invoices")
    with pytest.raises(OSError, match=r"pip install s3fs"):
        Reference.of("s3://invoices/a")
    await resumed(layer, Reference("s3://invoices/a"))
    assert ran == {"upload 0": 1}
    assert len(heard) == 1
    assert "pip install s3fs" in heard[0]
