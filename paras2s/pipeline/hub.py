"""`paras2s push` and `pull`: policies, reward models, datasets, rollouts and preferences, to and from the Hugging Face Hub.

What is sent is chosen by the kind of the folder, from a list of its files; hidden files, caches, keys, optimiser states and
paths of this machine are left out. The library resumes a broken upload or download, and reads the token; it is never printed.
"""

from __future__ import annotations

import contextlib
import re
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import TYPE_CHECKING

from paras2s import __version__
from paras2s.errors import ConfigError, DataError, HubError, ParaS2SError, StorageError, one_line
from paras2s.pipeline.hub_cards import make_card
from paras2s.utils.io import path_inside, write_text
from paras2s.utils.suggest import nearest_file

if TYPE_CHECKING:
    from huggingface_hub import HfApi

CARD = "README.md"
# Before the name of a repository that is no model, as in the hub's own addresses.
DATASETS = "datasets/"
PULLED = ".cache/huggingface"


@dataclass(frozen=True)
class Kind:
    """A kind of folder that can be sent: its hub type, marks that it is known by, its files, and the next command after pull.

    `below` is the folder of the repository that its files go to; a card stays above.
    """

    name: str
    repo_type: str
    marks: tuple[str, ...]
    files: tuple[str, ...]
    next_command: str
    below: str = ""


# In this order: a trained adapter of a reward model has the files of a policy's adapters as well.
KINDS = (
    Kind(
        "reward model",
        "model",
        ("reward_model.json", "omni.json"),
        ("reward_model.*", "known_range.safetensors", "agreement.json", "omni.json", "adapter_*", "*processor_config.json"),
        "paras2s judge answer question.wav answer.wav --judge RUN, where this is RUN/reward and its dataset RUN/data",
    ),
    Kind(
        "dataset",
        "dataset",
        ("queries.parquet",),
        (
            *("queries.parquet", "demonstrations.parquet", "candidates.parquet", "tone_*.json", "style_audibility.json"),
            *("queries/*.wav", "answers/*.wav"),
        ),
        "paras2s bench template {out} questions",
    ),
    Kind(
        "preferences",
        "dataset",
        ("preferences.jsonl",),
        ("preferences.jsonl", "*.wav", "*.flac", "*.mp3", "*.tokens.npz"),
        "paras2s align CONFIG --preferences {out}/preferences.jsonl",
    ),
    Kind("rollouts", "dataset", ("step_*.parquet",), ("index.jsonl", "step_*.parquet"), "paras2s rollouts {out}", "rollouts/"),
    Kind("policy", "model", ("policy.json", "config.json", "adapter_config.json"), ("*",), "paras2s talk {out}"),
)
# Names that are left out of every folder: states of optimisers, caches, keys, and paths of this machine.
LEFT_OUT = (
    *("optimi[sz]er*", "trainer.json", "*.partial", "*.tmp", "*.lock", "*.log", "cache", "__pycache__"),
    *("*.pem", "*.key", "id_rsa*", "id_ed25519*", "credentials*", "took.json", "parts.json"),
)
# Folders of a run that can be sent.
IN_A_RUN = ("aligned", "sft", "reward", "data", "rollouts")


@dataclass(frozen=True)
class SentFile:
    """A file to be sent: its name in the repository, its path and its size."""

    name: str
    path: Path
    size: int


@dataclass(frozen=True)
class Upload:
    """The files of a folder that are to be sent, and those that are not; `has_card`: the folder has a card of its own."""

    folder: Path
    kind: Kind
    files: tuple[SentFile, ...]
    left_out: tuple[str, ...]
    has_card: bool

    @property
    def bytes(self) -> int:
        """The size of all files."""
        return sum(file.size for file in self.files)


@dataclass(frozen=True)
class Sent:
    """A repository after a push: its full name, its commit, whether it is private, and what was sent."""

    repo: str
    commit: str
    private: bool
    files: int
    bytes: int


def plan_upload(folder: Path, include: Sequence[str] = ()) -> Upload:
    """Choose the files of a folder; `include`: patterns of names that are sent although they would be left out.

    Raises:
        ConfigError: no folder, or of no known kind. DataError: a link that leaves the folder.
    """
    if not folder.is_dir():
        raise ConfigError(f"{folder}: no such folder{nearest_file(folder)}")
    kind = kind_of_folder(folder)
    if kind.name == "policy" and not (folder / CARD).is_file():
        raise ConfigError(f"{folder}: has no card ({CARD}); `paras2s export {folder}` writes the policy with a card: push that")
    sent, left_out = [], []
    for path in sorted(path for path in folder.rglob("*") if not path.is_dir()):
        name = path.relative_to(folder).as_posix()
        if not _chosen(name, kind, include):
            left_out.append(name)
            continue
        inside = path_inside(folder, name)
        if inside is None:
            raise DataError(f"{path}: a link that leaves the folder; copy the file to it, or remove the link")
        sent.append(SentFile(name if name == CARD else kind.below + name, path, path.stat().st_size))
    return Upload(folder, kind, tuple(sent), tuple(left_out), any(file.name == CARD for file in sent))


def kind_of_folder(folder: Path) -> Kind:
    """Return the kind of a folder by the files in it.

    Raises:
        ConfigError: it is a run, a training checkpoint, or unknown; says which folders to give.
    """
    for kind in KINDS:
        if any(path for mark in kind.marks for path in folder.glob(mark)):
            return kind
    if (folder / "trainer.json").is_file():
        raise ConfigError(f"{folder}: is a training checkpoint; `paras2s export {folder}` makes a policy of it: push that")
    existing = [str(folder / name) for name in IN_A_RUN if (folder / name).is_dir()]
    if existing:
        raise ConfigError(f"{folder}: is a run; push one of its folders ({', '.join(existing)}), or an export of its policy")
    known = "; ".join(f"{kind.name} ({' or '.join(kind.marks)})" for kind in KINDS)
    raise ConfigError(f"{folder}: holds none of these: {known}")


def _chosen(name: str, kind: Kind, include: Sequence[str]) -> bool:
    if any(fnmatch(name, pattern) for pattern in include):
        return True
    parts = name.split("/")
    if any(part.startswith(".") or any(fnmatch(part, pattern) for pattern in LEFT_OUT) for part in parts):
        return False
    return name == CARD or any(fnmatch(name, pattern) for pattern in kind.files)


def parse_repo(name: str) -> tuple[str, str]:
    """Return the id and the type of a repository: USER/NAME is a model, datasets/USER/NAME a dataset.

    Raises:
        ConfigError: neither.
    """
    repo_id = name.removeprefix(DATASETS)
    if not re.fullmatch(r"[\w.-]+/[\w.-]+", repo_id, re.ASCII):
        raise ConfigError(f"{name}: give USER/NAME, or {DATASETS}USER/NAME for a dataset")
    return repo_id, "dataset" if name.startswith(DATASETS) else "model"


def address(repo: str, kind: Kind) -> str:
    """Return the full name of the repository that a kind of folder is sent to.

    Raises:
        ConfigError: no repository's name, or that of a dataset for a model.
    """
    repo_id, repo_type = parse_repo(repo)
    if repo_type == "dataset" and kind.repo_type == "model":
        raise ConfigError(f"{repo}: a {kind.name} goes to a repository of models; give {repo_id}")
    return repo_id if kind.repo_type == "model" else DATASETS + repo_id


def push(upload: Upload, repo: str, public: bool) -> Sent:
    """Send files to a repository, which is made if it does not exist: private, unless `public`.

    Raises:
        ConfigError: the repository exists and is public, but `public` is false.
        HubError: the hub cannot be reached, or refuses; sent files stay there, and the same call goes on from them.
    """
    from huggingface_hub.errors import RepositoryNotFoundError

    name = address(repo, upload.kind)
    repo_id, repo_type = parse_repo(name)
    with _hub_errors(name, writes=True):
        api = _open_api()
        try:
            private = bool(api.repo_info(repo_id, repo_type=repo_type).private)
        except RepositoryNotFoundError:
            api.create_repo(repo_id, repo_type=repo_type, private=not public, exist_ok=True)
            private = not public
        if not private and not public:
            raise ConfigError(f"{name}: exists and is public; add --public to send this to everyone, or give another name")
        # The hub's own card may have been edited there.
        writes_card = not upload.has_card and not api.file_exists(repo_id, CARD, repo_type=repo_type)
        with _staged(upload, make_card(upload.kind.name, upload.folder, name) if writes_card else None) as folder:
            message = f"paras2s push: {upload.kind.name}"
            commit = api.upload_folder(repo_id=repo_id, repo_type=repo_type, folder_path=folder, commit_message=message)
    return Sent(name, commit.oid, private, len(upload.files) + writes_card, upload.bytes)


@contextlib.contextmanager
def _staged(upload: Upload, card: str | None) -> Iterator[Path]:
    """Make a folder of links to exactly the files that are sent; it lasts as long as the block."""
    with tempfile.TemporaryDirectory(prefix="paras2s-push-") as staged:
        for file in upload.files:
            link = Path(staged) / file.name
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(file.path.resolve())
        if card is not None:
            write_text(Path(staged) / CARD, card)
        yield Path(staged)


@dataclass(frozen=True)
class Download:
    """A repository at a commit, with the names and sizes of its files."""

    repo: str
    commit: str
    files: Mapping[str, int]


def plan_download(repo: str, out: Path, revision: str | None = None) -> Download:
    """List the files of a repository at a branch, tag or commit.

    Raises:
        StorageError: `out` holds something else. HubError: the hub cannot be reached, or has no such repository or revision.
    """
    repo_id, repo_type = parse_repo(repo)
    if out.exists() and not (out / PULLED).is_dir() and (not out.is_dir() or any(out.iterdir())):
        raise StorageError(f"{out}: exists already; give another folder, or delete it")
    with _hub_errors(repo, writes=False):
        api = _open_api()
        commit = str(api.repo_info(repo_id, repo_type=repo_type, revision=revision).sha)
        tree = api.list_repo_tree(repo_id, recursive=True, revision=commit, repo_type=repo_type)
        # Folders have no size.
        files = {entry.path: entry.size for entry in tree if hasattr(entry, "size")}
    return Download(repo, commit, files)


def pull(download: Download, out: Path) -> Kind | None:
    """Fetch a repository at a commit to a folder, and return its kind; nothing of it is run.

    Raises:
        HubError: the hub cannot be reached, or refuses; the same call goes on from the fetched files.
    """
    repo_id, repo_type = parse_repo(download.repo)
    with _hub_errors(download.repo, writes=False):
        _open_api().snapshot_download(repo_id, repo_type=repo_type, revision=download.commit, local_dir=out)
    missing = [name for name in download.files if not (out / name).is_file()]
    if missing:
        raise HubError(f"{download.repo}: {len(missing)} files are missing after the download ({missing[0]} ...); run it again")
    return next((kind for kind in KINDS if any(path for mark in kind.marks for path in out.glob(kind.below + mark))), None)


def _open_api() -> HfApi:
    from huggingface_hub import HfApi
    from huggingface_hub.utils import logging

    logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    return HfApi(library_name="paras2s", library_version=__version__)


@contextlib.contextmanager
def _hub_errors(repo: str, writes: bool) -> Iterator[None]:
    """Turn errors of the library into one line that says what to do, without the token."""
    import httpx2
    from huggingface_hub import errors, get_token

    token = get_token()
    if writes and token is None:
        raise HubError("no token for the hub; set HF_TOKEN, or run `hf auth login`")
    try:
        yield
    except ParaS2SError:
        raise
    except errors.OfflineModeIsEnabled as error:
        raise HubError(f"{repo}: HF_HUB_OFFLINE is set, so the hub is not asked; unset it and run again") from error
    except errors.RevisionNotFoundError as error:
        raise HubError(
            f"{repo}: has no such revision; give a branch, a tag or a commit of it, or leave --revision out"
        ) from error
    except errors.GatedRepoError as error:
        raise HubError(f"{repo}: is gated; accept its conditions on its page, then run again with your token") from error
    except errors.RepositoryNotFoundError as error:
        other = "" if repo.startswith(DATASETS) else f"; a dataset is named {DATASETS}{repo}"
        raise HubError(f"{repo}: does not exist, or your token may not see it{other}") from error
    except errors.HfHubHTTPError as error:
        status = error.response.status_code
        if status == 401:
            raise HubError("the hub does not know your token; renew HF_TOKEN, or run `hf auth login`") from error
        if status == 403:
            raise HubError(
                f"{repo}: your token may not write there; take a token with the right to write, or a name of yours"
            ) from error
        said = error.server_message or one_line(error)
        raise HubError(
            f"{repo}: the hub refused with status {status}: {_without(token, said)}; run the same command again"
        ) from error
    except (httpx2.RequestError, errors.LocalEntryNotFoundError) as error:
        cause = _without(token, one_line(error)[:200])
        raise HubError(f"the hub cannot be reached ({cause}); check the network and HF_ENDPOINT, and run again") from error
    except (OSError, RuntimeError, ValueError) as error:
        # Of the upload's compiled part, and of a card that the hub does not accept.
        raise HubError(f"{repo}: {_without(token, one_line(error)[:300])}; what was sent is kept, run again") from error


def _without(token: str | None, text: str) -> str:
    return text.replace(token, "...") if token else text
