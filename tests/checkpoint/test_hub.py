"""The hub: the library's own code against a server of ours, in processes with the user's environment."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from headway.checkpoint.hub import parse
from headway.checkpoint.store import open_store
from tests.checkpoint import forge
from tests.checkpoint.hub_server import COMMIT, Hub, serving

CALL = """
import sys
from headway.checkpoint.hub import fetch
from headway.errors import CheckpointError
try:
    print(fetch(*sys.argv[1:]))
except CheckpointError as error:
    sys.exit(f"CheckpointError: {error}")
"""
WEIGHTS = forge.safetensors({"a": forge.tensor("U8", [300_000], 0, 300_000)}, bytes(300_000))


def repository(**more: bytes) -> dict[str, bytes]:
    return {
        "config.json": b"{}",
        "model.safetensors": WEIGHTS,
        "tokenizer.json": b"{}",
        "chat_template.jinja": b"{{ messages }}",
        "1_Pooling/config.json": b"{}",
        **{name.replace("__", "."): data for name, data in more.items()},
    }


@pytest.fixture
def hub() -> Iterator[Hub]:
    with serving(Hub()) as running:
        yield running


def fetch(hub: Hub, home: Path, *arguments: str, **environment: str) -> str:
    """What `fetch` gives or says, in a process of its own."""
    keep = {key: value for key, value in os.environ.items() if not key.startswith(("HF_", "HEADWAY_", "TRANSFORMERS_"))}
    for proxy in ("http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
        keep.pop(proxy, None)
    settings = {
        "HF_HOME": str(home),
        "HF_ENDPOINT": hub.url,
        "HF_HUB_DISABLE_XET": "1",
        "HF_HUB_DISABLE_TELEMETRY": "1",
    }
    ran = subprocess.run(
        [sys.executable, "-c", CALL, *arguments],
        env={**keep, **settings, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "Traceback" not in ran.stderr
    if ran.returncode == 0:
        return ran.stdout.removesuffix("\n")
    return next(line for line in ran.stderr.splitlines() if line.startswith("CheckpointError"))


def test_a_model_comes_without_pickles_or_second_layouts_and_again_without_network(hub: Hub, tmp_path: Path) -> None:
    hub.repos["owner/name"] = repository(
        pytorch_model__bin=b"evil", optimizer__pt=b"evil", consolidated__safetensors=b"again", README__md=b"#"
    ) | {"onnx/config.json": b"{}", "original/params.json": b"{}"}
    folder = Path(fetch(hub, tmp_path, "owner/name"))
    assert folder.is_relative_to(tmp_path)
    assert {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()} == {
        "config.json", "model.safetensors", "tokenizer.json", "chat_template.jinja", "1_Pooling/config.json",
    }  # fmt: skip
    assert open_store(folder).names == ("a",)
    hub.asked.clear()
    assert Path(fetch(hub, tmp_path, "owner/name")) == folder
    assert hub.fetched() == []
    hub.asked.clear()
    for offline in ({"HF_HUB_OFFLINE": "1"}, {"HEADWAY_OFFLINE": "1"}):
        assert Path(fetch(hub, tmp_path, "owner/name", **offline)) == folder
        assert hub.asked == []
    # The cache also serves when the hub is down.
    hub.broken = True
    assert Path(fetch(hub, tmp_path, "owner/name")) == folder


def test_a_line_that_drops_is_taken_up_where_it_broke(hub: Hub, tmp_path: Path) -> None:
    size = 12_000_000
    weights = forge.safetensors({"a": forge.tensor("U8", [size], 0, size)}, bytes(range(250)) * (size // 250))
    hub.repos["owner/name"] = {"config.json": b"{}", "model.safetensors": weights}
    hub.cut["model.safetensors"] = 11_000_000
    folder = Path(fetch(hub, tmp_path, "owner/name"))
    assert (folder / "model.safetensors").read_bytes() == weights
    first, second = [asked for method, path, asked in hub.asked if method == "GET" and path.endswith(".safetensors")]
    assert first == ""
    assert second.startswith("bytes=1")


def test_a_fetch_that_failed_is_completed_by_the_next(hub: Hub, tmp_path: Path) -> None:
    hub.repos["owner/name"] = repository()
    hub.failing.add("model.safetensors")
    said = fetch(hub, tmp_path, "owner/name")
    assert said.startswith("CheckpointError: owner/name: ")
    # What is half there is not taken for the model.
    assert "not whole in the local cache" in fetch(hub, tmp_path, "owner/name", HEADWAY_OFFLINE="1")
    hub.failing.clear()
    hub.asked.clear()
    assert open_store(fetch(hub, tmp_path, "owner/name")).names == ("a",)
    assert "model.safetensors" in hub.fetched()
    assert "tokenizer.json" not in hub.fetched()


@pytest.mark.parametrize(("ref", "revision"), [("owner/name", "nope"), ("owner/name@nope", None)])
def test_a_revision_that_is_not_there_is_named(hub: Hub, tmp_path: Path, ref: str, revision: str | None) -> None:
    hub.repos["owner/name"] = repository()
    said = fetch(hub, tmp_path, ref, *([revision] if revision else []))
    assert said.startswith("CheckpointError: owner/name: has no revision nope")


def test_a_commit_is_a_revision(hub: Hub, tmp_path: Path) -> None:
    hub.repos["owner/name"] = repository()
    assert Path(fetch(hub, tmp_path, f"owner/name@{COMMIT}")).name == COMMIT


def test_what_is_missing_or_gated_says_what_to_do(hub: Hub, tmp_path: Path) -> None:
    hub.gated.add("owner/gated")
    assert f"owner/none: not found at {hub.url}, or private" in fetch(hub, tmp_path, "owner/none")
    assert f"owner/gated: gated: accept its terms at {hub.url}/owner/gated" in fetch(hub, tmp_path, "owner/gated")
    hub.broken = True
    assert "owner/name: " in fetch(hub, tmp_path, "owner/name")


def test_without_network_and_cache_there_is_a_way_out(hub: Hub, tmp_path: Path) -> None:
    said = fetch(hub, tmp_path, "owner/name", HEADWAY_OFFLINE="1")
    assert "owner/name: not whole in the local cache, and the network is off" in said
    said = fetch(hub, tmp_path, "owner/name", HF_ENDPOINT="http://127.0.0.1:9")
    assert "owner/name: not whole in the local cache, and http://127.0.0.1:9 cannot be reached" in said
    assert hub.asked == []


def test_weights_only_as_pickles_are_refused(hub: Hub, tmp_path: Path) -> None:
    hub.repos["owner/name"] = {"config.json": b"{}", "pytorch_model.bin": b"evil"}
    assert "holds its weights only as pickles (pytorch_model.bin)" in fetch(hub, tmp_path, "owner/name")
    hub.repos["owner/empty"] = {"config.json": b"{}"}
    assert "holds no weights that headway reads" in fetch(hub, tmp_path, "owner/empty")
    assert "pytorch_model.bin" not in hub.fetched()


def test_a_gguf_repository_gives_the_variant_that_is_asked_for(hub: Hub, tmp_path: Path) -> None:
    hub.repos["owner/one"] = {"config.json": b"{}", "m-Q4_0.gguf": forge.small_gguf(), "mmproj-m.gguf": b"vision"}
    hub.repos["owner/many"] = {
        "m-Q4_0.gguf": forge.small_gguf(),
        "m-Q4_0_4_4.gguf": forge.small_gguf(),
        "big/m-F16-00001-of-00002.gguf": b"1",
        "big/m-F16-00002-of-00002.gguf": b"2",
    }
    assert Path(fetch(hub, tmp_path, "owner/one")).name == "m-Q4_0.gguf"
    assert "holds several GGUF files; choose one as owner/many:NAME from m-F16, m-Q4_0, m-Q4_0_4_4" in fetch(
        hub, tmp_path, "owner/many"
    )
    hub.asked.clear()
    path = Path(fetch(hub, tmp_path, "owner/many:q4_0"))
    assert path.read_bytes() == forge.small_gguf()
    assert hub.fetched() == ["m-Q4_0.gguf"]
    hub.asked.clear()
    assert Path(fetch(hub, tmp_path, "owner/many:q4_0", HEADWAY_OFFLINE="1")) == path
    assert hub.asked == []
    first = Path(fetch(hub, tmp_path, "owner/many:F16"))
    assert first.name == "m-F16-00001-of-00002.gguf"
    assert first.with_name("m-F16-00002-of-00002.gguf").exists()


@pytest.mark.parametrize(
    ("ref", "parts"),
    [
        ("owner/name", ("owner/name", None, None)),
        ("Qwen/Qwen2.5-0.5B@v1", ("Qwen/Qwen2.5-0.5B", None, "v1")),
        ("o/n:Q4_K_M@refs/pr/3", ("o/n", "Q4_K_M", "refs/pr/3")),
    ],
)
def test_hub_ids_are_taken_apart(ref: str, parts: tuple[str, str | None, str | None]) -> None:
    found = parse(ref)
    assert found is not None
    assert (found.repo, found.file, found.revision) == parts


@pytest.mark.parametrize("ref", ["", "name", "a/b/c", "/a", "a/", "a b/c", "a/b@", "a/b:"])
def test_what_is_no_hub_id_is_none(ref: str) -> None:
    assert parse(ref) is None
