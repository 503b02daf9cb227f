"""The studio opens no file outside the folders that it was given.

Not covered: a link that is changed between the check and the opening, by someone who can write into the folders anyway.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from paras2s.errors import ConfigError
from paras2s.run import RESOLVED
from paras2s.studio.folders import OutsideError, open_folders


def make_run(folder: Path) -> Path:
    folder.mkdir(parents=True)
    (folder / RESOLVED).write_text("name: x\n")
    return folder


def test_a_path_inside_is_found(tmp_path: Path) -> None:
    run = make_run(tmp_path / "runs" / "deep" / "one")
    folders = open_folders([tmp_path / "runs"])
    assert folders.path("0/deep/one", "data/a b.wav") == run / "data/a b.wav"
    assert folders.path("0/deep/one") == run
    assert [found.address for found in folders.runs()] == ["0/deep/one"]


def test_a_given_folder_may_be_the_run(tmp_path: Path) -> None:
    run = make_run(tmp_path / "one")
    folders = open_folders([run])
    assert [(found.address, found.name) for found in folders.runs()] == [("0", "one")]
    assert folders.path("0", "metrics.jsonl") == run / "metrics.jsonl"


@pytest.mark.parametrize(
    ("address", "name"),
    [
        ("0", "../secret"),
        ("0/..", "secret"),
        ("0/one/../..", "secret"),
        ("0", "/etc/passwd"),
        ("0//etc", "passwd"),
        ("0", "one\0.wav"),
        ("0", "..\\secret"),
        ("1", "one"),
        ("-1", "one"),
        ("²", "one"),
        ("", "one"),
        ("one", ""),
        ("0", "out/secret"),
        ("0", "out"),
        ("0", "loop/x"),
        ("9" * 5000, "one"),
        ("0", "x" * 300),
        ("0", "x/" * 3000),
        ("0", "\udcff"),
    ],
)
def test_a_path_outside_is_refused(tmp_path: Path, address: str, name: str) -> None:
    runs = tmp_path / "runs"
    make_run(runs / "one")
    (tmp_path / "secret").write_text("no")
    (runs / "out").symlink_to(tmp_path)
    (runs / "loop").symlink_to("loop")
    with pytest.raises(OutsideError):
        open_folders([runs]).path(address, name)


def test_a_link_between_given_folders_is_followed(tmp_path: Path) -> None:
    """The variants of an ablation link the data of one run."""
    shared = make_run(tmp_path / "runs" / "shared")
    (shared / "data").mkdir()
    variant = make_run(tmp_path / "variants" / "one")
    (variant / "data").symlink_to(shared / "data")
    both = open_folders([tmp_path / "variants", tmp_path / "runs"])
    assert both.path("0/one", "data/x.wav").parent.resolve() == (shared / "data").resolve()
    with pytest.raises(OutsideError, match="give that folder as well"):
        open_folders([tmp_path / "variants"]).path("0/one", "data/x.wav")


def test_a_run_below_two_folders_stands_once(tmp_path: Path) -> None:
    make_run(tmp_path / "runs" / "one")
    assert len(open_folders([tmp_path / "runs", tmp_path / "runs" / "one"]).runs()) == 1


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="nowhere"):
        open_folders([tmp_path / "nowhere"])
