"""From a spec to a tape: every part of a step as one native call, at places that never move."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from headway.native.library import Pool
from headway.native.matrix import Matrix
from headway.native.structs import (
    TARGETS,
    Activation,
    ActivationArgs,
    AttentionArgs,
    CacheStruct,
    CombineArgs,
    EmbedArgs,
    Format,
    GatherArgs,
    KeepArgs,
    LinearArgs,
    NormArgs,
    Op,
    RotaryArgs,
    SoftcapArgs,
    StepStruct,
    Target,
)
from headway.ops.tables import alibi_slopes
from headway.spec.mixers import Attention, FeedForward
from headway.spec.model import Branch, ModelSpec, Step
from headway.spec.parts import HeadNorm, LayerScale, Norm
from headway.spec.position import Alibi, LearnedPositions, Rope, SinusoidalPositions
from headway.spec.state import states
from headway.tape.place import Inputs, Place, Places, aligned
from headway.tape.tables import (
    BiasTable,
    ChangingRopeTable,
    LearnedTable,
    RopeTable,
    Table,
    WaveTable,
    rope_table,
)
from headway.tape.weights import Weights

HEAD_TOKENS = 64  # tokens whose logits one run makes at most


def missing(spec: ModelSpec) -> tuple[str, ...]:
    """What of `spec` has no native form, each as the field's path and its value; nothing when all of it has.

    A model runs natively as a whole or not at all: one part in another library would cost more than it gives.
    """
    found = []
    if len(spec.stacks) != 1:
        found.append(f"stacks: {len(spec.stacks)} of them; a tape runs one")
    if not spec.heads:
        found.append("heads: none; a tape ends in logits")
    for stack in spec.stacks:
        for index, layer in enumerate(stack.layers):
            for branch in layer.branches:
                path = f"stacks.{stack.name}.layers[{index}].{branch.name}"
                mixer: object = branch.mixer  # a new kind is missing here until it is lowered
                match mixer:
                    case Attention(source="memory"):
                        found.append(f"{path}.source = memory")
                    case FeedForward(activation=activation) if activation.upper() not in Activation.__members__:
                        found.append(f"{path}.activation = {activation}")
                    case Attention() | FeedForward():
                        pass
                    case other:
                        found.append(f"{path} is a {type(other).__name__}")
    return tuple(found)


@dataclass
class Ring:
    """An attention over a window: whether new keys enter the ring before they are read, or stand beside it."""

    window: int
    cache: CacheStruct
    attention: AttentionArgs
    keys: int  # where the step's own keys and values lie
    values: int
    before: int  # places on the tape of the two calls that keep, of which one is passed over
    after: int
    beside: bool | None = None

    def turn(self, steps: Any, beside: bool) -> None:
        """Read the step's keys beside the ring, or out of it."""
        if beside == self.beside:
            return
        self.beside = beside
        steps[self.before].skip, steps[self.after].skip = int(beside), int(not beside)
        self.attention.fresh_k = self.keys if beside else None
        self.attention.fresh_v = self.values if beside else None


@dataclass
class Tape:
    """Calls in order, for up to `tokens` tokens in one run: a body, then a head for those whose logits are wanted."""

    tokens: int
    inputs: Inputs
    caches: Any  # CacheStruct array that calls read; a cache is put in by copying its own over it
    hidden: Place
    logits: Place
    causal: bool
    steps: Any = None  # StepStruct array
    body: int = 0  # calls before the head
    labels: list[str] = field(default_factory=list)  # the parameter path, or what a call does, by place
    tables: list[Table] = field(default_factory=list)
    rings: list[Ring] = field(default_factory=list)
    kept: list[Any] = field(default_factory=list)  # what the calls point to


def lower(spec: ModelSpec, weights: Weights, pool: Pool, *, tokens: int, cache_format: Format) -> Tape:
    """The tape of `spec`, of which `missing` is empty."""
    return _Lowering(spec, weights, pool, tokens, cache_format).tape


class _Lowering:
    """One lowering under way: calls are added in the order in which they run."""

    def __init__(self, spec: ModelSpec, weights: Weights, pool: Pool, tokens: int, cache_format: Format) -> None:
        self.spec, self.weights, self.pool, self.library = spec, weights, pool, weights.library
        stack, head = spec.decoder, spec.heads[0]
        self.stack, self.path = stack, f"stacks.{stack.name}"
        self.places, self.inputs = Places(tokens), Inputs(tokens)
        self.states = states(spec)
        self.calls: list[tuple[Op, ctypes.Structure]] = []
        self.workers: list[LinearArgs | AttentionArgs] = []
        self.work_bytes = 0
        self.ropes: dict[Rope, RopeTable | ChangingRopeTable] = {}
        self.x = self.places("x", stack.width)
        hidden = self.places("hidden", stack.width) if stack.final_norm else self.x
        logits = Place(aligned((min(tokens, HEAD_TOKENS), head.vocab), np.float32))
        self.tape = Tape(
            tokens=tokens,
            inputs=self.inputs,
            caches=(CacheStruct * max(1, len(self.states)))(),
            hidden=hidden,
            logits=logits,
            causal=all(mixer.mask.after == 0 for mixer in self._attentions()),
        )
        for state, struct in zip(self.states.values(), self.tape.caches, strict=False):
            struct.kv_heads, struct.head_dim, struct.value_dim = state.kv_heads, state.head_dim, state.value_dim
            struct.format, struct.room, struct.rows = int(cache_format), 1, 1
        self.biases = self._biases()
        self._stem()
        for index, layer in enumerate(stack.layers):
            for step in layer.steps:
                self._step(f"{self.path}.layers.{index}", step)
        if stack.final_norm:
            self._norm(f"{self.path}.final_norm", stack.final_norm, self.x, hidden)
        self.tape.body = len(self.calls)
        self._head()
        self._finish()

    # Building blocks

    def _add(self, label: str, op: Op, args: ctypes.Structure) -> int:
        self.calls.append((op, args))
        self.tape.labels.append(label)
        return len(self.calls) - 1

    def _keep(self, *things: Any) -> None:
        self.tape.kept += things

    @property
    def _n(self) -> int:
        return self.inputs.n.ctypes.data

    def _vector(self, path: str) -> int:
        return self.weights.vector(path).ctypes.data

    def _linear(
        self,
        label: str,
        x: Place,
        targets: Sequence[tuple[str, bool, Place]],
        *,
        n: int | None = None,
        scale: float = 1.0,
        accumulate: bool = False,
    ) -> None:
        """Products of `x` with the matrices at the targets' paths, each with its bias or without, to its place."""
        assert len(targets) <= TARGETS
        args = LinearArgs(
            n=n or self._n, x=x.address, x_stride=x.size, targets=len(targets), scale=scale, accumulate=accumulate
        )
        for place, (path, bias, y) in enumerate(targets):
            matrix = self.weights.matrix(f"{path}.weight")
            bias_at = self._vector(f"{path}.bias") if bias else None
            args.target[place] = Target(ctypes.pointer(matrix.struct), bias_at, y.address, y.size)
        self._needs(self.library.c.hw_linear_work(ctypes.byref(args), self.places.tokens, self.pool.handle))
        self.workers.append(args)
        self._add(label, Op.LINEAR, args)

    def _norm(self, path: str, norm: Norm, x: Place, y: Place, *, heads: int = 1) -> None:
        """Each token's numbers, or those of each of its `heads`, normed."""
        args = NormArgs(
            n=self._n,
            x=x.address,
            y=y.address,
            x_stride=x.size,
            y_stride=y.size,
            width=x.size // heads,
            per=heads,
            eps=norm.eps,
            offset=norm.offset if norm.weight else 0.0,
            weight=self._vector(f"{path}.weight") if norm.weight else None,
            bias=self._vector(f"{path}.bias") if norm.bias else None,
        )
        self._add(path, Op.LAYER_NORM if norm.kind == "layer" else Op.RMS_NORM, args)

    def _combine(
        self, label: str, a: Place, y: Place, *, scale: float = 1.0, vector: str = "", plus: Place | None = None
    ) -> None:
        """y = scale * vector * a + plus."""
        args = CombineArgs(
            n=self._n,
            a=a.address,
            b=plus.address if plus else None,
            vector=self._vector(vector) if vector else None,
            y=y.address,
            a_stride=a.size,
            b_stride=plus.size if plus else 0,
            y_stride=y.size,
            width=a.size,
            a_scale=scale,
            b_scale=1.0,
        )
        self._add(label, Op.COMBINE, args)

    def _embed(self, label: str, matrix: Matrix | None, ids: int, y: Place, *, scale: float, add: bool) -> EmbedArgs:
        args = EmbedArgs(n=self._n, ids=ids, y=y.address, y_stride=y.size, scale=scale, accumulate=add)
        if matrix is not None:
            args.matrix = ctypes.pointer(matrix.struct)
        self._add(label, Op.EMBED, args)
        return args

    def _needs(self, work_bytes: int) -> None:
        self.work_bytes = max(self.work_bytes, work_bytes)

    # Parts of a model

    def _stem(self) -> None:
        stem, path = self.stack.stem, f"{self.path}.stem"
        out = self.x if stem.width == self.stack.width else self.places("stem", stem.width)
        scale = stem.scale
        if stem.round_scale:
            scale = _rounded(scale, self.weights.stored(f"{path}.tokens.weight"))
        table = f"{path}.tokens.weight"
        self._embed(table, self.weights.matrix(table), self.inputs.ids.ctypes.data, out, scale=scale, add=False)
        match stem.positions:
            case LearnedPositions() as learned:
                table = f"{path}.positions.weight"
                args = self._embed(table, self.weights.matrix(table), 0, out, scale=1.0, add=True)
                self.tape.tables.append(LearnedTable(learned, args, self.inputs))
            case SinusoidalPositions() as spec:
                args = self._embed(f"{path}.positions", None, 0, out, scale=1.0, add=True)
                self.tape.tables.append(WaveTable(spec, stem.width, args, self.inputs, self.library))
        if stem.types:
            table = f"{path}.types.weight"
            self._embed(table, self.weights.matrix(table), self.inputs.types.ctypes.data, out, scale=1.0, add=True)
        if stem.norm is not None:
            self._norm(f"{path}.norm", stem.norm, out, out)
        if out is not self.x:
            self._linear(f"{path}.project", out, [(f"{path}.project", True, self.x)])

    def _step(self, path: str, step: Step) -> None:
        first = f"{path}.{step.branches[0].name}"
        start = self.x
        if step.inner is not None:
            start = self.places("start", self.stack.width)
            self._norm(f"{first}_inner", step.inner, self.x, start)
        elif len(step.branches) > 1 or step.residual != 1.0:
            # Branches add to x one after the other, and all of them read what it was before.
            start = self.places("start", self.stack.width)
            self._combine(f"{first}.start", self.x, start)
        if step.residual != 1.0:
            self._combine(f"{first}.residual", self.x, self.x, scale=step.residual)
        for branch in step.branches:
            self._branch(f"{path}.{branch.name}", branch, start)
        if step.outer is not None:
            self._norm(f"{first}_outer", step.outer, self.x, self.x)

    def _branch(self, path: str, branch: Branch, start: Place) -> None:
        normed = start
        if branch.norm is not None:
            normed = self.places("normed", self.stack.width)
            self._norm(f"{path}_norm", branch.norm, start, normed)
        learned = isinstance(branch.scale, LayerScale)
        scale = 1.0 if isinstance(branch.scale, LayerScale) else float(branch.scale)
        if branch.norm_out is None and not learned:
            self._mixer(path, branch, normed, self.x, scale, True)
            return
        out = self.places("branch", self.stack.width)
        self._mixer(path, branch, normed, out, 1.0, False)
        if branch.norm_out is not None:
            self._norm(f"{path}_norm_out", branch.norm_out, out, out)
        vector = f"{path}_scale.weight" if learned else ""
        self._combine(f"{path}.add", out, self.x, scale=scale, vector=vector, plus=self.x)

    def _mixer(self, path: str, branch: Branch, x: Place, y: Place, scale: float, add: bool) -> None:
        match branch.mixer:
            case Attention() as attention:
                self._attention(path, attention, x, y, scale, add)
            case FeedForward() as feed_forward:
                self._feed_forward(path, feed_forward, x, y, scale, add)

    def _feed_forward(self, path: str, spec: FeedForward, x: Place, y: Place, scale: float, add: bool) -> None:
        up = self.places("up", spec.hidden)
        inner = self.places("gate", spec.hidden) if spec.gated else up
        targets = [(f"{path}.gate", spec.bias, inner)] if spec.gated else []
        self._linear(f"{path}.up", x, [*targets, (f"{path}.up", spec.bias, up)])
        args = ActivationArgs(
            n=self._n,
            x=inner.address,
            gate=up.address if spec.gated else None,
            y=inner.address,
            x_stride=inner.size,
            gate_stride=up.size,
            y_stride=inner.size,
            width=spec.hidden,
            kind=int(Activation[spec.activation.upper()]),
        )
        self._add(f"{path}.activations", Op.ACTIVATION, args)
        self._linear(f"{path}.down", inner, [(f"{path}.down", spec.bias, y)], scale=scale, accumulate=add)

    def _attention(self, path: str, spec: Attention, x: Place, y: Place, scale: float, add: bool) -> None:
        q = self.places("q", spec.heads * spec.head_dim)
        k = self.places("k", spec.kv_heads * spec.head_dim)
        v = self.places("v", spec.kv_heads * spec.value_dim)
        self._linear(
            f"{path}.qkv",
            x,
            [(f"{path}.{name}", name in spec.biases, to) for name, to in zip("qkv", (q, k, v), strict=True)],
        )
        for name, place, heads in (("q", q, spec.heads), ("k", k, spec.kv_heads)):
            if spec.qk_norm is not None:
                self._head_norm(f"{path}.{name}_norm", spec.qk_norm, place, heads)
            if spec.rope is not None:
                self._rotary(f"{path}.{name}.rotation", spec, spec.rope, place, heads)
        mixed = self.places("mixed", spec.heads * spec.value_dim)
        self._attend(path, spec, q, k, v, mixed)
        self._linear(f"{path}.o", mixed, [(f"{path}.o", "o" in spec.biases, y)], scale=scale, accumulate=add)

    def _head_norm(self, path: str, spec: HeadNorm, place: Place, heads: int) -> None:
        self._norm(path, spec.norm, place, place, heads=heads if spec.over == "head" else 1)

    def _rotary(self, label: str, spec: Attention, rope: Rope, x: Place, heads: int) -> None:
        args = RotaryArgs(
            n=self._n,
            x=x.address,
            x_stride=x.size,
            heads=heads,
            head_dim=spec.head_dim,
            dim=rope.dim,
            interleaved=rope.pairing == "interleaved",
        )
        if rope not in self.ropes:
            self.ropes[rope] = rope_table(rope, self.inputs)
            self.tape.tables.append(self.ropes[rope])
        self.ropes[rope].add(args)
        self._add(label, Op.ROTARY, args)

    def _attend(self, path: str, spec: Attention, q: Place, k: Place, v: Place, mixed: Place) -> None:
        inputs, mask = self.inputs, spec.mask
        cache = self.tape.caches[list(self.states).index(path)]
        keep = KeepArgs(
            n=self._n,
            cache=ctypes.pointer(cache),
            k=k.address,
            v=v.address,
            k_stride=k.size,
            v_stride=v.size,
            rows=inputs.rows.ctypes.data,
            positions=inputs.positions.ctypes.data,
        )
        args = AttentionArgs(
            n=self._n,
            q=q.address,
            y=mixed.address,
            q_stride=q.size,
            y_stride=mixed.size,
            cache=ctypes.pointer(cache),
            fresh_k_stride=k.size,
            fresh_v_stride=v.size,
            first=inputs.first.ctypes.data,
            rows=inputs.rows.ctypes.data,
            positions=inputs.positions.ctypes.data,
            lengths=inputs.lengths.ctypes.data,
            heads=spec.heads,
            causal=mask.after == 0,
            before=-1 if mask.before is None else mask.before,
            after=-1 if mask.after is None else mask.after,
            scale=spec.scale,
            softcap=spec.softcap,
            sinks=self._vector(f"{path}.sinks") if spec.sinks else None,
        )
        if spec.bias:
            self.biases[spec.bias](args)
        self._needs(self.library.c.hw_attention_work(ctypes.byref(args), self.places.tokens, self.pool.handle))
        self.workers.append(args)
        before = self._add(f"{path}.keep", Op.KEEP, keep)
        self._add(f"{path}.attend", Op.ATTENTION, args)
        if mask.window is not None:
            after = self._add(f"{path}.keep", Op.KEEP, keep)
            self.tape.rings.append(Ring(mask.window, cache, args, k.address, v.address, before, after))

    def _biases(self) -> dict[str, Callable[[AttentionArgs], None]]:
        """By name, what gives an attention its bias."""
        found: dict[str, Callable[[AttentionArgs], None]] = {}
        for bias in self.stack.biases:
            if isinstance(bias, Alibi):
                slopes = np.array(alibi_slopes(bias), np.float32)
                self._keep(slopes)
                found[bias.name] = _slopes_at(slopes.ctypes.data)
            else:
                table = BiasTable(bias, self.weights.vector(f"{self.path}.biases.{bias.name}.weight"), self.inputs)
                self.tape.tables.append(table)
                found[bias.name] = table.users.append
        return found

    def _head(self) -> None:
        head, inputs = self.spec.heads[0], self.inputs
        kept = Place(aligned((len(self.tape.logits.array), self.stack.width), np.float32))
        n, logits = inputs.kept.ctypes.data, self.tape.logits
        gather = GatherArgs(
            n=n,
            x=self.tape.hidden.address,
            index=inputs.index.ctypes.data,
            y=kept.address,
            x_stride=self.tape.hidden.size,
            y_stride=kept.size,
            width=kept.size,
        )
        self._keep(kept)
        self._add(f"heads.{head.name}.gather", Op.GATHER, gather)
        path = f"heads.{head.name}"
        self._linear(path, kept, [(path, head.bias, logits)], n=n, scale=head.scale)
        if head.softcap:
            args = SoftcapArgs(
                n=n, x=logits.address, y=logits.address, x_stride=logits.size, y_stride=logits.size,
                width=logits.size, cap=head.softcap,
            )  # fmt: skip
            self._add(f"{path}.softcap", Op.SOFTCAP, args)

    def _attentions(self) -> list[Attention]:
        branches = (branch for layer in self.stack.layers for branch in layer.branches)
        return [branch.mixer for branch in branches if isinstance(branch.mixer, Attention)]

    def _finish(self) -> None:
        """One workspace for all, and the calls as one array."""
        work = aligned((max(1, self.work_bytes),), np.uint8)
        for args in self.workers:
            args.work = work.ctypes.data
        self.tape.steps = (StepStruct * len(self.calls))(
            *(StepStruct(int(op), 0, ctypes.addressof(args)) for op, args in self.calls)
        )
        for ring in self.tape.rings:
            ring.turn(self.tape.steps, False)
        self._keep(work, self.calls, self.places, self.weights)


def _slopes_at(address: int) -> Callable[[AttentionArgs], None]:
    def give(args: AttentionArgs) -> None:
        args.slopes = address

    return give


def _rounded(scale: float, dtype: str) -> float:
    """A scale in the precision of weights that are kept in half precision."""
    if dtype == "F16":
        return float(np.float16(scale))
    if dtype == "BF16":
        bits = np.array([scale], np.float32).view(np.uint32)
        return float(((bits + 0x7FFF + ((bits >> 16) & 1)) & np.uint32(0xFFFF0000)).view(np.float32)[0])
    return scale
