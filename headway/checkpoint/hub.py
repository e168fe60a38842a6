"""Models of the Hugging Face hub: fetched without pickles, kept in its usual cache, with one-line errors."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from headway.checkpoint import place
from headway.checkpoint.files import shown
from headway.checkpoint.gguf import part_number
from headway.checkpoint.pickles import ENDINGS
from headway.checkpoint.safetensors import INDEX, SINGLE
from headway.errors import CheckpointError

# What a model needs to run here; never a pickle, and never the same weights in a second layout.
_WANTED = [
    *("*.json", "*.jinja", "*.model", "*.tiktoken", "vocab.txt", "merges.txt"),
    *(SINGLE, "model-?????-of-?????.safetensors", "adapter_model.safetensors"),
]
_UNWANTED = ["onnx/*", "openvino/*", "original/*", "runs/*", "checkpoint-*/*"]
_WEIGHTS = (SINGLE, INDEX, "adapter_model.safetensors")

_ID = re.compile(r"(?P<repo>[\w.-]+/[\w.-]+)(?::(?P<file>[^@]+))?(?:@(?P<revision>.+))?")


@dataclass(frozen=True)
class HubId:
    """`owner/name`, with the GGUF variant and the revision that were asked for."""

    repo: str
    file: str | None
    revision: str | None


def parse(ref: str) -> HubId | None:
    """`owner/name[:variant][@revision]` taken apart; None when `ref` is not of that form."""
    found = _ID.fullmatch(ref)
    return HubId(found["repo"], found["file"], found["revision"]) if found else None


def fetch(ref: str, revision: str | None = None, offline: bool | None = None, progress: bool = True) -> Path:
    """The local folder of a hub model `owner/name[@revision]`, or the file of a GGUF model.

    In a repository without safetensors the GGUF is taken; where there are several, `owner/name:Q4_K_M` chooses.
    HF_HOME, HF_ENDPOINT, HF_TOKEN and HF_HUB_OFFLINE count as everywhere; `offline` None asks them and HEADWAY_OFFLINE.
    What is in the cache is not fetched again, and a line that drops is taken up where it broke.
    CheckpointError in one line for what is not there, not allowed, not reachable or only there as a pickle.
    """
    hub_id = parse(ref)
    if hub_id is None:
        raise CheckpointError(f"{shown(ref)}: not a hub id, which is owner/name, with @revision if need be")
    revision = revision or hub_id.revision
    visit = _Visit(hub_id.repo, revision, _local_only(offline), progress)
    folder = visit.snapshot(_WANTED)
    if hub_id.file is None and any((folder / name).exists() for name in _WEIGHTS):
        return folder
    parts = _choose(hub_id, visit.files(folder))
    return visit.snapshot(parts) / parts[0]


def _local_only(asked: bool | None) -> bool:
    from huggingface_hub import is_offline_mode

    return (place.offline() or is_offline_mode()) if asked is None else asked


@dataclass(frozen=True)
class _Visit:
    """One repository at one revision, with the library's many errors turned into ours."""

    repo: str
    revision: str | None
    local: bool
    progress: bool

    def snapshot(self, patterns: list[str]) -> Path:
        """The folder in the cache after the files that match are in it."""
        from huggingface_hub import snapshot_download

        if self.progress and not self.local and not place.on_terminal() and not self._known():
            place.note(f"headway: fetching {self.repo} from the hub")
        try:
            with _bars(self.progress):
                folder = snapshot_download(
                    self.repo,
                    revision=self.revision,
                    local_files_only=self.local,
                    allow_patterns=patterns,
                    ignore_patterns=_UNWANTED,
                )
            return Path(folder)
        except Exception as error:  # the library's errors share no base; each becomes one line, its cause kept
            raise self._explained(error) from error

    def files(self, folder: Path) -> list[str]:
        """Names of the repository's files, or when offline of those in the cache."""
        if self.local:
            return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
        from huggingface_hub import HfApi

        try:
            return sorted(HfApi().list_repo_files(self.repo, revision=self.revision))
        except Exception as error:
            raise self._explained(error) from error

    def _known(self) -> bool:
        from huggingface_hub import try_to_load_from_cache

        return isinstance(try_to_load_from_cache(self.repo, "config.json", revision=self.revision), str)

    def _explained(self, error: Exception) -> CheckpointError:
        from huggingface_hub import constants, errors

        where = constants.ENDPOINT
        if isinstance(error, errors.GatedRepoError):
            why = f"gated: accept its terms at {where}/{self.repo}, then log in (hf auth login, or set HF_TOKEN)"
        elif isinstance(error, errors.RepositoryNotFoundError):
            why = f"not found at {where}, or private: check the name, or log in (hf auth login, or set HF_TOKEN)"
        elif isinstance(error, errors.RevisionNotFoundError):
            why = f"has no revision {shown(self.revision)}: name a branch, a tag or a commit of {where}/{self.repo}"
        elif isinstance(error, errors.HFValidationError):
            why = f"not a hub id, which is owner/name ({_first_line(error)})"
        elif self.local:
            why = (
                "not whole in the local cache, and the network is off (HF_HUB_OFFLINE or HEADWAY_OFFLINE); "
                "unset it once to fetch the model"
            )
        elif isinstance(error, errors.HfHubHTTPError):
            status = error.response.status_code
            denied = "log in (hf auth login, or set HF_TOKEN)" if status in (401, 403) else "try again later"
            why = f"{where} answered {status}: {denied}"
        elif isinstance(error, OSError) and error.errno:
            why = f"could not be stored in {constants.HF_HUB_CACHE}: {error.strerror}"
        else:
            why = f"not whole in the local cache, and {where} cannot be reached ({_first_line(error)}); try again"
        return CheckpointError(f"{self.repo}: {why}")


@contextmanager
def _bars(wanted: bool) -> Iterator[None]:
    """The library draws bars on a terminal by itself; keep it from that when they are not wanted."""
    from huggingface_hub.utils.tqdm import are_progress_bars_disabled, disable_progress_bars, enable_progress_bars

    if wanted or are_progress_bars_disabled():
        yield
        return
    disable_progress_bars()
    try:
        yield
    finally:
        enable_progress_bars()


def _first_line(error: Exception) -> str:
    return shown(next(iter(str(error).splitlines()), type(error).__name__))


def _choose(hub_id: HubId, files: list[str]) -> list[str]:
    """The GGUF file (or the parts of a split one) that is meant; CheckpointError when that is not clear."""
    models: dict[str, list[str]] = {}
    for file in files:
        path = Path(file)
        if path.suffix == ".gguf" and not path.name.startswith("mmproj"):
            stem = path.stem if part_number(path) is None else path.stem[: -len("-00001-of-00001")]
            models.setdefault(stem, []).append(file)
    if not models:
        if pickles := [file for file in files if file.endswith(ENDINGS)]:
            raise CheckpointError(
                f"{hub_id.repo}: holds its weights only as pickles ({shown(', '.join(pickles[:3]))}), which hold code "
                f"that runs when they are opened, so headway never does; take a repository that has safetensors"
            )
        raise CheckpointError(f"{hub_id.repo}: holds no weights that headway reads (safetensors or GGUF)")
    asked = hub_id.file
    fitting = [stem for stem, parts in models.items() if asked is None or _is_variant(asked, stem, parts)]
    if len(fitting) != 1:
        what = f"none or several of its GGUF files are {shown(asked)}" if asked else "holds several GGUF files"
        raise CheckpointError(
            f"{hub_id.repo}: {what}; choose one as {hub_id.repo}:NAME from {shown(', '.join(sorted(models)))}"
        )
    return models[fitting[0]]


def _is_variant(asked: str, stem: str, parts: list[str]) -> bool:
    """True for the file's name, or for one of the words in it, such as Q4_K_M."""
    wanted = asked.lower().removesuffix(".gguf")
    return wanted == stem.lower() or asked in parts or wanted in re.split(r"[.-]", stem.lower())
