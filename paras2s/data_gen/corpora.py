"""Loaders of published corpora of spoken queries, in the folders of their releases: IEMOCAP, MELD, StyleTalk, DailyTalk.

After ParaS2S: six emotions (Table 4), at least five words (footnote 10), IEMOCAP sessions 1 and 2 for the test and 3 to 5
for training (footnote 17), MELD by its own splits. The relevance filter (appendix B.1) comes after, in the curation;
whether a clip says its text is not checked.

What keeps the splits apart, and what does not:

- IEMOCAP: speakers and dialogues are disjoint, words are not: every pair of actors played the same scripts.
- MELD: dialogues are disjoint, speakers are not: it is one show with six leads. Of its 881 turns of the test with five
  words, and 3,447 of train (measured on the published tables), 38 of the test's 58 speakers are in train too, and one scene
  (season 6, episode 4, 00:10:08) is in both, with one turn word for word the same.
- StyleTalk: measured on the published tables, train (1,827 turns of 1,745 dialogues) and eval (855 of 478) share no dialogue
  and no context, but 26 turns' words. Two emotions or more for one turn, the contrast, are given in 82 dialogues of train and
  358 of eval.
- DailyTalk: it has no splits; a dialogue's number draws its own. Its two speakers are in all of them.
"""

from __future__ import annotations

import csv
import io
import re
import shlex
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from paras2s.audio.clip import read_clip
from paras2s.errors import AudioError, DataError, one_line
from paras2s.types import PastTurn
from paras2s.utils.io import read_json, read_text, without_mac_files
from paras2s.utils.seeds import seed_of


@dataclass(frozen=True)
class CorpusTurn:
    """A user's turn of a published corpus. Made by the loaders; read by the curation.

    `id` is unique within the corpus and safe as a file name; `corpus` is its name in `CORPORA`; `split` is "train",
    "validation" or "test". `style` is our word (happy, surprised, sad, angry, fear, disgust), for StyleTalk its own
    label. `dialogue` is unique within the corpus. `clip` None: the corpus has no audio of it. `answer` and `answer_style`
    None: the corpus gives no answer. `context` is the dialogue before the turn in one text, `history` its recorded turns,
    where the corpus has them; its clips are absolute paths, and this turn's speaker is its user.
    """

    id: str
    corpus: str
    split: str
    text: str
    style: str
    speaker: str
    dialogue: str
    clip: Path | None
    answer: str | None = None
    answer_style: str | None = None
    context: str = ""
    history: tuple[PastTurn, ...] = ()


@dataclass(frozen=True)
class SpokenTurn:
    """A recorded turn of a dialogue: its clip, its words, its speaker, and the corpus's word for the emotion."""

    path: Path
    text: str
    speaker: str
    emotion: str


@dataclass(frozen=True)
class LeftOut:
    """An utterance that was left out, or a part of a corpus that is not on this disk, with the reason."""

    id: str
    corpus: str
    reason: str


Loaded = tuple[list[CorpusTurn], list[LeftOut]]

IEMOCAP_STYLES = {"hap": "happy", "sur": "surprised", "sad": "sad", "ang": "angry", "fea": "fear", "dis": "disgust"}
MELD_STYLES = {
    "joy": "happy",
    "surprise": "surprised",
    "sadness": "sad",
    "anger": "angry",
    "fear": "fear",
    "disgust": "disgust",
}
IEMOCAP_SPLITS = {1: "test", 2: "test", 3: "train", 4: "train", 5: "train"}
# MELD's word for a split, ours, and the folder of its clips.
MELD_SPLITS = (
    ("train", "train", "train_splits"),
    ("dev", "validation", "dev_splits_complete"),
    ("test", "test", "output_repeated_splits_test"),
)
MELD_COLUMNS = ("Utterance", "Speaker", "Emotion", "Dialogue_ID", "Utterance_ID")
STYLETALK_SPLITS = (("train", "train"), ("eval", "test"))
DAILYTALK_STYLES = {
    "happiness": "happy",
    "surprise": "surprised",
    "sadness": "sad",
    "anger": "angry",
    "fear": "fear",
    "disgust": "disgust",
}
DAILYTALK_LAYOUT = "expected DailyTalk's metadata.json and data/0/0_1_d0.wav with 0_1_d0.txt, and so on"
DAILYTALK_TURN = re.compile(r"(\d+)_(\d+)_d(\d+)")
NO_EMOTION = "no emotion"
# Of ten dialogues, one for the test and one for validation.
DAILYTALK_SPLITS = ("test", "validation", *["train"] * 8)
STYLETALK_COLUMNS = ("diag_id", "context", "curr_audio_id", "curr_text", "res_text", "curr_emotion", "res_emotion")

IEMOCAP_LAYOUT = (
    "expected IEMOCAP_full_release, with Session1/dialog/EmoEvaluation/Ses01F_impro01.txt (labels), "
    "Session1/dialog/transcriptions/Ses01F_impro01.txt (words) and "
    "Session1/sentences/wav/Ses01F_impro01/Ses01F_impro01_F000.wav"
)
MELD_LAYOUT = (
    "expected MELD.Raw, with train_sent_emo.csv, dev_sent_emo.csv, test_sent_emo.csv and the sound of its videos as "
    "train_splits/dia0_utt0.wav, dev_splits_complete/, output_repeated_splits_test/ or audio/{train,dev,test}/dia0_utt0.wav"
)
STYLETALK_LAYOUT = "expected StyleTalk's train.csv and eval.csv, and, if it has sound, audio/book_269/c_2.wav"

# A turn's name: dialogue, session, speaker. The letter after the session is who wore the markers, not the speaker.
_TURN = re.compile(r"(Ses0([1-5])[FM]_\w+)_([FM])(?:\d+|XX\d+)")
_LABELLED = re.compile(r"\[[\d.\s]+-[\d.\s]+\]\s+(\S+)\s+(\w+)\s+\[[^\]]*\]")
_TRANSCRIBED = re.compile(r"(Ses\w+)\s*(?:\[[^\]]*\])?\s*:\s*(.*)")
# Noises ("[LAUGHTER]") and stage directions ("(She sits down"), which are not spoken. MELD cuts some before they close.
_UNSPOKEN = re.compile(r"[\[(][^\])]*(?:[\])]|$)")
# Bytes of Windows' code page that reached a file as they were: quotes as in "don\x92t", an ellipsis, two dashes, a space.
_PLAIN = str.maketrans(
    {**dict.fromkeys("\x91\x92‘’", "'"), **dict.fromkeys("\x93\x94“”", '"'), "\x85": "…", "\x96": "–", "\x97": "—"}
)


def load_iemocap(root: Path, min_words: int = 5, *, excited_is_happy: bool = False) -> Loaded:
    """Load the turns of IEMOCAP_full_release with the label its raters agreed on, and the list of turns left out.

    `exc` (excited) is left out like neu, fru, xxx and oth: much of the literature counts it as happy, ParaS2S does not say
    so; `excited_is_happy` does. Self-evaluations and single raters' labels are not read. Sessions 1 and 2 are "test", 3
    to 5 "train"; a missing session is listed among the turns left out. `speaker` is session and gender
    ("ses01_F"). Marks in brackets, such as [LAUGHTER], are taken out of the text before words are counted.

    Raises:
        DataError: no label or transcription files, a broken line (names file and line), or no clip that can be read.
    """
    styles = {**IEMOCAP_STYLES, "exc": "happy"} if excited_is_happy else IEMOCAP_STYLES
    turns: list[CorpusTurn] = []
    left: list[LeftOut] = []
    silent: list[LeftOut] = []
    labels: dict[str, str] = {}
    words: dict[str, str] = {}
    for session in IEMOCAP_SPLITS:
        dialog = root / f"Session{session}" / "dialog"
        # Not "*.txt": an archive made on a Mac holds a binary "._Ses01F_impro01.txt" for each file. And no folder below:
        # those hold single raters' labels.
        label_files = sorted((dialog / "EmoEvaluation").glob("Ses*.txt"))
        if not label_files:
            left.append(LeftOut(f"Session{session}", "iemocap", f"no label files in {dialog / 'EmoEvaluation'}"))
        for path in label_files:
            labels.update(_iemocap_labels(path, labels))
        for path in sorted((dialog / "transcriptions").glob("Ses*.txt")):
            words.update(_iemocap_words(path, words, left))
    for kind, rows in (("label files", labels), ("transcriptions", words)):
        if not rows:
            raise DataError(f"{root}: no {kind} of IEMOCAP; {IEMOCAP_LAYOUT}")
    left += [LeftOut(turn, "iemocap", "transcribed, but without a label") for turn in words if turn not in labels]
    for turn, label in labels.items():
        match = _TURN.fullmatch(turn)
        assert match, turn  # As `_iemocap_labels` made sure.
        dialogue, session, gender = match[1], int(match[2]), match[3]
        text = _spoken(words.get(turn, ""))
        reason = _unfit(label, styles, text, min_words) if turn in words else "labelled, but without a transcription"
        if reason is not None:
            left.append(LeftOut(turn, "iemocap", reason))
            continue
        clip = root / f"Session{session}" / "sentences" / "wav" / dialogue / f"{turn}.wav"
        if (reason := _unusable_clip(clip)) is not None:
            silent.append(LeftOut(turn, "iemocap", reason))
            continue
        split, speaker = IEMOCAP_SPLITS[session], f"ses{session:02d}_{gender}"
        turns.append(CorpusTurn(turn, "iemocap", split, text, styles[label.lower()], speaker, dialogue, clip))
    return _checked(root, turns, left, silent, IEMOCAP_LAYOUT)


def load_meld(root: Path, min_words: int = 5) -> Loaded:
    """Load the turns of MELD.Raw by its own splits ("dev" is our "validation"), and the list of turns left out.

    A table or a folder of clips may also be in train/, dev/ or test/, as the archives unpack. The clips are videos, which
    are not decoded: beside each, or in audio/{train,dev,test}/, a WAV or FLAC file is expected; if only the video exists,
    the reason gives the command that extracts it. A missing table is listed among the turns left out.
    Stage directions in brackets are removed from the text. `speaker` is the role's name in the show.

    Raises:
        DataError: none of the three tables, a broken row (names file and line), or no clip that can be read.
    """
    turns: list[CorpusTurn] = []
    left: list[LeftOut] = []
    silent: list[LeftOut] = []
    tables = 0
    for theirs, split, folder in MELD_SPLITS:
        name = f"{theirs}_sent_emo.csv"
        table = next((path for path in (root / name, root / theirs / name) if path.is_file()), None)
        if table is None:
            left.append(LeftOut(name, "meld", f"no such table in {root}"))
            continue
        tables += 1
        seen: set[str] = set()
        for where, row in _rows(table, MELD_COLUMNS):
            numbers = [row[column].strip() for column in ("Dialogue_ID", "Utterance_ID")]
            if not all(number.isascii() and number.isdigit() for number in numbers):
                raise DataError(f"{where}: Dialogue_ID and Utterance_ID must be whole numbers, not {' and '.join(numbers)!r}")
            stem = "dia{}_utt{}".format(*map(int, numbers))
            # With the split: each table counts its dialogues from 0.
            turn, dialogue = f"{theirs}_{stem}", f"{theirs}_dia{int(numbers[0])}"
            if turn in seen:
                raise DataError(f"{where}: {stem} occurs more than once")
            seen.add(turn)
            label, text, speaker = row["Emotion"].strip().lower(), _spoken(row["Utterance"]), _plain(row["Speaker"])
            reason = _unfit(label, MELD_STYLES, text, min_words)
            if reason is None and not speaker:
                reason = "no speaker"
            if reason is not None:
                left.append(LeftOut(turn, "meld", reason))
                continue
            clip = _meld_clip(root, theirs, folder, stem)
            reason = _no_meld_clip(root, theirs, folder, stem) if clip is None else _unusable_clip(clip)
            if reason is not None:
                silent.append(LeftOut(turn, "meld", reason))
                continue
            turns.append(CorpusTurn(turn, "meld", split, text, MELD_STYLES[label], speaker, dialogue, clip))
    if not tables:
        raise DataError(f"{root}: no table of MELD; {MELD_LAYOUT}")
    return _checked(root, turns, left, silent, MELD_LAYOUT)


def load_styletalk(root: Path, min_words: int = 5) -> Loaded:
    """Load the last turns of StyleTalk with the answer that fits their tone ("eval" is our "test"), and the turns left out.

    `style` and `answer_style` are StyleTalk's emotions (friendly, unfriendly, ...); its speed and volume are not read, so two
    turns of a dialogue may have one style. `speaker` is "A" or "B", who speaks in this dialogue; the synthetic
    voices are not named, so nothing shows that a voice is in one split alone. The release has no audio of these turns:
    `clip` is None unless audio/<curr_audio_id> exists.

    Raises:
        DataError: neither of the two tables, a broken row (names file and line), or no existing clip can be read.
    """
    turns: list[CorpusTurn] = []
    left: list[LeftOut] = []
    silent: list[LeftOut] = []
    tables = 0
    seen: set[str] = set()
    for theirs, split in STYLETALK_SPLITS:
        table = root / f"{theirs}.csv"
        if not table.is_file():
            left.append(LeftOut(table.name, "styletalk", f"no such table in {root}"))
            continue
        tables += 1
        for where, row in _rows(table, STYLETALK_COLUMNS):
            # Both become file names: nothing may lead out of the corpus.
            dialogue, sound = row["diag_id"].strip(), row["curr_audio_id"].strip()
            audio_id = re.fullmatch(r"([\w-]+)/([\w-]+)\.\w+", sound)
            if not audio_id or audio_id[1] != dialogue:
                raise DataError(f"{where}: curr_audio_id {sound!r} is not of the form {dialogue or 'DIALOGUE'}/c_0.wav")
            utterance = re.fullmatch(r"([AB]):\s*(.*)", _plain(row["curr_text"]))
            if not utterance:
                raise DataError(f"{where}: curr_text does not begin with 'A: ' or 'B: '")
            turn = f"{dialogue}_{audio_id[2]}"
            if turn in seen:
                raise DataError(f"{where}: {sound} occurs more than once")
            seen.add(turn)
            speaker, text, style = utterance[1], utterance[2], row["curr_emotion"].strip()
            reason = _too_few(text, min_words) if style else "no emotion"
            if reason is not None:
                left.append(LeftOut(turn, "styletalk", reason))
                continue
            clip = root / "audio" / sound if (root / "audio" / sound).exists() else None
            if clip is not None and (reason := _unusable_clip(clip)) is not None:
                silent.append(LeftOut(turn, "styletalk", reason))
                continue
            answer, answer_style = _plain(row["res_text"]) or None, row["res_emotion"].strip() or None
            context = _plain(row["context"])
            turns.append(
                CorpusTurn(turn, "styletalk", split, text, style, speaker, dialogue, clip, answer, answer_style, context)
            )
    if not tables:
        raise DataError(f"{root}: no table of StyleTalk; {STYLETALK_LAYOUT}")
    return _checked(root, turns, left, silent, STYLETALK_LAYOUT)


def load_dailytalk(root: Path, min_words: int = 5) -> Loaded:
    """Load the turns of DailyTalk with an emotion, each behind the turns before it, and the list of turns left out.

    Whoever speaks a turn is the user in its history, and the other speaker the assistant. Turns of a dialogue that lacks one
    are left out with it, and so are those behind a clip that cannot be used. Raises DataError: metadata.json or all clips are
    missing, or no clip can be read; names the expected layout.
    """
    turns: list[CorpusTurn] = []
    left: list[LeftOut] = []
    silent: list[LeftOut] = []
    for name, spoken in dailytalk_dialogues(root).items():
        if isinstance(spoken, str):
            left.append(LeftOut(f"d{name}", "dailytalk", spoken))
            continue
        split = DAILYTALK_SPLITS[seed_of("dailytalk", name) % len(DAILYTALK_SPLITS)]
        unusable: str | None = None
        for number, turn in enumerate(spoken):
            id = f"d{name}_t{number}"
            unusable = unusable or _unusable_clip(turn.path)
            if (reason := _unfit(turn.emotion, DAILYTALK_STYLES, turn.text, min_words)) is not None:
                left.append(LeftOut(id, "dailytalk", reason))
            elif unusable is not None:
                silent.append(LeftOut(id, "dailytalk", unusable))
            else:
                history = tuple(
                    PastTurn("user" if past.speaker == turn.speaker else "assistant", past.text, str(past.path))
                    for past in spoken[:number]
                )
                style = DAILYTALK_STYLES[turn.emotion]
                turns.append(
                    CorpusTurn(id, "dailytalk", split, turn.text, style, turn.speaker, f"d{name}", turn.path, history=history)
                )
    return _checked(root, turns, left, silent, DAILYTALK_LAYOUT)


def dailytalk_dialogues(root: Path) -> dict[str, tuple[SpokenTurn, ...] | str]:
    """Return the turns of each dialogue of DailyTalk by its number, or why it cannot be used.

    In metadata.json a dialogue's number and a turn's number lead to the turn's emotion; a clip is
    data/DIALOGUE/TURN_SPEAKER_dDIALOGUE.wav, with its words in the same name's .txt. Raises DataError: metadata.json is
    missing, or no dialogue can be used; names the expected layout.
    """
    if not (root / "metadata.json").is_file():
        raise DataError(f"{root}: no metadata.json; {DAILYTALK_LAYOUT}")
    metadata = read_json(root / "metadata.json")
    folders = sorted((path for path in (root / "data").glob("*") if path.name.isdigit()), key=lambda path: int(path.name))
    dialogues = {
        path.name: _dailytalk_turns(path, metadata.get(path.name, {}) if isinstance(metadata, dict) else {}) for path in folders
    }
    if all(isinstance(turns, str) for turns in dialogues.values()):
        raise DataError(f"{root}: no dialogue that can be used; {DAILYTALK_LAYOUT}")
    return dialogues


def _dailytalk_turns(folder: Path, labels: Mapping[str, Mapping[str, str]]) -> tuple[SpokenTurn, ...] | str:
    turns: dict[int, SpokenTurn] = {}
    for clip in without_mac_files(folder.glob("*.wav")):
        name = DAILYTALK_TURN.fullmatch(clip.stem)
        if name is None or name[3] != folder.name:
            return "a clip is not named TURN_SPEAKER_dDIALOGUE"
        text = clip.with_suffix(".txt")
        words = " ".join(read_text(text).split()) if text.is_file() else ""
        if not words:
            return "a turn has no words"
        label = labels.get(name[1])
        if label is None or "emotion" not in label:
            return "a turn has no emotion in metadata.json"
        if int(name[1]) in turns:
            return "a turn occurs twice"
        turns[int(name[1])] = SpokenTurn(clip, words, f"dailytalk:{name[2]}", str(label["emotion"]) or NO_EMOTION)
    if not turns or sorted(turns) != list(range(len(turns))):
        return "a turn is missing"
    return tuple(turns[number] for number in range(len(turns)))


CORPORA: dict[str, Callable[..., Loaded]] = {
    "iemocap": load_iemocap,
    "meld": load_meld,
    "styletalk": load_styletalk,
    "dailytalk": load_dailytalk,
}


def _checked(root: Path, turns: list[CorpusTurn], left: list[LeftOut], silent: list[LeftOut], layout: str) -> Loaded:
    # A wrong folder looks like this, and would give an empty benchmark.
    if silent and not turns:
        first = f"{silent[0].id}: {silent[0].reason}"
        raise DataError(f"{root}: not one of {len(silent)} clips can be read, the first: {first}; {layout}")
    return turns, left + silent


def _iemocap_labels(path: Path, known: dict[str, str]) -> dict[str, str]:
    """Return the agreed label of each turn; the header and the single raters' lines are skipped."""
    labels: dict[str, str] = {}
    for number, line in enumerate(_text(path).split("\n"), start=1):
        line = line.strip(" \t\r")
        if not line.startswith("[") and not _TURN.search(line):
            continue
        match = _LABELLED.fullmatch(line)
        if not match or not _TURN.fullmatch(match[1]):
            raise DataError(f"{path}:{number}: not of the form '[start - end] turn label [valence, activation, dominance]'")
        if match[1] in labels or match[1] in known:
            raise DataError(f"{path}:{number}: {match[1]} is labelled more than once")
        labels[match[1]] = match[2]
    return labels


def _iemocap_words(path: Path, known: dict[str, str], left: list[LeftOut]) -> dict[str, str]:
    """Return the words of each turn. Lines such as "M: Yeah." have neither a name nor a clip and go to `left`."""
    words: dict[str, str] = {}
    for number, line in enumerate(_text(path).split("\n"), start=1):
        line = line.strip(" \t\r")  # Not bare: that takes "\x85", an ellipsis here, for a space.
        match = _TRANSCRIBED.fullmatch(line)
        if match and _TURN.fullmatch(match[1]):
            if words.get(match[1], known.get(match[1], match[2])) != match[2]:
                raise DataError(f"{path}:{number}: {match[1]} is transcribed more than once, in different words")
            words[match[1]] = match[2]
        elif line.startswith("Ses") or _TURN.search(line):
            raise DataError(f"{path}:{number}: not of the form 'turn [start-end]: words'")
        elif line:
            left.append(LeftOut(f"{path.stem}_line{number}", "iemocap", "a transcribed line without a turn's name"))
    return words


def _meld_stems(theirs: str, stem: str) -> list[str]:
    # Some clips of the test were cut wrongly; the corrected ones are beside them under the longer name.
    return [f"final_videos_test{stem}", stem] if theirs == "test" else [stem]


def _meld_clip(root: Path, theirs: str, folder: str, stem: str) -> Path | None:
    for name in _meld_stems(theirs, stem):
        for parent in (root / folder, root / theirs / folder, root / "audio" / theirs):
            for suffix in (".wav", ".flac"):
                if (clip := parent / f"{name}{suffix}").exists():
                    return clip
    return None


def _no_meld_clip(root: Path, theirs: str, folder: str, stem: str) -> str:
    """Return why an utterance has no audio file; if only a video exists, with the command that extracts one."""
    places = (root / folder, root / theirs / folder)
    for name in _meld_stems(theirs, stem):
        for parent in places:
            if (video := parent / f"{name}.mp4").exists():
                # To one channel by ffmpeg: it knows which of six is the centre, where the speech is; an average does not.
                sound = shlex.quote(str(parent / f"{stem}.wav"))
                return f"only a video, which is not decoded here; run: ffmpeg -i {shlex.quote(str(video))} -vn -ac 1 {sound}"
    return f"clip missing: no {stem}.wav, .flac or .mp4 in {places[0]}, {places[1]} or {root / 'audio' / theirs}"


def _unfit(label: str, styles: dict[str, str], text: str, min_words: int) -> str | None:
    if label.lower() not in styles:
        return f"label {label!r} is not one of {', '.join(styles)}"
    return _too_few(text, min_words)


def _too_few(text: str, min_words: int) -> str | None:
    # A dash between spaces is no word.
    count = sum(any(map(str.isalnum, word)) for word in text.split())
    return f"{count} words, fewer than {min_words}" if count < min_words else None


def _unusable_clip(clip: Path) -> str | None:
    """Return why a clip cannot be used, or None. It is decoded: MELD has silent clips, and some of minutes, cut wrongly."""
    if not clip.exists():
        return f"clip missing: {clip}"
    if not clip.is_file():
        return f"clip is not a file: {clip}"
    try:
        return None if read_clip(clip).samples.any() else f"clip is silent: {clip}"
    except AudioError as error:
        return f"clip cannot be used: {one_line(error)}"


def _spoken(text: str) -> str:
    return _plain(_UNSPOKEN.sub(" ", text))


def _plain(text: str) -> str:
    return " ".join(text.translate(_PLAIN).split())


def _text(path: Path) -> str:
    try:
        data = path.read_bytes()
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({one_line(error)})") from error
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError:
        # Windows' code page; as Latin-1 no byte is refused, and `_PLAIN` maps the bytes that differ.
        return data.decode("latin-1")


def _rows(path: Path, columns: tuple[str, ...]) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield the rows of a CSV table with "file:line" for errors (the last line of a row that has several)."""
    reader = csv.DictReader(io.StringIO(_text(path), newline=""), strict=True)
    try:
        missing = [column for column in columns if column not in (reader.fieldnames or ())]
        if missing:
            raise DataError(f"{path}:1: no column {', '.join(missing)}; these are the wrong table's columns")
        for row in reader:
            where = f"{path}:{reader.line_num}"
            # DictReader's marks of a row that is too long, or too short.
            if None in row or None in row.values():
                raise DataError(f"{where}: expected {len(reader.fieldnames or ())} cells, as in the first line")
            yield where, row
    except csv.Error as error:
        raise DataError(f"{path}:{reader.reader.line_num}: not a row of CSV ({one_line(error)})") from error
