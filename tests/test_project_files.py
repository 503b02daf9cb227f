"""The files that people expect in a project, and help that is in groups.

Not covered: whether a forge accepts the forms; their schema is GitHub's, checked here for what it requires.
"""

from __future__ import annotations

import re
from importlib import metadata
from pathlib import Path

import pytest
import typer
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from typer.testing import CliRunner

import paras2s
from paras2s.cli.app import app
from paras2s.pipeline.doctor import OPTIONAL, PACKAGES, examine

ROOT = Path(__file__).parent.parent
EXTRA = re.compile(r"paras2s\[(\w+)\]")


def test_the_citation_is_of_this_version() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert citation["version"] == paras2s.__version__
    assert {"cff-version", "message", "title", "authors"} <= set(citation)


@pytest.mark.parametrize("name", ["CODE_OF_CONDUCT.md", "CONTRIBUTING.md", "LICENSE", "SECURITY.md", "SUPPORT.md"])
def test_a_file_that_a_forge_looks_for_exists(name: str) -> None:
    assert len((ROOT / name).read_text()) > 500


@pytest.mark.parametrize("form", sorted((ROOT / ".github/ISSUE_TEMPLATE").glob("[!c]*.yml")), ids=lambda path: path.stem)
def test_a_form_of_an_issue_has_what_a_forge_requires(form: Path) -> None:
    fields = yaml.safe_load(form.read_text())
    assert {"name", "description", "body"} <= set(fields)
    for field in fields["body"]:
        assert field["type"] in {"markdown", "textarea", "input", "dropdown", "checkboxes"}
        assert field["id"]
        assert field["attributes"]["label"]


def test_tests_that_start_ray_are_grouped(request: pytest.FixtureRequest) -> None:
    """A pytest whose node ids pytest-xdist cannot group by lets two clusters meet, and a whole run hang."""
    if not getattr(request.config.option, "loadgroup", False):
        pytest.skip("the tests run in one process")
    assert "@" in request.node.nodeid, "install the versions of constraints.txt"


def required_by(extra: str) -> dict[str, metadata.Distribution]:
    """Return all that an install with an extra brings, as far as it is installed in this environment."""
    found: dict[str, metadata.Distribution] = {}
    pending = [("paras2s", frozenset({extra, ""}))]
    seen = set(pending)
    while pending:
        name, extras = pending.pop()
        try:
            found[name] = metadata.distribution(name)
        except metadata.PackageNotFoundError:
            continue
        for requirement in map(Requirement, found[name].requires or ()):
            if requirement.marker is None or any(requirement.marker.evaluate({"extra": one}) for one in extras):
                needed = (canonicalize_name(requirement.name), frozenset({*requirement.extras, ""}))
                pending += [needed] if needed not in seen else []
                seen.add(needed)
    return found


def licence_of(distribution: metadata.Distribution) -> str:
    """Return what a package says of its licence: the expression, or its classifiers and the first words of the text."""
    about = distribution.metadata
    classifiers = [value for value in about.get_all("Classifier") or () if value.startswith("License")]
    return about.get("License-Expression") or "; ".join([*classifiers, (about.get("License") or "")[:200]])


@pytest.mark.parametrize(("extra", "refused"), [("", set()), ("offline", {"piper-tts"})])
def test_no_licence_of_a_dependency_binds_the_users_code(extra: str, refused: set[str]) -> None:
    """Piper alone, which runs as a program of its own; README says so."""
    licences = {name: licence_of(one) for name, one in required_by(extra).items()}
    assert len(licences) > 50
    binding = re.compile(r"(?<!L)GPL|Affero|(?<!Lesser )General Public|Non-?Commercial|-NC-", re.IGNORECASE)
    assert {name for name, licence in licences.items() if binding.search(licence)} == refused
    readme = " ".join((ROOT / "README.md").read_text().split())
    assert "Piper (GPL-3.0) runs as a separate program and is never imported" in readme


def test_the_lock_has_hashes_of_the_versions_that_constraints_pin() -> None:
    pinned = dict(re.findall(r"^([\w.-]+)==(\S+)$", (ROOT / "constraints.txt").read_text(), re.MULTILINE))
    pinned = {canonicalize_name(name): version for name, version in pinned.items()}
    blocks = re.split(r"^(?=\w)", (ROOT / "requirements.lock").read_text(), flags=re.MULTILINE)[1:]
    locked = {
        canonicalize_name(block.split("==")[0]): (block.split("==")[1].split()[0], block.count("--hash=sha256:"))
        for block in blocks
    }
    assert all(hashes for _, hashes in locked.values())
    # The rest is what torch for a GPU needs; constraints are of a machine without.
    others = {name for name in locked if name not in pinned}
    assert all(name.startswith(("cuda-", "nvidia-")) or name == "triton" for name in others), others
    assert {name: version for name, (version, _) in locked.items() if name in pinned and version != pinned[name]} == {}
    assert required_by("offline").keys() - {"paras2s"} <= locked.keys()


def test_every_verb_is_in_a_group_of_the_help() -> None:
    commands = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    assert [name for name, command in commands.items() if not getattr(command, "rich_help_panel", None)] == []
    shown = CliRunner().invoke(app, ["--help"]).stdout
    places = [shown.index(f" {name} ") for name in ("Run", "Judge", "Look", "Models", "Share", "Benchmark")]
    assert places == sorted(places)
    assert "--install-completion" in shown


def test_doctor_names_extras_that_exist(monkeypatch: pytest.MonkeyPatch) -> None:
    pyproject = (ROOT / "pyproject.toml").read_text()

    def missing(name: str) -> str:
        raise importlib_metadata.PackageNotFoundError(name)

    import importlib.metadata as importlib_metadata

    monkeypatch.setattr(importlib_metadata, "version", missing)
    parts = {part["part"]: f"{part['is']} {part['switches_off']}" for part in examine()["parts"]}
    named = {name: EXTRA.findall(parts[name]) for name in (*PACKAGES, *OPTIONAL)}
    assert all(re.search(rf"^{extra} = \[", pyproject, re.MULTILINE) for extras in named.values() for extra in extras)
    assert [name for name, extras in named.items() if not extras] == ["torchaudio"]
    # The same extra as the error of an endpoint.
    assert named["openai"][0] == "judge"
