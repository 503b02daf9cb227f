"""Data from outside: the fixtures are what their SOURCE.md says, fetching checks what it gets, and one order of folders.

Not covered: whether a public source still answers.
"""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path

import outside
import pytest
from fetch_data import FILES, Source, fetch, main

CONTENT = b"labels"
SOURCE = Source(sha256(CONTENT).hexdigest(), "https://example.invalid/labels.json", "for this test")
FIXTURES = {
    "audiojudge/detection.csv": "7122a091702291e5e0b5035643b7eafd188290aee504b79fdd619d380893dd63",
    "audiojudge/probes.csv": "6d9c379fecf49c290319ab9b9f3911ab29d7a6c41e41e81f623c96648951888d",
    "audiojudge/chatbotarena.csv": "a98bc26bfb465b3a9cef83b417da6f10e8fd1f02e65befaac96cb4b2594369df",
    "audiojudge/chatbotarena_exchanged_truth.csv": "a3db0fb8d40027af49dc600f08dbb3ec401026c74c776df130f48f9cfdd6216b",
    "audiojudge/speakbench_original.csv": "80d4b240ced39b13a216d13a4d1efcfa6facf6b633963e452f837ff1899ac9f9",
    "audiojudge/speakbench_gemini25_0shot.csv": "9731eefa590a94b736f87e0675191f92c4300773f070f280c793c78406ece984",
    "audiojudge/speakbench_gpt4o_0shot.csv": "8e9f43a205bf1f15ff484118084cf02133abb148caba5e651bd4a2aee80e19d5",
    "librispeech/librispeech_1263-139804-0001.flac": "2da5ca8b12f4315d09a0834f1c499779e1ed868d63390be123408b283ad0e589",
    "librispeech/librispeech_1263-139804-0002.flac": "ecf6fd0a66b8d436927fe4c5525f52b2c9e5600f5336e0227f8e05b16f6411c1",
    "librispeech/librispeech_1263-139804-0004.flac": "f42969cc397642890eae240c2e824ceec41888e95b609d6282373a56c8447e2c",
    "librispeech/librispeech_1263-139804-0005.flac": "863312b26d2d0aa8f7fe56a2f77308beaf02947b081b1e6137abeb181f3db94f",
    "speechparaling/final_scores_en.csv": "c878d0c0b6c2887851b691422303bdf5c508f6c91c1beff8d39cceb496179f15",
    "speechparaling/verdicts_en.jsonl.gz": "159afd3cfcdbb299c20696f12ca7ae70aba4a703690576080a786c2783104921",
    "styletalk/eval.csv": "97778daf9670e7a8cf96f4917bdd6e4c39360ad3cbf5bac23fd36d5fe1647428",
    "styletalk/train.csv": "7e400bee6a27d65a4249698b7836b2f0efccee1048e7be5e96d4386ed5175b01",
}


def test_fixtures_are_those_of_their_sources_and_small() -> None:
    files = [path for path in outside.FIXTURES.rglob("*") if path.is_file()]
    kinds = {".csv", ".flac", ".json", ".gz"}
    data = {path.relative_to(outside.FIXTURES).as_posix(): path for path in files if path.suffix in kinds}
    assert {name: sha256(path.read_bytes()).hexdigest() for name, path in data.items()} == FIXTURES
    assert all((path.parent / "SOURCE.md").is_file() for path in data.values())
    assert sum(path.stat().st_size for path in files) < 3_000_000
    assert not set(FIXTURES) & set(FILES)


def test_a_file_is_copied_from_a_folder_and_then_left_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "from/a").mkdir(parents=True)
    (tmp_path / "from/a/labels.json").write_bytes(CONTENT)
    assert fetch({"a/labels.json": SOURCE}, tmp_path / "to", tmp_path / "from") == {}
    assert (tmp_path / "to/a/labels.json").read_bytes() == CONTENT
    assert fetch({"a/labels.json": SOURCE}, tmp_path / "to", tmp_path / "nowhere") == {}
    assert capsys.readouterr().out.split() == ["written", "a/labels.json", "there", "a/labels.json"]


def test_a_file_is_downloaded_from_its_address(tmp_path: Path) -> None:
    (tmp_path / "public.json").write_bytes(CONTENT)
    source = Source(SOURCE.sha256, (tmp_path / "public.json").as_uri(), "for this test")
    assert fetch({"labels.json": source}, tmp_path / "to") == {}
    assert (tmp_path / "to/labels.json").read_bytes() == CONTENT


def test_another_content_is_refused_and_nothing_written(tmp_path: Path) -> None:
    (tmp_path / "labels.json").write_bytes(b"others")
    missing = fetch({"labels.json": SOURCE}, tmp_path / "to", tmp_path)
    assert SOURCE.sha256 in missing["labels.json"]
    assert not (tmp_path / "to").exists()


def test_what_is_missing_is_said_with_its_reason_and_its_address(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--from", str(tmp_path), "--to", str(tmp_path / "to")]) == 1
    printed = capsys.readouterr().out
    for name, source in FILES.items():
        assert name in printed
        assert source.why in printed
        assert source.url in printed


def test_fixtures_come_first_then_the_named_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "librispeech").mkdir()
    (tmp_path / "only-here").write_text("")
    monkeypatch.setenv("PARAS2S_TEST_DATA", str(tmp_path))
    assert outside.locate("librispeech") == outside.FIXTURES / "librispeech"
    assert outside.locate("only-here") == tmp_path / "only-here"
    assert not outside.locate("nowhere").exists()
