"""`headway inspect`: what a model is, told from headers alone; no weight is read."""

from __future__ import annotations

import math
from collections import Counter
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Annotated, Any

from typer import Option

from headway.cli import options as shared
from headway.cli import terminal
from headway.cli.facts import types
from headway.cli.terminal import amount, size
from headway.errors import CheckpointError, RequestError

if TYPE_CHECKING:
    from rich.tree import Tree

    from headway.cli.drawing import Node
    from headway.loader import Source
    from headway.text.tokenizer import Tokenizer

TEMPLATE_LINES = 6
NAMES = 8  # of tensors that nothing uses
BYTES = {"F32": 4, "F64": 4, "F16": 2, "BF16": 2}  # of a number in memory; quantised tensors become float32


def command(
    model: shared.ModelRef,
    template: Annotated[bool, Option("--template", help="Print the whole chat template, and nothing else.")] = False,
    json: shared.Json = False,
) -> None:
    """Draw a model as a tree, with its sizes, tokenizer and template.

    Equal layers are folded into one. Only headers are read, so that a large model is told as soon as a small one.
    """
    from headway.checkpoint.resolve import resolve
    from headway.checkpoint.store import open_store

    path = resolve(model)
    from headway.loader import open_source
    from headway.model import find_tokenizer

    with open_store(path) as store:
        source = open_source(path, store)
        sizes, report = measure(source), survey(source)
    tokenizer = find_tokenizer(path)
    if template:
        if tokenizer is None or tokenizer.chat_template is None:
            raise RequestError(f"{model} has no chat template")
        print(tokenizer.chat_template)
        return
    if json:
        terminal.print_json(as_data(model, source, sizes, report, tokenizer))
    else:
        show(model, source, sizes, report, tokenizer)


def measure(source: Source) -> dict[str, Any]:
    """Parameters and bytes: of the file, in memory as `load` makes them, of the cache."""
    from headway.spec.count import cache_bytes, parameters

    entries = [source.store.entry(name) for name in source.store.names]
    stored: Counter[str] = Counter()
    for entry in entries:
        stored[entry.dtype] += math.prod(entry.shape)
    width = BYTES.get(stored.most_common(1)[0][0], 4)
    context = source.spec.decoder.context
    return {
        "parameters": parameters(source.spec),
        "file_dtypes": dict(stored.most_common()),
        "file_bytes": sum(entry.nbytes for entry in entries),
        "memory_bytes": sum(math.prod(entry.shape) * BYTES.get(entry.dtype, 4) for entry in entries),
        "cache_bytes_per_token": cache_bytes(source.spec, 1, 1, width),
        "cache_bytes_at_full_context": cache_bytes(source.spec, context, 1, width),
    }


def survey(source: Source) -> dict[str, Any]:
    """Which tensors become parameters, which are shared, and which nothing uses.

    CheckpointError for tensors that are missing or have another number of entries than the config gives them.
    """
    from headway.loader import match
    from headway.spec.count import shapes

    owned, used = shapes(source.spec), set[str]()
    for found in match(source):
        used.update(found.keys)
        held = [source.store.entry(key).shape for key in found.keys]
        due = [owned[path] for path in found.rule.paths]
        if sum(map(math.prod, held)) != sum(map(math.prod, due)):
            raise CheckpointError(
                f"{source.path}: {found.keys[0]} has shape {list(held[0])}, but the config makes it {list(due[0])}; "
                f"correct the config, or fetch the right weights"
            )
    shared_keys = {key for alias in source.aliases for key in map(source.key, alias.keys) if key is not None}
    rest = sorted(source.names - used - shared_keys)
    ignored = [name for name in rest if any(fnmatchcase(name, pattern) for pattern in source.ignore)]
    return {
        "found": len(used),
        "tied": [tie.alias for tie in source.spec.ties],
        "ignored": ignored,
        "unused": [name for name in rest if name not in ignored],
    }


def tokenizer_data(tokenizer: Tokenizer | None) -> dict[str, Any] | None:
    """Facts of a tokenizer; None when the model has none."""
    if tokenizer is None:
        return None
    return {
        "description": repr(tokenizer),
        "size": tokenizer.vocab_size,
        "bos_id": tokenizer.bos_id,
        "eos_ids": list(tokenizer.eos_ids),
        "turn_end_ids": list(tokenizer.turn_end_ids),
        "pad_id": tokenizer.pad_id,
        "unk_id": tokenizer.unk_id,
        "adds_bos": tokenizer.adds_bos,
        "control": {tokenizer.token_text(token): token for token in sorted(tokenizer.control_ids)},
    }


def as_data(
    ref: str, source: Source, sizes: dict[str, Any], report: dict[str, Any], tokenizer: Tokenizer | None
) -> dict[str, Any]:
    """Everything for programs."""
    from headway.spec.codec import to_json

    return {
        "model": ref,
        "path": str(source.path),
        "format": source.store.format,
        "family": source.spec.family,
        **sizes,
        "context": source.spec.decoder.context,
        "tensors": report,
        "tokenizer": tokenizer_data(tokenizer),
        "chat_template": tokenizer.chat_template if tokenizer is not None else None,
        "generation_config": dict(source.generation_config),
        "spec": to_json(source.spec),
    }


def show(ref: str, source: Source, sizes: dict[str, Any], report: dict[str, Any], tokenizer: Tokenizer | None) -> None:
    """Everything for people."""
    from headway.cli.drawing import draw

    terminal.draw(branch(draw(source.spec, ref)))
    print()
    stored = f"{types(sizes['file_dtypes'])}, {8 * sizes['file_bytes'] / sizes['parameters']:.1f} bits a weight"
    a_token, all_tokens = size(sizes["cache_bytes_per_token"]), size(sizes["cache_bytes_at_full_context"])
    lines = [
        ("file", f"{source.path} ({source.store.format}, {size(sizes['file_bytes'])}, {stored})"),
        ("memory", f"{size(sizes['memory_bytes'])} of weights as they are loaded"),
        ("cache", f"{a_token} a token, {all_tokens} for a context of {source.spec.decoder.context}"),
        ("tensors", tensors(report)),
        *tokenizer_lines(tokenizer),
    ]
    terminal.pairs(lines)


def branch(node: Node) -> Tree:
    """The node as a rich tree."""
    from rich.text import Text
    from rich.tree import Tree

    count = f"  {amount(node.parameters)}" if node.parameters else ""
    label = Text.assemble((node.name, "bold"), (count, "cyan"), f"  {node.text}" if node.text else "")
    tree = Tree(label, guide_style="dim")
    tree.children.extend(branch(child) for child in node.children)
    return tree


def tensors(report: dict[str, Any]) -> str:
    """What became of the file's tensors, in one line."""
    said = [f"{report['found']} found"]
    for kind in ("tied", "ignored", "unused"):
        names = report[kind]
        if names:
            said.append(f"{len(names)} {kind} ({', '.join(names[:NAMES])}{', ...' if len(names) > NAMES else ''})")
    return ", ".join(said)


def tokenizer_lines(tokenizer: Tokenizer | None) -> list[tuple[str, str]]:
    """Kind, size and special tokens, and how the chat template begins."""
    if tokenizer is None:
        return [("tokenizer", "none")]
    start = f"{_token(tokenizer, tokenizer.bos_id)} before every text" if tokenizer.adds_bos else "nothing"
    ends = ", ".join(_token(tokenizer, token) for token in tokenizer.eos_ids) or "nothing"
    control = [tokenizer.token_text(token) for token in sorted(tokenizer.control_ids)]
    lines = [
        ("tokenizer", f"{repr(tokenizer).removeprefix('Tokenizer(').removesuffix(')')}"),
        ("", f"starts with {start}, ends with {ends}"),
        ("", f"control tokens {' '.join(control[:NAMES])}{' ...' if len(control) > NAMES else ''}"),
    ]
    return [*lines, *_template_lines(tokenizer.chat_template)]


def _token(tokenizer: Tokenizer, token: int | None) -> str:
    return "none" if token is None else f"{tokenizer.token_text(token)} ({token})"


def _template_lines(template: str | None) -> list[tuple[str, str]]:
    if template is None:
        return [("template", "none")]
    lines = template.splitlines() or [""]
    shown = [line if len(line) <= 160 else f"{line[:157]}..." for line in lines[:TEMPLATE_LINES]]
    more = len(lines) > TEMPLATE_LINES or max(map(len, lines)) > 160
    rows = [("template" if at == 0 else "", line) for at, line in enumerate(shown)]
    return [*rows, ("", "(--template prints all of it)")] if more else rows
