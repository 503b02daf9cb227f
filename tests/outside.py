"""Where tests find real clips, verdicts and labels, and the one reason to skip where these are missing.

Looked for in this order: `tests/fixtures`, the folder in $PARAS2S_TEST_DATA, `tests/data` (tests/fetch_data.py writes there),
and `shared/data` beside the checkout. What `tests/fixtures` holds is never missing.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from fetch_data import DOWNLOADS, FILES

FIXTURES = Path(__file__).resolve().parent / "fixtures"


def folders() -> list[Path]:
    named = os.environ.get("PARAS2S_TEST_DATA")
    return [FIXTURES, *([Path(named)] if named else []), DOWNLOADS, FIXTURES.parents[2] / "shared" / "data"]


def locate(name: str) -> Path:
    """Returns the first of the folders' files or folders of this name; one that does not exist if none has it."""
    return next((folder / name for folder in folders() if (folder / name).exists()), DOWNLOADS / name)


def needs(name: str) -> pytest.MarkDecorator:
    """A mark that skips a test where a file of `fetch_data.FILES` is missing."""
    reason = f"needs {name} ({FILES[name].why}): python tests/fetch_data.py"
    return pytest.mark.skipif(not locate(name).is_file(), reason=reason)


LIBRISPEECH = locate("librispeech")
VERDICTS = locate("audiojudge/speakbench_gpt4o_0shot.csv")
ARENA = locate("audiojudge/chatbotarena.csv")
ARENA_EXCHANGED = locate("audiojudge/chatbotarena_exchanged_truth.csv")
PROBES = locate("audiojudge/probes.csv")
ORIGINAL = locate("audiojudge/speakbench_original.csv")
DETECTION = locate("audiojudge/detection.csv")
GEMINI_VERDICTS = locate("audiojudge/speakbench_gemini25_0shot.csv")
STYLETALK = locate("styletalk")
HCOT = locate("hcot/speakbench.json")
needs_hcot = needs("hcot/speakbench.json")
