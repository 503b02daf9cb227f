"""`paras2s bench paras2s` and `bench voicebench` end to end: folders, an endpoint, a checkpoint, baselines; a scripted judge.

Not covered: what real systems score, which needs keys and weights.
"""

import base64
import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from tiny.endpoint import Fail, Raw, Say, ScriptedEndpoint, said
from tiny.world import invoke
from typer.testing import CliRunner

from paras2s.audio.clip import read_clip, write_clip
from paras2s.audio.synthesis import speak_plain
from paras2s.bench.paras2s.metrics import PAPER_SETS, cell, columns, markdown, table_2
from paras2s.bench.results import load_rows
from paras2s.cli.app import app
from paras2s.data_gen.dataset import Dataset, load_dataset, load_manifest

GOOD = "I am so sorry to hear that."


@pytest.fixture(scope="module")
def world(tiny_run: Path) -> tuple[Path, Dataset]:
    write_clip(tiny_run / "good.wav", speak_plain([GOOD])[0])
    return tiny_run, load_dataset(tiny_run / "run/data")


def judge_file(folder: Path, server: ScriptedEndpoint) -> Path:
    llm = {"base_url": server.base_url, "model": "gpt-4o", "backoff_s": 0.001, "max_attempts": 2}
    path = folder / "judge.yaml"
    path.write_text(
        yaml.safe_dump({"name": "j", "extractors": [{"name": "words"}], "judge": {"reads": "transcript"}, "llm": llm})
    )
    return path


def judge(sent: dict[str, Any], _: int) -> Say:
    """5 to the good answer, 1 to the rest; of a child always 4."""
    text = said(sent)
    score = 4 if '"child"' in text else 5 if "sorry to hear" in text else 1
    return Say(json.dumps({"reasoning": "r", "score": score}))


def copies(folder: Path, dataset: Dataset, clip: Path, leave_out: int = 0) -> Path:
    folder.mkdir()
    for query in dataset.of_role("test")[leave_out:]:
        write_clip(folder / f"{query.id}.wav", read_clip(clip))
    return folder


def test_every_kind_of_system_has_its_row_in_the_papers_table(world: Any, tmp_path: Path) -> None:
    folder, dataset = world
    mine = copies(tmp_path / "mine", dataset, folder / "good.wav", leave_out=1)

    def answer(sent: dict[str, Any], number: int) -> Any:
        if "modalities" in sent:
            clip = base64.b64encode((folder / "good.wav").read_bytes()).decode()
            audio = {"id": "a", "data": clip, "transcript": GOOD, "expires_at": 0}
            message = {"role": "assistant", "content": None, "audio": audio}
            choice = {"index": 0, "message": message, "finish_reason": "stop"}
            body = {"id": "x", "object": "chat.completion", "created": 0, "model": "m", "choices": [choice]}
            return Raw(json.dumps(body).encode())
        if '"tone" (how' in said(sent):
            given = '"spoken": ' in said(sent)
            return Say(json.dumps({"answer": GOOD if given else "Noted.", "tone": "gentle" if given else "neutral"}))
        return judge(sent, number)

    with ScriptedEndpoint(answer) as server:
        chat = {"base_url": server.base_url, "model": "gpt-audio", "system": "Be brief.", "voice": "coral", "concurrency": 4}
        (tmp_path / "chat.yaml").write_text(yaml.safe_dump(chat))
        base = yaml.safe_load((Path(__file__).parents[2] / "paras2s/configs/data/local.yaml").read_text())
        llm = {"base_url": server.base_url, "model": "gpt-4o"}
        curation = base | {"tester": llm, "writer": llm, "cache_dir": str(folder / "cache"), "folder": str(tmp_path / "c")}
        (tmp_path / "curation.yaml").write_text(yaml.safe_dump(curation))
        systems = {
            "mine": mine,
            "chat": tmp_path / "chat.yaml",
            "tiny": folder / "run/sft",
            "cascade": "cascade",
            "topline": "topline",
        }
        words = [word for name, spec in systems.items() for word in ("--system", f"{name}={spec}")]
        command = ["bench", "paras2s", folder / "run/data", *words, "--judge", judge_file(tmp_path, server)]
        command += [
            "--curation",
            tmp_path / "curation.yaml",
            "--out",
            tmp_path / "out",
            "--cache-dir",
            tmp_path / "cache",
            "--json",
        ]
        # "mine" lacks an answer.
        found = json.loads(invoke(*command, status=1).stdout)["systems"]
        sent = [one for one in server.requests if "modalities" in one]
        first = len(server.requests)
        again = json.loads(invoke(*command, status=1).stdout)["systems"]
        assert len(server.requests) == first
    assert again == found
    assert len(sent) == 8
    assert (sent[0]["audio"], sent[0]["messages"][0]["content"]) == ({"voice": "coral", "format": "wav"}, "Be brief.")
    assert [part["type"] for part in sent[0]["messages"][1]["content"]] == ["input_audio"]
    # Eight queries of four categories; those of "mine" lack one.
    assert found["chat"]["average"] | {"standard_error": None} == {
        "mean": pytest.approx((5 + 5 + 4.5 + 5) / 4), "standard_error": None, "n_scored": 8, "n_asked": 8,
    }  # fmt: skip
    assert (found["mine"]["average"]["n_scored"], found["mine"]["average"]["n_asked"]) == (7, 8)
    assert found["cascade"]["sets"]["age"]["mean"] == 2.5
    assert found["topline"]["sets"]["age"]["mean"] == 4.5
    rows = load_rows(tmp_path / "out/mine.jsonl")
    assert [row.unscored for row in rows if row.score is None] == [f"no answer: {mine / rows[0].query_id}.wav is missing"]
    assert (tmp_path / "out" / rows[1].answer_clip).is_file()
    table = (tmp_path / "out/table2.md").read_text()
    assert "| system | age | emotion | gender | sarcasm | average |" in table
    assert "(7 of 8 scored)" in table
    page = (tmp_path / "out/report.html").read_text()
    # Questions' sounds from the dataset and answers' from the folder; the missing answer and why.
    assert page.count("data:audio/") >= 8
    assert f"{rows[0].query_id}.wav is missing" in page
    assert str(tmp_path / "out") not in page
    assert str(dataset.folder) not in page


def test_a_failing_endpoint_and_a_failing_judge_are_reasons_and_never_scores(world: Any, tmp_path: Path) -> None:
    folder, dataset = world
    mine = copies(tmp_path / "mine", dataset, folder / "good.wav")

    def answer(sent: dict[str, Any], number: int) -> Any:
        if "modalities" in sent:
            return Fail(400, "no audio")
        return Say("I cannot judge that.") if '"child"' in said(sent) else judge(sent, number)

    with ScriptedEndpoint(answer) as server:
        (tmp_path / "chat.yaml").write_text(yaml.safe_dump({"base_url": server.base_url, "max_attempts": 1}))
        words = ["--system", f"mine={mine}", "--system", f"chat={tmp_path / 'chat.yaml'}"]
        command = ["bench", "paras2s", folder / "run/data", *words, "--judge", judge_file(tmp_path, server)]
        done = invoke(*command, "--out", tmp_path / "o", "--cache-dir", tmp_path / "c", "--json", status=1)
        found = json.loads(done.stdout)["systems"]
    assert found["chat"]["average"] == {"mean": None, "standard_error": None, "n_scored": 0, "n_asked": 8}
    assert all("HTTP 400: " in (row.unscored or "") for row in load_rows(tmp_path / "o/chat.jsonl"))
    # A contrast of which one style could not be judged leaves its set with one score.
    assert found["mine"]["sets"]["age"]["n_scored"] == 1
    assert "no JSON object with a score" in next(row.unscored for row in load_rows(tmp_path / "o/mine.jsonl") if row.unscored)


def test_rows_of_another_judge_or_of_other_questions_do_not_stand_in_one_table(world: Any, tmp_path: Path) -> None:
    folder, dataset = world
    mine = copies(tmp_path / "mine", dataset, folder / "good.wav")
    command = ["bench", "paras2s", dataset.folder, "--system", f"mine={mine}", "--out", tmp_path / "o", "--json"]
    rubric = ["--judge", "rubric", "--tone", dataset.folder / "tone_agent.json"]
    found = json.loads(invoke(*command, *rubric).stdout)["systems"]["mine"]
    # The rubric names kinds of answers: the same one to both styles is never told apart.
    # Wilson's interval of 0 of 4: its upper end is z^2 / (n + z^2).
    contrast = {"mean": 0.0, "standard_error": 0.0, "n_scored": 4, "n_asked": 4}
    assert found["contrast"] == contrast | {"wilson": [0.0, pytest.approx(1.959964**2 / (4 + 1.959964**2))]}
    assert "told apart" in (tmp_path / "o/table2.md").read_text()
    assert (tmp_path / "o" / load_rows(tmp_path / "o/mine.jsonl")[0].question_clip).is_file()
    with ScriptedEndpoint(judge) as server:
        for words in (["--judge", judge_file(tmp_path, server)], [*rubric, "--answers", 2]):
            result = CliRunner().invoke(app, list(map(str, [*command, *words])))
            assert "holds rows with other" in str(result.exception)


def test_ratings_by_people_are_set_against_the_scores(world: Any, tmp_path: Path) -> None:
    folder, dataset = world
    queries = dataset.of_role("test")
    mine = copies(tmp_path / "mine", dataset, folder / "good.wav")
    bad = tmp_path / "bad"
    bad.mkdir()
    for query in queries:
        write_clip(bad / f"{query.id}.wav", read_clip(dataset.folder / query.clip))
    lines = ["id,system,category,rater,score"]
    lines += [
        f"{q.id},{name},{q.category},r{n},{score}" for q in queries for name, score in (("mine", 5), ("bad", 2)) for n in (1, 2)
    ]
    (tmp_path / "human.csv").write_text("\n".join(lines) + "\n")
    with ScriptedEndpoint(
        lambda sent, _: Say(json.dumps({"reasoning": "", "score": 5 if GOOD[:12] in said(sent) else 1}))
    ) as server:
        command = ["bench", "paras2s", folder / "run/data", "--system", f"mine={mine}", "--system", f"bad={bad}"]
        command += ["--judge", judge_file(tmp_path, server), "--human", tmp_path / "human.csv", "--out", tmp_path / "o"]
        found = json.loads(invoke(*command, "--cache-dir", tmp_path / "c", "--json").stdout)["human"]["all"]
    assert (found["n"], found["without_score"]) == (16, 0)
    assert found["pearson"]["value"] == pytest.approx(1.0)
    assert "mine" in (tmp_path / "o/human.md").read_text()


def test_a_curated_dataset_and_a_runs_are_benched_alike_and_bad_use_is_named(world: Any, tmp_path: Path) -> None:
    _, dataset = world
    assert load_manifest(dataset.folder).queries == dataset.queries
    empty = tmp_path / "empty"
    empty.mkdir()
    for words, complaint in (
        (["--system", "mine"], "expected NAME=SYSTEM"),
        (["--system", "a=x", "--system", "a=y"], "given twice"),
        (["--system", f"a={empty}"], "holds no answer to any of these 8 questions; expected files such as"),
        (["--system", "a=nowhere"], "is no folder, no YAML of an endpoint, and neither cascade nor topline"),
        (["--system", "a=topline"], "the topline needs a curation's YAML"),
        (["--system", f"a={empty}", "--on", "rl"], "no queries of role rl"),
    ):
        command = ["bench", "paras2s", str(dataset.folder), *words, "--judge", "rubric", "--out", str(tmp_path / "o")]
        result = CliRunner().invoke(app, [*command, "--tone", str(dataset.folder / "tone_agent.json")])
        assert complaint in str(result.exception)


def test_what_a_system_still_knows(world: Any, tmp_path: Path) -> None:
    items = [
        {"id": "g1", "prompt": "What is the colour of grass? A. red B. green", "reference": "B"},
        {"id": "g2", "prompt": "What is two and two? A. four B. five", "reference": "A"},
    ]
    (tmp_path / "openbookqa.jsonl").write_text("\n".join(map(json.dumps, items)) + "\n")
    answers = tmp_path / "answers"
    answers.mkdir()
    for item, clip in zip(items, speak_plain(["The answer is B, green.", "The answer is B, five."]), strict=True):
        write_clip(answers / f"{item['id']}.wav", clip)
    items_file = tmp_path / "openbookqa.jsonl"
    command = ["bench", "voicebench", items_file, "--system", answers, "--out", tmp_path / "v.jsonl", "--json"]
    found = json.loads(invoke(*command).stdout)
    assert found["subsets"]["openbookqa"]["mean"] == 50.0
    assert found["subsets"]["overall"]["n_scored"] == 2
    beside = [
        "bench",
        "paras2s",
        world[1].folder,
        "--system",
        f"mine={world[0] / 'run/sft'}",
        "--voicebench",
        f"mine={tmp_path / 'v.jsonl'}",
    ]
    beside += ["--judge", "rubric", "--tone", world[1].folder / "tone_agent.json", "--out", tmp_path / "o", "--json"]
    assert json.loads(invoke(*beside).stdout)["systems"]["mine"]["voicebench"]["mean"] == 50.0
    assert (tmp_path / "o/table2.md").read_text().splitlines()[0].endswith("still knows, of 100 |")
    (answers / "g1.wav").unlink()
    found = json.loads(invoke(*command, status=1).stdout)
    assert (found["subsets"]["openbookqa"]["mean"], found["subsets"]["openbookqa"]["n_asked"]) == (0.0, 2)
    questions = tmp_path / "questions"
    questions.mkdir()
    for item, clip in zip(items, speak_plain([one["prompt"] for one in items]), strict=True):
        write_clip(questions / f"{item['id']}.wav", clip)
    tiny = [
        "bench",
        "voicebench",
        tmp_path / "openbookqa.jsonl",
        "--system",
        world[0] / "run/sft",
        "--out",
        tmp_path / "t.jsonl",
    ]
    assert json.loads(invoke(*tiny, "--questions", questions, "--json").stdout)["subsets"]["openbookqa"]["n_asked"] == 2


def test_averages_are_those_of_the_papers_table() -> None:
    """The published sets of Kimi-Audio SFT give its published averages; see `metrics` for the row that does not."""
    published = dict(zip(PAPER_SETS, (4.393, 4.090, 3.530, 4.291, 4.121, 3.307), strict=True))
    rows = []
    for name, mean in published.items():
        base = load_rows_of(name)
        # Two answers whose mean is the published one.
        rows += [base(0, min(5.0, mean + 0.1)), base(1, 2 * mean - min(5.0, mean + 0.1))]
    found = table_2({"SFT": rows})["SFT"]
    assert found["synthetic"]["mean"] == pytest.approx(4.076, abs=5e-4)
    assert found["real"]["mean"] == pytest.approx(3.714, abs=5e-4)
    assert found["average"]["mean"] == pytest.approx(3.955, abs=5e-4)
    assert columns({"SFT": found}) == list(PAPER_SETS)
    assert markdown({"SFT": found}).splitlines()[0].startswith(
        "| system | age | emotion | gender | sarcasm | iemocap | meld | synthetic | real | average |"
    )  # fmt: skip


def load_rows_of(category: str) -> Any:
    from paras2s.bench.results import AnswerRow

    def made(number: int, score: float) -> AnswerRow:
        return AnswerRow(
            system="s", query_id=f"{category}{number}", contrast_id=f"{category}{number}", category=category, style="sad",
            question_text="q", question_clip="q.wav", answer_index=0, text_stream="", transcript=None, tone=None,
            tone_scores={}, score=score, unscored=None, reason="", family=None, fitting=score >= 4, answer_clip="a.wav",
            duration_s=1.0,
            word_error_rate=None, judge="j", model_score=None,
        )  # fmt: skip

    return made


def test_a_cell_says_what_is_missing() -> None:
    one = {"mean": 3.456, "standard_error": 0.1, "n_scored": 3, "n_asked": 4}
    assert cell(one) == "3.46 ± 0.10 (3 of 4 scored)"
    assert cell({**one, "n_scored": 4, "standard_error": None}) == "3.46"
    assert cell({**one, "mean": None, "n_scored": 0}) == "- (0 of 4 scored)"
