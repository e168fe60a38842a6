"""Opening what somebody else has made runs nothing of it, through every door of the library."""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterator
from pathlib import Path

import pytest

import headway
from headway.errors import HeadwayError
from tests.checkpoint.test_pickles import FORMS, Trap, trap
from tests.test_loader import llama, saved


@pytest.fixture
def marker(tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / "marker"
    yield path
    assert not path.exists(), "the code in the file has run"


@pytest.mark.case("C35")
@pytest.mark.parametrize("form", FORMS)
def test_a_pickled_vocabulary_is_refused_as_code(tmp_path: Path, marker: Path, form: str) -> None:
    for name in ("tokenizer.json", "vocab.pkl", "vocab.gguf.cache"):
        (tmp_path / name).write_bytes(trap(form, marker))
        with pytest.raises(HeadwayError, match="code"):
            headway.load_tokenizer(tmp_path / name)


@pytest.mark.case("C35")
@pytest.mark.parametrize("name", ["optimizer.pt", "rng_state.pth", "scheduler.pt", "training_args.bin", "vocab.pkl"])
def test_a_pickle_named_outright_is_refused_as_code(tmp_path: Path, marker: Path, name: str) -> None:
    path = tmp_path / name
    path.write_bytes(pickle.dumps(Trap(marker)))
    with pytest.raises(HeadwayError, match="code"):
        headway.load(path)


@pytest.mark.case("C35")
def test_an_index_that_leads_to_a_pickle_is_refused_as_code(tmp_path: Path, marker: Path) -> None:
    folder = saved(tmp_path / "m", llama())
    (folder / "model.safetensors").unlink()
    (folder / "pytorch_model.bin").write_bytes(trap("zip", marker))
    index = {"metadata": {}, "weight_map": {"model.norm.weight": "pytorch_model.bin"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(HeadwayError, match="code"):
        headway.load(folder)


@pytest.mark.case("C35")
def test_code_beside_a_model_is_never_run(tmp_path: Path, marker: Path) -> None:
    folder = saved(tmp_path / "m", llama())
    for name in ("modeling_mine", "configuration_mine", "tokenization_mine", "sitecustomize"):
        (folder / f"{name}.py").write_text(f"from pathlib import Path\nPath({str(marker)!r}).touch()\n")
    config = json.loads((folder / "config.json").read_text())
    config["auto_map"] = {"AutoConfig": "configuration_mine.C", "AutoModelForCausalLM": "modeling_mine.M"}
    (folder / "config.json").write_text(json.dumps(config))
    model = headway.load(folder)
    model.save(tmp_path / "again")
    assert "auto_map" not in json.loads((tmp_path / "again" / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "model_type": "mine"}))
    with pytest.raises(HeadwayError, match="model_type = 'mine'"):
        headway.load(folder)
