"""``client``: what is known, what is said, imports, pauses."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import pytest

from stepseven.cli import main
from tests.cli.conftest import Ran


@dataclass
class Here:
    """The command line in this process: these commands load no code of the user's, and a process each would take minutes."""

    folder: Path
    capture: pytest.CaptureFixture[str]

    def __call__(self, *arguments: str) -> Ran:
        self.capture.readouterr()
        code = main(arguments)
        said = self.capture.readouterr()
        assert "Traceback" not in said.out + said.err
        return Ran(code, said.out, said.err)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Here:
    """The same as ``cli``, without a process of its own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("USER", "ann")
    for name in ("STEPSEVEN_URL", "COLUMNS", "NO_COLOR"):
        monkeypatch.delenv(name, raising=False)
    return Here(tmp_path, capsys)


def known(here, client="acme"):
    """The facts of a client, by key."""
    return {fact["key"]: fact for fact in here("client", client, "--json").json["facts"]}


def test_what_is_said_is_shown_with_who_and_where_from(here):
    """``client set`` keeps what a person says; ``client acme`` shows value, source, by whom and when."""
    ran = here("client", "set", "acme", "vat_number=DE123", "seats=40")
    assert ran.code == 0
    assert "Acme: 2 facts set, 0 unchanged." in ran.out
    here("client", "set", "acme", "contact=ann@acme.example", "--source", "crm", "--valid", "90d")
    page = here("client", "acme").out
    assert "· vat_number  DE123" in page
    assert "by ann, " in page
    assert "crm, " in page
    assert "holds until 20" in page
    facts = known(here)
    assert (facts["seats"]["value"], facts["seats"]["set_by"], facts["contact"]["set_by"]) == (40, "ann", None)
    assert "Acme: 0 facts set, 1 unchanged." in here("client", "set", "acme", "seats=40").out


def test_conflicts_stand_side_by_side_until_a_person_decides(here):
    """What another source says stands beside the value, in words; ``set`` by a person settles it."""
    here("client", "set", "acme", "city=Berlin", "--source", "crm")
    here("client", "set", "acme", "city=Bonn", "--source", "sheet")
    page = here("client", "acme").out
    assert "≠ city  Bonn" in page
    assert "but Berlin: crm" in page
    assert "1 fact in conflict" in page
    assert [c["value"] for c in known(here)["city"]["conflicts"]] == ["Berlin"]
    here("client", "set", "acme", "city=Bonn")
    assert "in conflict" not in here("client", "acme").out
    history = here("client", "acme", "--history", "city").out
    assert "3 versions, newest first" in history
    assert history.index("by ann") < history.index("sheet") < history.index("crm")
    assert [f["version"] for f in here("client", "acme", "--history", "city", "--json").json["versions"]] == [3, 2, 1]


def test_an_expired_fact_says_so(here):
    """What no longer holds is marked in words, and in JSON."""
    here("client", "set", "acme", "k=1", "--valid", "1s")
    while not known(here)["k"]["expired"]:
        pass
    assert "counts as not known" in here("client", "acme").out


def test_without_a_name_all_clients_are_listed(cli):
    """``client`` alone: a line for each, with counts; pages go on by their cursor."""
    cli("run", "renewals:asks", "--client", "acme", "--run-id", "r")
    cli("client", "set", "globex", "k=1")
    page = cli("client").out
    assert "acme" in page
    assert "0 facts · 1 run · 1 open · 1 question" in page
    first = cli("client", "--limit", "1", "--json").json
    assert ([c["client_id"] for c in first["items"]], first["next"]) == (["acme"], "acme")
    assert [c["client_id"] for c in cli("client", "--cursor", "acme", "--json").json["items"]] == ["globex"]


def test_a_client_named_like_a_command_is_reachable(here):
    """``client show import`` shows the client that is called import; its facts are set as any other's."""
    here("client", "set", "import", "k=1")
    assert here("client", "show", "import", "--json").json["client_id"] == "import"


@pytest.mark.parametrize("words", ["client acme", "client show acme", "client pause acme", "client unpause acme", "client"])
def test_looking_makes_no_store(here, words):
    """Where there is no store, looking and pausing say so, exit 5, and leave no file."""
    assert here(*words.split()).code == 5
    assert not list(here.folder.glob("*.db*"))


@pytest.mark.parametrize(
    "words, code, told",
    [
        ("client acmee", 1, "There is no client acmee: `stepseven client` lists them."),
        ("client pause acmee", 1, "There is no client acmee: `stepseven client` lists them."),
        ("client set acme vat", 2, "is not of the form KEY=VALUE"),
        ("client set acme k=1 k=2", 2, "k is given twice"),
        ("client set a/b k=1", 1, "without '/'"),
        ("client set acme k=1 --valid soon", 1, "valid='soon'"),
        ("client acme --history nothing", 1, "nothing was ever said about nothing"),
        ("client import no.csv", 1, "no.csv cannot be read"),
        ("client --colour", 2, "--colour"),
    ],
)
def test_what_cannot_be_done_is_one_sentence(here, words, code, told):
    """Each refusal says what to do, and changes nothing."""
    here("client", "set", "acme", "city=Bonn")
    ran = here(*words.split())
    assert ran.code == code
    assert told.lower() in ran.err.lower()
    assert list(known(here)) == ["city"]


def test_a_pause_says_who_and_why_and_what_then(cli):
    """``pause``: nothing begins, ``run`` says why and exits 3; ``unpause`` tells how its runs go on."""
    cli("run", "renewals:asks", "--client", "acme", "--run-id", "r")
    ran = cli("client", "pause", "acme", "--reason", "invoices are disputed")
    assert "acme is paused (by ann: invoices are disputed): nothing new begins. 1 run is open" in ran.out.replace("\n", " ")
    ran = cli("run", "renewals:simple", "--client", "acme", "--input", "quarter=Q3", "--run-id", "s")
    assert ran.code == 3
    assert "acme is paused (by ann: invoices are disputed)" in ran.out.replace("\n", " ")
    assert cli("client", "acme", "--json").json["paused"]["reason"] == "invoices are disputed"
    assert "paused" in cli("client").out
    ran = cli("client", "unpause", "acme")
    assert "stepseven resume s" in ran.out
    assert "Unpaused" in (shown := cli("client", "acme").out)
    assert "by ann" in shown
    told = cli("client", "acme", "--json").json
    assert (told["paused"], told["unpaused"]["by"]) == (None, "ann")
    assert cli("resume", "s", "--module", "renewals").code == 0


# -- import -----------------------------------------------------------------------------------------------------------


def file(here, name, text, encoding="utf-8"):
    """A file beside the store."""
    (here.folder / name).write_bytes(text.encode(encoding))
    return name


@pytest.mark.parametrize(
    "text",
    [
        "client,vat_number,seats\nacme,0123,40\nglobex,,7\n",
        "\ufeffclient;vat_number;seats\r\nacme;0123;40\r\nglobex;;7\r\n",
        '"Client_ID"\tvat_number\tseats\n\nacme\t"0123"\t40\nglobex\t\t 7 \n',
        "vat_number,id,seats,\n0123,acme,40,\n,globex,7\n",
    ],
    ids=["commas", "BOM, semicolons, CRLF", "tabs, quotes, empty line", "id, trailing comma"],
)
def test_a_table_is_imported_as_spreadsheets_write_it(here, text):
    """Separators, a byte-order mark, quotes: understood. An empty cell says nothing; what looks like a number stays text."""
    ran = here("client", "import", file(here, "clients.csv", text))
    assert "clients.csv: 3 facts set, 0 unchanged, 0 in conflict, for 2 clients." in ran.out
    facts = known(here)
    assert (facts["vat_number"]["value"], facts["seats"]["value"], facts["seats"]["source"]) == (
        "0123",
        "40",
        "import:clients.csv",
    )
    assert list(known(here, "globex")) == ["seats"]
    again = here("client", "import", "clients.csv", "--json").json
    assert (again["set"], again["unchanged"]) == (0, 3)


@pytest.mark.parametrize(
    "document",
    [{"acme": {"seats": 40, "tags": ["a"], "none": None}}, [{"client": "acme", "seats": 40, "tags": ["a"]}]],
    ids=["by client", "a list"],
)
def test_a_json_file_keeps_its_types(here, document):
    """Numbers and lists stay what they are; ``null`` says nothing."""
    ran = here("client", "import", file(here, "clients.json", json.dumps(document)), "--source", "crm")
    assert "2 facts set" in ran.out
    assert {key: fact["value"] for key, fact in known(here).items()} == {"seats": 40, "tags": ["a"]}


def test_conflicts_are_counted_and_a_dry_run_writes_nothing(here):
    """``--dry-run`` tells what would be set and what contradicts; the import then does exactly that."""
    here("client", "set", "acme", "city=Bonn", "--source", "crm")
    name = file(here, "clients.csv", "client,city,seats\nacme,Berlin,40\n")
    dry = here("client", "import", name, "--dry-run")
    assert "2 facts would be set, 0 unchanged, 1 in conflict, for 1 client. Nothing was written." in dry.out.replace("\n", " ")
    assert "acme: city = Berlin; crm says Bonn" in dry.out
    assert list(known(here)) == ["city"]
    done = here("client", "import", name, "--json").json
    assert (done["set"], done["unchanged"], done["conflicts"], done["dry_run"]) == (2, 0, 1, False)
    assert known(here)["city"]["value"] == "Berlin"


@pytest.mark.parametrize(
    "name, text",
    [
        ("a.csv", "Client ID;vat\nacme;DE1\n"),
        ("a.csv", "vat,CLIENT-ID\nDE1,acme\n"),
        ("a.json", '{" acme ": {" vat": "DE1"}}'),
        ("a.json", '[{"Client_Id": " acme ", "vat ": "DE1"}]'),
    ],
)
def test_how_names_are_written_does_not_matter(here, name, text):
    """Case, spaces and dashes in the column that says whom; spaces around names."""
    assert here("client", "import", file(here, name, text)).code == 0
    assert {key: fact["value"] for key, fact in known(here).items()} == {"vat": "DE1"}


CREDENTIAL = "sk-proj-" + "a1B2" * 12


@pytest.mark.parametrize(
    "name, text, told",
    [
        ("a.csv", "", "is empty"),
        ("a.csv", "name,city\nacme,Bonn\n", "line 1: no column is called client"),
        ("a.csv", "client\nacme\n", "line 1: there is no column with a fact"),
        ("a.csv", "ID,Client ID,vat\n1,acme,DE1\n", "line 1: the columns ID and Client ID could each say whom it is about"),
        ("a.csv", "client,client-id,vat\na,b,DE1\n", "line 1: the columns client and client-id could each"),
        ("a.json", '[{"id": "1", "Client": "acme", "k": 1}]', "entry 1: id and Client could each say whom it is about"),
        ("a.json", '{"acme": {"k": 1}, " acme": {"k": 2}}', "the client acme is there twice, as 'acme' and ' acme'"),
        ("a.json", '{"acme": {"k": 1, "k ": 2}}', "the fact k is there twice, as 'k' and 'k '"),
        ("a.json", '{" ": {"k": 1}}', "a client has no name"),
        ("a.csv", "client,city,city\nacme,a,b\n", "line 1: the column city is there twice"),
        ("a.csv", "client,city\n", "no row beneath its first line"),
        ("a.csv", "client,city\nacme,Bonn\n,Berlin\n", "line 3, column client: it is empty"),
        ("a.csv", "client,city\nacme,Bonn\nacme,Berlin\n", "line 3: acme is there already (line 2)"),
        ("a.csv", "client,city\nacme,Bonn\nb/c,Berlin\n", "line 3, column client: client='b/c'"),
        ("a.csv", "client,city\nacme,Bonn,extra\n", "line 2: cell 3 has no column name"),
        ("a.csv", 'client,city\nacme,"Bonn\n', "cannot be read as CSV"),
        ("a.csv", f"client,city,key\nacme,Bonn,{CREDENTIAL}\n", "line 2, column key: it looks like"),
        ("a.json", "{", "line 1: it cannot be read as JSON"),
        ("a.json", "[]", "holds nothing"),
        ("a.json", '{"acme": 1}', "client acme: its facts are no object"),
        ("a.json", '[{"city": "Bonn"}]', "entry 1: it does not say whom it is about"),
        ("a.json", '[{"client": "acme", "k": 1}, {"client": "acme", "k": 2}]', "entry 2: acme is there already (entry 1)"),
        ("a.json", '{"acme": {"k": 1, "k": 2}}', "k is there twice"),
        ("a.json", '{"acme": {"k": NaN}}', "NaN is no JSON value"),
        ("a.xlsx", "PK", "neither .csv nor .json"),
    ],
)
def test_a_bad_file_is_refused_whole(here, name, text, told):
    """The sentence names line and column and what to do; nothing of the file is kept, and no credential is repeated."""
    here("client", "set", "globex", "k=1")
    ran = here("client", "import", file(here, name, text))
    assert ran.code == 1
    assert told in ran.err
    assert CREDENTIAL not in ran.err + ran.out
    assert [c["client_id"] for c in here("client", "--json").json["items"]] == ["globex"]


def test_a_file_that_is_not_utf8_says_where(here):
    """A file in another encoding is refused with the line, instead of keeping wrong letters."""
    ran = here("client", "import", file(here, "a.csv", "client,city\nacme,Köln\n", "latin-1"))
    assert ran.code == 1
    assert "line 2: this is not UTF-8 text" in ran.err
