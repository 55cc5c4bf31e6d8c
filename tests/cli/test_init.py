"""``stepseven init``: a project that runs at once, and never an overwritten file."""

from __future__ import annotations

import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import stepseven
from stepseven.cli.init import FILES


@pytest.fixture
def cli(cli):
    """The command line in an empty folder."""
    (cli.folder / "renewals.py").unlink()
    return cli


def shell(folder: Path, *lines: str, env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """Lines typed into a shell, one after the other; ``stepseven`` is this checkout's."""
    program = f'stepseven() {{ {shlex.quote(sys.executable)} -m stepseven "$@"; }}'
    text = "\n".join([program, *lines])
    return subprocess.run(["sh", "-c", text], cwd=folder, env=env, capture_output=True, text=True, timeout=100, check=False)


def indented(text: str) -> list[str]:
    """The commands a text shows."""
    return [line.strip() for line in text.splitlines() if line.startswith("  ")]


@pytest.mark.slow
@pytest.mark.timeout(120)
@pytest.mark.parametrize("folder", ["my-agents", "my agents", "."])
def test_the_printed_commands_work_as_they_stand(cli, folder):
    """init, then exactly what it prints; then the answer that the inbox shows, and the resume: the reminder is sent once."""
    made = cli("init", folder)
    assert (made.code, made.err) == (0, "")
    *before, resume = indented(made.out)
    env = {name: value for name, value in cli.whole_env.items() if name != "STEPSEVEN_MODULES"}
    first = shell(cli.folder, *before, env=env)
    assert first.returncode == 0, first.stderr
    answer = next(line for line in reversed(first.stdout.splitlines()) if "stepseven answer " in line)
    enter = before[:-2]
    rest = shell(cli.folder, *enter, f"stepseven {answer.partition('stepseven ')[2]}", resume, env=env)
    assert rest.returncode == 0, rest.stdout + rest.stderr
    assert "first is done" in rest.stdout
    assert "reminder R-17" in rest.stdout
    assert len((cli.folder / folder / "outbox.jsonl").read_text("utf-8").splitlines()) == 1
    again = shell(cli.folder, *enter, resume, env=env)
    assert again.returncode == 0
    assert len((cli.folder / folder / "outbox.jsonl").read_text("utf-8").splitlines()) == 1
    assert "Traceback" not in first.stderr + rest.stderr + again.stderr


def test_the_readme_of_the_project_shows_the_same_commands(cli):
    """What init prints and what the project's README shows are the same three commands."""
    made = cli("init", "p")
    readme = (cli.folder / "p" / "README.md").read_text("utf-8")
    block = readme.split("```")[1].splitlines()[1:]
    assert [line.partition("  #")[0].strip() for line in block] == indented(made.out)[1:]


def test_the_files_are_those_of_a_project(cli):
    """A module, a project file that names it and this version, a list of what git leaves out, a page: nothing else."""
    made = cli("init", "deep/My Agents!", "--json")
    folder = cli.folder / "deep" / "My Agents!"
    assert made.json["files"] == list(FILES)
    assert made.json["folder"] == str(folder)
    assert made.json["next"][0] == "cd 'deep/My Agents!'"
    assert sorted(path.name for path in folder.iterdir()) == sorted(FILES)
    project = tomllib.loads((folder / "pyproject.toml").read_text("utf-8"))
    assert project["project"]["name"] == "my-agents"
    assert project["project"]["dependencies"] == [f"stepseven>={stepseven.__version__}"]
    assert project["tool"]["stepseven"] == {"modules": ["workflows"]}
    assert "stepseven.db*" in (folder / ".gitignore").read_text("utf-8").splitlines()
    assert not any("@" in (folder / name).read_text("utf-8") for name in ("pyproject.toml", "README.md"))


@pytest.mark.parametrize("name, dangling", [*((name, False) for name in FILES), (".gitignore", True)])
def test_nothing_is_overwritten_and_then_nothing_is_written(cli, name, dangling):
    """One file in the way, be it a link that leads nowhere: it is named, and the folder stays as it was."""
    folder = cli.folder / "p"
    folder.mkdir()
    if dangling:
        (folder / name).symlink_to("nowhere")
    else:
        (folder / name).write_text("mine", "utf-8")
    ran = cli("init", "p")
    assert (ran.code, ran.out) == (1, "")
    assert f"p has {name} already" in ran.err
    assert ran.err.count("\n") == 1
    assert [path.name for path in folder.iterdir()] == [name]
    assert dangling or (folder / name).read_text("utf-8") == "mine"


def test_everything_in_the_way_is_named(cli):
    """A second init in the same folder names all four and changes nothing; as JSON it is one document."""
    assert cli("init").code == 0
    before = {name: (cli.folder / name).stat().st_mtime_ns for name in FILES}
    ran = cli("init", "--json")
    assert ran.code == 1
    assert "this folder has workflows.py, pyproject.toml, .gitignore and README.md already" in ran.json["error"]
    assert {name: (cli.folder / name).stat().st_mtime_ns for name in FILES} == before


def test_other_files_are_left_alone(cli):
    """A folder with other things in it is set up, and they stay."""
    (cli.folder / "notes.txt").write_text("mine", "utf-8")
    assert cli("init").code == 0
    assert (cli.folder / "notes.txt").read_text("utf-8") == "mine"


def test_a_place_that_cannot_be_written_is_one_sentence(cli):
    """A file in the place of the folder, or above it: refused, and no folder is left behind."""
    (cli.folder / "file").write_text("mine", "utf-8")
    for target, says in (("file", "a file at file"), ("file/deep", "nothing can be set up"), ("new/" + "x" * 300, "too long")):
        ran = cli("init", target)
        assert (ran.code, ran.out) == (1, "")
        assert says in ran.err.lower()
    assert [path.name for path in cli.folder.iterdir()] == ["file"]


def test_a_disk_that_is_full_leaves_nothing_behind(cli):
    """A file that cannot be written takes those before it with it, and the folders that were made for them."""
    program = (
        "import resource, signal, sys; signal.signal(signal.SIGXFSZ, signal.SIG_IGN); "
        "resource.setrlimit(resource.RLIMIT_FSIZE, (300, 300)); from stepseven.cli import main; sys.exit(main(['init', 'a/b']))"
    )
    env = {**cli.whole_env, "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=cli.folder, env=env, capture_output=True, text=True, timeout=50, check=False
    )
    assert done.returncode == 1, done.stderr
    assert "nothing can be set up" in done.stderr.lower()
    assert list(cli.folder.iterdir()) == []


def test_the_store_that_was_named_is_in_the_commands(cli):
    """``--store`` is kept in what to give next."""
    made = cli("init", "p", "--store", "sqlite:///other.db", "--json")
    assert all("--store sqlite:///other.db" in line for line in made.json["next"][1:])
