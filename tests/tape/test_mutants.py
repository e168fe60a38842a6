"""No malformed file ends the process: thousands of them give one line or an answer, and nothing else."""

from __future__ import annotations

import os
import struct
import subprocess
import sys
from collections import Counter
from pathlib import Path

import gguf
import numpy as np
import pytest

from headway import families, quant
from headway.checkpoint.store import open_store
from headway.families.kit import Config
from headway.loader import save_network
from headway.native import library
from headway.nn.build import build
from headway.source import open_source
from tests.checkpoint import forge
from tests.families.converter import convert
from tests.families.test_gguf import TINY, weights
from tests.tape.mutants import answer
from tests.tape.test_formats import quantised

ROOT = Path(__file__).resolve().parents[2]
PACKED = ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q4_K", "Q5_K", "Q6_K", "F16", "BF16", "Q2_K")
INTEGERS = {
    "int8": quant.Recipe(to="int8"),
    "int4-zeros": quant.Recipe(to="int4", group=32),
    "int4-rows": quant.Recipe(to="int4", group=-1, symmetric=True, tables="int4"),
}
WIDTH, HIDDEN, VOCAB = 256, 256, 21

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="limits and signals of a process are POSIX")


def llama(kind: str) -> bytes:
    """A llama of one layer, its matrices in one format."""
    random = np.random.default_rng(0)
    code = gguf.GGMLQuantizationType[kind].value
    shapes = {
        "token_embd": (VOCAB, WIDTH),
        **{f"blk.0.attn_{name}": (rows, WIDTH) for name, rows in {"q": 256, "k": 128, "v": 128, "output": 256}.items()},
        **{f"blk.0.ffn_{name}": (HIDDEN, WIDTH) for name in ("gate", "up", "down")},
        **dict.fromkeys(("output_norm", "blk.0.attn_norm", "blk.0.ffn_norm"), (WIDTH,)),
    }
    infos, data = [], b""
    for name, shape in shapes.items():
        plain = len(shape) == 1
        content = (np.ones(shape, np.float32) if plain else quantised(kind, shape, random).array).tobytes()
        infos.append(forge.info(f"{name}.weight", shape[::-1], 0 if plain else code, len(data)))
        data += content + b"\0" * (-len(content) % 32)
    sizes = {
        "block_count": 1, "context_length": 64, "embedding_length": WIDTH, "feed_forward_length": HIDDEN,
        "attention.head_count": 4, "attention.head_count_kv": 2, "rope.dimension_count": 64, "vocab_size": VOCAB,
    }  # fmt: skip
    floats = {"attention.layer_norm_rms_epsilon": 1e-5, "rope.freq_base": 1e4, "rope.scaling.factor": 2.0}
    pairs = [
        forge.text("general.architecture", "llama"),
        forge.whole("general.alignment", 32),
        forge.text("llama.rope.scaling.type", "linear"),
        *(forge.whole(f"llama.{name}", value) for name, value in sizes.items()),
        *(forge.pair(f"llama.{name}", 6, struct.pack("<f", value)) for name, value in floats.items()),
    ]
    return forge.gguf(pairs, infos, data)


@pytest.fixture(scope="module")
def originals(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Sound models: every family as GGUF, a llama in every format, every family as a folder, and
    one in integers."""
    folder = tmp_path_factory.mktemp("originals")
    for kind in PACKED:
        (folder / f"{kind}.gguf").write_bytes(llama(kind))
    for case in TINY:
        family, config = case.values
        convert(folder / f"{case.id}.gguf", config, weights(family, family.read(Config(config))))
    for family in families.all_families():
        for name, config in family.tiny.items():
            save_network(build(family.read(Config(config)), seed=1), folder / f"{family.name}-{name}-folder")
    for name, recipe in INTEGERS.items():
        plain = folder / "llama-default-folder"
        with open_store(plain) as store:
            source = open_source(plain, store)
            quant.write(source, quant.plan(source.spec, recipe), folder / f"{name}-folder")
    return folder


def run(originals: Path, work: Path, first: int, count: int) -> Counter[str]:
    """Mutants in processes of their own; how many ended in which way."""
    command = [sys.executable, "-m", "tests.tape.mutants", str(originals), str(work), str(first), str(count)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, check=False, capture_output=True, text=True)
    said = done.stdout
    last = said.rpartition("mutant ")[2].partition("\n")[0]
    assert done.returncode >= 0, f"mutant {last} ended the process by signal {-done.returncode}\n{done.stderr[-2000:]}"
    wrong = [part for part in said.split("mutant ") if "WRONG" in part]
    assert done.returncode == 0, f"{len(wrong)} of {count}:\n" + "\n".join(wrong[:5]) + done.stderr[-2000:]
    return Counter(line.partition(":")[0] for line in said.splitlines() if not line.startswith("mutant "))


def test_the_originals_answer(originals: Path) -> None:
    """Or mutants of them would prove nothing."""
    native = library.load()
    assert native is not None
    for path in originals.iterdir():
        assert answer(path, native, library.Pool(native, 1)) == "finite", path.name


def test_a_few_hundred_mutants(originals: Path, tmp_path: Path) -> None:
    found = run(originals, tmp_path, 0, 300)
    assert found.total() == 300
    assert found["finite"] > 20
    assert found["CheckpointError"] > 100


@pytest.mark.parity
@pytest.mark.parametrize("part", range(8))
def test_thousands_of_mutants(originals: Path, tmp_path: Path, part: int) -> None:
    found = run(originals, tmp_path, 1000 * (part + 1), 1000)
    assert found.total() == 1000
    assert found["finite"] > 60
    assert found["CheckpointError"] > 300
