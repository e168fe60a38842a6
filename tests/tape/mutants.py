"""Model files with a few values changed, each opened, loaded on a tape and run; `python -m` takes many in one process.

Every mutant is one number: the same number makes the same file. The process prints it before it starts, so that one
that ends the process is known, and ends with 1 when any had another outcome than an answer or a headway error of one
line. Each has SECONDS of processor time, then the system ends the process; memory is limited to MEMORY bytes.
"""

from __future__ import annotations

import json
import resource
import shutil
import signal
import struct
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from headway.checkpoint.store import open_store
from headway.errors import HeadwayError
from headway.native import library
from headway.source import match, open_source
from headway.tape import Program, Weights, missing
from headway.tape.weights import of_source

SECONDS = 2.0
MEMORY = 3 << 30
TOKENS = [[1, 2], [3]]

WHOLE = (0, 1, 2, 3, 7, 31, 255, 4097, 2**20, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**40, 2**63 - 1, 2**63, 2**64 - 1)
REAL = (0.0, -0.0, 1.0, -1.0, 0.5, 1e-45, 1e-8, 1e4, 2.0**40, 3e38, float("inf"), float("-inf"), float("nan"))
CODES = (*range(16), 24, 26, 28, 30, 31, 100, 101, 2**31, 2**32 - 1)
TEXTS = ("", "llama", "gpt2", "qwen3", "linear", "yarn", "longrope", "default", "\n", "世界")
SIZES = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<B", 10: "<Q", 11: "<q", 12: "<d"}
Random = np.random.Generator


@dataclass(frozen=True)
class Field:
    """A number of a GGUF header: where it lies, how it is written, and what it is."""

    at: int
    form: str
    kind: str = "frame"  # on which reading on depends; or "code" of a type; "value", "size" or "offset"


def fields(raw: bytes) -> Iterator[Field]:
    """Every number of a sound header: version, counts, lengths, types, dimensions, offsets, values."""
    at = 4

    def take(form: str, kind: str = "frame") -> tuple[Field, Any]:
        nonlocal at
        field = Field(at, form, kind)
        at += struct.calcsize(form)
        return field, struct.unpack_from(form, raw, field.at)[0]

    def string() -> Field:
        nonlocal at
        field, length = take("<Q")
        at += length
        return field

    def value(code: int) -> Iterator[Field]:
        if code == 8:
            yield string()
        elif code == 9:
            kind, inner = take("<I")
            count, number = take("<Q")
            yield from (kind, count)
            for _ in range(number):
                yield from value(inner)
        else:
            yield take(SIZES[code], "value")[0]

    yield take("<I")[0]
    (tensors, many), (pairs, more) = take("<Q"), take("<Q")
    yield from (tensors, pairs)
    for _ in range(more):
        yield string()
        kind, code = take("<I")
        yield kind
        yield from value(code)
    for _ in range(many):
        yield string()
        field, dimensions = take("<I")
        yield field
        yield from (take("<Q", "size")[0] for _ in range(dimensions))
        yield take("<I", "code")[0]
        yield take("<Q", "offset")[0]


def pick(random: Random, values: Any) -> Any:
    return values[int(random.integers(len(values)))]


def change(random: Random, raw: bytearray, field: Field) -> None:
    """Another number where this one lies: a telling one, a near one, or any."""
    size = struct.calcsize(field.form)
    (old,) = struct.unpack_from(field.form, raw, field.at)
    if field.form in ("<f", "<d"):
        new = pick(random, (*REAL, old * 2, old * 1e-6))
        with np.errstate(over="ignore"):
            struct.pack_into(field.form, raw, field.at, float(np.float32(new)))
        return
    near = (old - 1, old + 1, old * 2, old // 2, old + 32, int(random.integers(2**63)))
    new = pick(random, CODES if field.kind == "code" else (*WHOLE, *near, *near, *near))
    raw[field.at : field.at + size] = (int(new) % 2 ** (8 * size)).to_bytes(size, "little")


def exchange(random: Random, raw: bytearray, known: list[Field]) -> None:
    """Two numbers of one kind change places: sizes of a tensor, offsets of two."""
    a = pick(random, [field for field in known if field.kind in ("size", "code", "offset")])
    b = pick(random, [field for field in known if field.kind == a.kind and abs(field.at - a.at) < 200])
    size = struct.calcsize(a.form)
    raw[a.at : a.at + size], raw[b.at : b.at + size] = raw[b.at : b.at + size], raw[a.at : a.at + size]


def mutate_gguf(random: Random, raw: bytearray, known: list[Field]) -> bytes:
    """One to three changes: what the header says mostly, else how it is framed, bytes anywhere, or the file's end."""
    end = known[-1].at + 8
    said = [field for field in known if field.kind != "frame"]
    frame = [field for field in known if field.kind == "frame"]
    kinds = sorted({field.kind for field in said})
    for _ in range(int(random.integers(1, 4))):
        what = random.random()
        if what < 0.65:
            kind = pick(random, ("value", "value", *kinds))
            change(random, raw, pick(random, [field for field in said if field.kind == kind]))
        elif what < 0.8:
            exchange(random, raw, said)
        elif what < 0.9:
            at = int(random.integers(end, len(raw)))
            raw[at : at + 64] = random.bytes(len(raw[at : at + 64]))
        elif what < 0.94:
            change(random, raw, pick(random, frame))
        elif what < 0.97:
            raw[int(random.integers(end))] = int(random.integers(256))
        else:
            return bytes(raw[: int(random.integers(end if random.random() < 0.7 else 0, len(raw)))])
    return bytes(raw)


def places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Every (container, key) inside a JSON value."""
    for key, inside in list(value.items() if isinstance(value, dict) else enumerate(value)):
        yield value, key
        if isinstance(inside, dict | list):
            yield from places(inside)


def mutate_json(random: Random, value: Any) -> None:
    """One to three values replaced or taken away."""
    for _ in range(int(random.integers(1, 4))):
        container, key = pick(random, list(places(value)))
        old = container[key]
        if random.random() < 0.1:
            del container[key]
            return
        if isinstance(old, bool) or old is None or random.random() < 0.15:
            container[key] = pick(random, (None, True, False, [], {}, -1, "7", 2**70, 1e300, *TEXTS))
        elif isinstance(old, int):
            container[key] = pick(random, (*WHOLE, old - 1, old + 1, old * 2, old // 2, -old, old + 0.5, 1e300))
        elif isinstance(old, float):
            container[key] = pick(random, (*REAL, old * 2, old * 1e-6, 2**70))
        elif isinstance(old, str):
            container[key] = pick(random, (*TEXTS, old[:-1], old + "x", "F16", "BF16", "F64", "I64"))


def mutate_folder(random: Random, folder: Path) -> None:
    """The config, the header of the weights, or both."""
    what = random.random()
    if what < 0.6:
        config = json.loads((folder / "config.json").read_text())
        mutate_json(random, config)
        (folder / "config.json").write_text(json.dumps(config))
    if what > 0.5:
        raw = bytearray((folder / "model.safetensors").read_bytes())
        (length,) = struct.unpack_from("<Q", raw)
        if random.random() < 0.3:
            raw[int(random.integers(8 + length))] = int(random.integers(256))
        else:
            header = json.loads(raw[8 : 8 + length])
            one, other = (pick(random, [key for key in header if key != "__metadata__"]) for _ in range(2))
            if random.random() < 0.5:
                mutate_json(random, header)
            elif random.random() < 0.5:
                header[one]["shape"] = header[one]["shape"][::-1]
            else:
                header[one], header[other] = header[other], header[one]
            text = json.dumps(header).encode()
            raw[: 8 + length] = struct.pack("<Q", len(text)) + text
        if random.random() < 0.2:
            del raw[int(random.integers(len(raw))) :]
        (folder / "model.safetensors").write_bytes(raw)


class Mutants:
    """Makes them from the sound files and folders in `originals`."""

    def __init__(self, originals: Path, work: Path) -> None:
        self.originals = sorted(originals.iterdir())
        self.raw = {path: path.read_bytes() for path in self.originals if path.is_file()}
        self.fields = {path: list(fields(raw)) for path, raw in self.raw.items()}
        self.work = work

    def make(self, number: int) -> Path:
        """The mutant of this number, in place of the one before."""
        random = np.random.default_rng(number)
        original = pick(random, self.originals)
        made = self.work / f"mutant{original.suffix}"
        if original.is_dir():
            shutil.rmtree(made, ignore_errors=True)
            shutil.copytree(original, made)
            mutate_folder(random, made)
        else:
            made.write_bytes(mutate_gguf(random, bytearray(self.raw[original]), self.fields[original]))
        return made


def answer(path: Path, native: library.Library, pool: library.Pool) -> str:
    """Two tokens in one step and one in the next; how that went."""
    with open_store(path) as store:
        source = open_source(path, store)
        if missing(source.spec):
            return "no native form"
        weights = Weights(source.spec, of_source(source, match(source)), native, pool)
    program = Program(source.spec, weights, pool)
    cache = program.cache(1, 8)
    for ids in TOKENS:
        logits = program.step([[token % source.spec.decoder.stem.vocab for token in ids]], cache).logits
    assert logits is not None
    return "finite" if np.isfinite(logits).all() else "not finite"


def outcome(make: Callable[[], Path], native: library.Library, pool: library.Pool) -> tuple[str, bool]:
    """What became of one mutant, and whether that is allowed."""
    try:
        return answer(make(), native, pool), True
    except HeadwayError as error:
        said = str(error)
        return f"{type(error).__name__}: {said}", bool(said) and len(said.splitlines()) == 1
    except Exception:  # noqa: BLE001 - whatever else comes is what is looked for
        return traceback.format_exc(), False


def main(originals: Path, work: Path, first: int, count: int) -> int:
    """Runs the mutants `first` to `first + count - 1`."""
    native = library.load()
    assert native is not None, library.reason()
    pool = library.Pool(native, 2)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    warnings.simplefilter("ignore")
    mutants, good = Mutants(originals, work), True
    for number in range(first, first + count):
        print(f"mutant {number}", flush=True)
        signal.setitimer(signal.ITIMER_PROF, SECONDS)
        said, allowed = outcome(partial(mutants.make, number), native, pool)
        print(f"{'' if allowed else 'WRONG '}{said}", flush=True)
        good &= allowed
    signal.setitimer(signal.ITIMER_PROF, 0)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])))
