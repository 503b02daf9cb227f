"""The speakers of the shipped scripts, made from Piper's one voice, and the styles that they and the agent speak in."""

from __future__ import annotations

from paras2s.audio.synthesis import Speaker, Style

# User styles: the four categories of ParaS2S, Table 4. Age and gender are the speaker's, so their delivery is plain.
USER_STYLES: dict[str, Style] = {
    "happy": Style(1.25, 1.6, 1.08, 1.0, 1.0),
    "sad": Style(0.85, 0.5, 0.80, 0.5, -3.0, breath=0.25),
    "angry": Style(1.10, 1.4, 1.15, 1.6, 4.0),
    "fear": Style(1.35, 0.8, 1.20, 0.7, 0.0, tremor_depth=0.08, breath=0.15),
    "surprised": Style(1.40, 1.8, 0.95, 1.1, 1.0),
    "disgust": Style(0.90, 0.9, 0.85, 0.9, 2.0),
    "sincere": Style(1.10, 1.2, 1.00, 0.9, 0.0),
    "sarcastic": Style(0.88, 1.5, 0.72, 0.9, 0.0),
    "adult": Style(),
    "child": Style(),
    "male": Style(),
    "female": Style(),
}

# Tones of the agent's answers: further apart than the users' styles, since they must survive 700 bit/s.
AGENT_TONES: dict[str, Style] = {
    "neutral": Style(),
    "cheerful": Style(1.18, 1.5, 1.14, 1.1, 1.5),
    "amazed": Style(1.6, 1.9, 0.86, 1.1, 0.5),
    "gentle": Style(0.86, 0.5, 0.84, 0.6, -2.0),
    "calm": Style(0.78, 0.8, 0.74, 1.0, 2.0),
}

# Piper's own voice: of four voices tried, Whisper reads this one best through the codec.
AGENT = Speaker("agent", 1.0, 1.0)
SPEAKERS: dict[str, dict[str, tuple[Speaker, ...]]] = {
    "train": {
        "male": (Speaker("m1", 0.94, 0.98), Speaker("m2", 1.04, 1.02), Speaker("m3", 1.14, 1.0)),
        "female": (Speaker("f1", 1.60, 1.14), Speaker("f2", 1.72, 1.18), Speaker("f3", 1.82, 1.15)),
        "child": (Speaker("c1", 2.20, 1.30), Speaker("c2", 2.34, 1.34), Speaker("c3", 2.46, 1.31)),
    },
    "validation": {
        "male": (Speaker("m6", 1.01, 0.99), Speaker("m7", 1.12, 1.015)),
        "female": (Speaker("f6", 1.63, 1.15), Speaker("f7", 1.79, 1.17)),
        "child": (Speaker("c6", 2.24, 1.31), Speaker("c7", 2.43, 1.335)),
    },
    "test": {
        "male": (Speaker("m4", 0.99, 1.0), Speaker("m5", 1.09, 1.01)),
        "female": (Speaker("f4", 1.66, 1.16), Speaker("f5", 1.77, 1.165)),
        "child": (Speaker("c4", 2.27, 1.32), Speaker("c5", 2.40, 1.325)),
    },
}
