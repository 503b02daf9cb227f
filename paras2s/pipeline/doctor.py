"""Checks of the installation: packages, model files, programs, disk."""

from __future__ import annotations

import importlib.metadata
import platform
import shutil
from typing import Any

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from paras2s.audio.assets import ASSETS, asset_path
from paras2s.errors import AssetError
from paras2s.utils.process_pool import cores

# Package, and what does not work without it.
PACKAGES = {
    "torch": "everything that trains or samples",
    "ray": "`paras2s align` and the demo",
    "faster-whisper": "transcripts: filters, judge, bench",
    "onnxruntime": "pitch, quality",
    "piper-tts": "speech synthesis in `paras2s data` (runs as a program of its own)",
    "pyworld": "speaker and style in `paras2s data`",
    "pycodec2": "the embedded codec, so every embedded policy",
    "pyloudnorm": "loudness in the blueprint",
    "transformers": "sentence embeddings: policy and judge",
    "peft": "LoRA",
    "onnx": "quality",
    "rapidfuzz": "search for near-duplicates in a curation",
}
# Programs that only some users need.
PROGRAMS = {
    "espeak-ng": "curation with voices of engine espeak, `bench detect --baseline phonemes` (Debian: espeak-ng)",
    "c++": "the compiled sampling step of small policies; without it they sample more slowly (Debian: g++)",
}
# Packages that only some users need.
OPTIONAL = {
    "tiktoken": "Kimi-Audio and GLM-4-Voice (pip install 'paras2s[models]')",
    "openai": "LLM judges (pip install 'paras2s[judge]') and curation (pip install 'paras2s[curate]')",
    "funasr": "TRACE's emotion scores (pip install 'paras2s[trace]')",
    "speechbrain": "TRACE's accent scores (pip install 'paras2s[trace]')",
    "torchaudio": "TRACE's emotion and accent scores (the build of your torch; PyPI's for Linux is CUDA's)",
    "starlette": "the studio (pip install 'paras2s[studio]')",
    "uvicorn": "the studio's server (pip install 'paras2s[studio]')",
    "wandb": "curves and answers at Weights & Biases (pip install 'paras2s[wandb]')",
    "trackio": "the same in Trackio (pip install 'paras2s[trackio]')",
    "tensorboard": "the same in TensorBoard (pip install 'paras2s[tensorboard]')",
}


def requested_versions() -> dict[str, SpecifierSet]:
    """Return the versions that this package requests of others, by name and over all its parts; {} if it is not installed."""
    versions: dict[str, SpecifierSet] = {}
    try:
        lines = importlib.metadata.requires("paras2s") or []
    except importlib.metadata.PackageNotFoundError:
        return {}
    for requirement in map(Requirement, lines):
        versions[requirement.name] = versions.get(requirement.name, SpecifierSet()) & requirement.specifier
    return versions


def examine() -> dict[str, Any]:
    """Return the state of every part, and facts of the machine. A part that is not `needed` may be missing."""
    parts: list[dict[str, Any]] = []
    requested = requested_versions()
    for package, stops in (PACKAGES | OPTIONAL).items():
        try:
            version, versions = importlib.metadata.version(package), requested.get(package, SpecifierSet())
            ok = versions.contains(version, prereleases=True)
            version = version if ok else f"{version}; needs {versions}"
        except importlib.metadata.PackageNotFoundError:
            hint = "; pip install 'paras2s[offline]'" if package in PACKAGES else ""
            version, ok = f"not installed{hint}", False
        parts.append({"part": package, "ok": ok, "is": version, "switches_off": stops, "needed": package in PACKAGES})
    for name, asset in ASSETS.items():
        try:
            parts.append({"part": name, "ok": True, "is": asset_path(name).name, "switches_off": asset.switches_off})
        except AssetError as error:
            parts.append({"part": name, "ok": False, "is": str(error), "switches_off": asset.switches_off})
    for program, stops in PROGRAMS.items():
        path = shutil.which(program)
        parts.append({"part": program, "ok": bool(path), "is": path or "not installed", "switches_off": stops, "needed": False})
    disk_gib = shutil.disk_usage(".").free / 2**30
    parts.append({"part": "disk", "ok": disk_gib > 1, "is": f"{disk_gib:.0f} GiB free", "switches_off": "runs of any kind"})
    for part in parts:
        part.setdefault("needed", True)
    machine = {"python": platform.python_version(), "cores": cores(), "platform": platform.platform()}
    return {"machine": machine, "parts": parts}
