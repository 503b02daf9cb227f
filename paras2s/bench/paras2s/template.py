"""A folder of questions for another team, or for a system that no one here can open: what to answer, and under which names."""

from __future__ import annotations

import csv
import io
import shutil
from pathlib import Path

from paras2s.bench.systems import answer_names, blind_name
from paras2s.data_gen.dataset import data_folder, load_manifest
from paras2s.errors import ConfigError, StorageError
from paras2s.utils.io import write_text
from paras2s.utils.tables import spreadsheet_cell

QUESTIONS, ANSWERS = "questions", "answers"
README = """# {count} spoken questions

Answer every file in `{questions}/` by speech. Write the answers to `{answers}/` as WAV, FLAC, OGG or MP3: {names}.
`questions.csv` has the same names in a table, with what a recogniser understood of each question. How a question is
meant is in its voice alone.

Then, where the data is: `paras2s bench paras2s DATA --system mine={answers} --judge rubric{more}`. Missing answers are
listed and have no score.
"""


def write_template(data: Path, out: Path, role: str = "test", answers: int = 1) -> int:
    """Write the questions of one role with their clips, a table of the expected answers and a page on what to do.

    No label leaves, not even in names: whoever answers learns neither the style nor the category of a question. Returns the
    number of questions.

    Raises:
        ConfigError: no questions of this role, or a folder that is not empty. StorageError: the disk refused.
    """
    manifest = load_manifest(data_folder(data))
    queries = [query for query in manifest.queries if query.role == role]
    if not queries:
        roles = ", ".join(sorted({query.role for query in manifest.queries}))
        raise ConfigError(f"--on {role}: {manifest.folder} has no questions of this role; there are {roles}")
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ConfigError(f"{out}: exists already; give another folder, or delete it")
    table = io.StringIO()
    rows = csv.writer(table, lineterminator="\n")
    rows.writerow(("id", "question", "transcript", "answer"))
    try:
        (out / QUESTIONS).mkdir(parents=True)
        (out / ANSWERS).mkdir()
        # By their names: the manifest has the styles of a contrast in one order.
        named = sorted((blind_name(query.id), query) for query in queries)
        for name, query in named:
            clip = f"{QUESTIONS}/{name}{Path(query.clip).suffix}"
            shutil.copyfile(manifest.folder / query.clip, out / clip)
            for answer in answer_names(name, answers):
                rows.writerow((name, clip, spreadsheet_cell(query.transcript), f"{ANSWERS}/{answer}.wav"))
    except OSError as error:
        raise StorageError(f"cannot write {out}: {error.strerror or error}") from error
    write_text(out / "questions.csv", table.getvalue())
    more = "" if answers == 1 else f" --answers {answers}"
    names = "one each, such as " if answers == 1 else f"{answers} each, such as "
    names += " and ".join(f"`{name}.wav`" for name in answer_names(named[0][0], answers)[:2])
    page = README.format(count=len(queries), questions=QUESTIONS, answers=ANSWERS, names=names, more=more)
    write_text(out / "README.md", page)
    return len(queries)
