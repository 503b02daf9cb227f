"""Gets the test data that may not be committed, and checks each file's SHA-256.

    python tests/fetch_data.py                  # from its public source
    python tests/fetch_data.py --from FOLDER    # from a folder that holds the same files
    python tests/fetch_data.py --to FOLDER      # to another folder than tests/data: name it to pytest in $PARAS2S_TEST_DATA

It prints what it wrote and what is still missing, and exits with 1 if anything is. Standard library only.
"""

from __future__ import annotations

import argparse
import hashlib
import sys
import urllib.request
from dataclasses import dataclass
from pathlib import Path

TESTS = Path(__file__).resolve().parent
DOWNLOADS = TESTS / "data"
TIMEOUT_S = 60


@dataclass(frozen=True)
class Source:
    """A file's checksum, the public address it comes from, and why it is not in the repository."""

    sha256: str
    url: str
    why: str


FILES = {
    "hcot/speakbench.json": Source(
        sha256="f375a6a5a202351d53ef0588284fed68ee45dc6bae9556a5417f96979ac16550",
        url="https://raw.githubusercontent.com/arjunchandra2/TRACE/9cb2a59bedf3d85bffd1446e1555706805fb3ba0/data/speakbench.json",
        why="people's labels of 497 SpeakBench pairs, released by TRACE's authors without a licence",
    ),
}


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def read_source(name: str, source: Source, folder: Path | None) -> bytes:
    """Returns the file's content from the folder, or from its address without one.

    Raises:
        OSError: It cannot be read.
    """
    if folder is not None:
        return (folder / name).read_bytes()
    with urllib.request.urlopen(source.url, timeout=TIMEOUT_S) as response:
        return response.read()


def fetch(files: dict[str, Source], target: Path, folder: Path | None = None) -> dict[str, str]:
    """Writes every file that is not yet there to `target`; returns those still missing with the reason."""
    missing = {}
    for name, source in files.items():
        path = target / name
        if path.is_file() and sha256(path.read_bytes()) == source.sha256:
            print(f"there     {name}")
            continue
        try:
            content = read_source(name, source, folder)
        except OSError as error:
            missing[name] = str(error)
            continue
        if sha256(content) != source.sha256:
            missing[name] = f"its SHA-256 is {sha256(content)}, not {source.sha256}"
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_suffix(".part")
        part.write_bytes(content)
        part.replace(path)
        print(f"written   {name}")
    return missing


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Gets the test data that may not be committed; checks each file's SHA-256.")
    parser.add_argument("--from", dest="folder", type=Path, help="copy from this folder instead of downloading")
    parser.add_argument("--to", dest="target", type=Path, default=DOWNLOADS, help="where to write (tests/data)")
    options = parser.parse_args(arguments)
    missing = fetch(FILES, options.target, options.folder)
    for name, reason in missing.items():
        print(f"missing   {name}: {FILES[name].why}; {reason}\n          {FILES[name].url}")
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main())
