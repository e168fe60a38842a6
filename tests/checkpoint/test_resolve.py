"""What a user types becomes files on this machine, or one line that says how to do better."""

from __future__ import annotations

from pathlib import Path

import pytest

from headway.checkpoint import hub, shelf
from headway.checkpoint.resolve import resolve
from headway.errors import CheckpointError


@pytest.fixture(autouse=True)
def no_network(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(hub, "fetch", lambda ref, **_: Path("/hub") / ref)
    monkeypatch.setattr(shelf, "get", lambda name, **_: Path("/shelf") / name)


def test_paths_come_first_then_the_shelf_then_the_hub(tmp_path: Path) -> None:
    assert resolve("smollm2") == Path("/shelf/smollm2")
    assert resolve("owner/name") == Path("/hub/owner/name")
    assert resolve("Qwen/Qwen2.5-0.5B@main") == Path("/hub/Qwen/Qwen2.5-0.5B@main")
    assert resolve("owner/name-GGUF:Q4_K_M") == Path("/hub/owner/name-GGUF:Q4_K_M")
    (tmp_path / "owner" / "name").mkdir(parents=True)
    (tmp_path / "smollm2").mkdir()
    (tmp_path / "m.gguf").touch()
    assert resolve("owner/name") == Path("owner/name")
    assert resolve("smollm2") == Path("smollm2")
    assert resolve(tmp_path / "m.gguf") == tmp_path / "m.gguf"


def test_the_home_folder_may_be_written_short(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "model").mkdir()
    assert resolve("~/model") == tmp_path / "model"


@pytest.mark.parametrize(
    "ref",
    ["./x", "../x", "/no/such", "~/no such", "a/b/c", "dir/x.gguf", "x.safetensors", "dir/pytorch_model.bin", "X.GGUF"],
)
def test_what_can_only_be_a_path_is_never_looked_up(ref: str) -> None:
    with pytest.raises(CheckpointError, match="no such file or folder; give a folder, a .gguf") as caught:
        resolve(ref)
    assert str(caught.value).isprintable()


def test_a_path_object_is_a_path() -> None:
    with pytest.raises(CheckpointError, match="owner/name: no such file or folder"):
        resolve(Path("owner/name"))


@pytest.mark.parametrize("ref", ["smolm2", "SmolLM2", "smollm2-135m"])
def test_a_close_name_is_suggested(ref: str) -> None:
    with pytest.raises(CheckpointError, match=rf"{ref}: no such model, did you mean smollm2\?; give a folder"):
        resolve(ref)


@pytest.mark.parametrize("ref", ["gpt2", "a b/c", "owner/", "owner/name@", "世界", "x" * 5000, "a\nb"])
def test_what_is_nothing_lists_the_ways(ref: str) -> None:
    with pytest.raises(CheckpointError, match="no such model.*smollm2, gemma3-270m.*owner/name") as caught:
        resolve(ref)
    assert str(caught.value).isprintable()


@pytest.mark.parametrize("ref", ["", "  ", "a\0b"])
def test_an_empty_name_is_not_the_current_folder(ref: str) -> None:
    with pytest.raises(CheckpointError, match="an empty name"):
        resolve(ref)


def test_a_broken_link_says_where_it_led(tmp_path: Path) -> None:
    (tmp_path / "m.gguf").symlink_to(tmp_path / "gone.gguf")
    with pytest.raises(CheckpointError, match=r"a link to .*gone.gguf, which is gone"):
        resolve("m.gguf")
