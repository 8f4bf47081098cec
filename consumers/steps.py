"""A policy program as the torch module runs it: its operations, joined where one call does several' work."""

from __future__ import annotations

from dataclasses import dataclass

from producers.program import Op, Program, ProgramError

KINDS = {
    "cast_affine", "slice", "reshape", "linear", "conv2d", "multihot_conv2d", "embedding", "add", "mul",
    "activation", "layer_norm", "lstm", "mingru", "concat", "mask", "head",
}  # fmt: skip
BIASED = ("linear", "conv2d", "multihot_conv2d")  # kinds of one matrix, a bias, and perhaps a ReLU behind


@dataclass(frozen=True)
class Step:
    """One operation; or a linear one or a convolution with the ReLU behind it; or several linear ones that
    read the same buffer, as one matrix product."""

    op: Op
    outputs: tuple[int, ...]  # buffers
    sizes: tuple[int, ...]  # their widths
    weights: tuple[str, ...]  # names of parameters or buffers; of the kinds in BIASED W only
    biases: tuple[str, ...] = ()  # of the kinds in BIASED
    terminal: bool = False  # linear: the outputs are logits and value, and nothing else reads them
    relu: bool = False  # of the kinds in BIASED


def head_of(program: Program) -> int:
    return next(index for index, op in enumerate(program.ops) if op.kind == "head")


def plan(program: Program) -> list[Step]:
    """The operations as steps; see Step for what becomes one."""
    unknown = {op.kind for op in program.ops} - KINDS
    if unknown:
        raise ProgramError(f"not implemented in the torch module: {', '.join(sorted(unknown))}")
    readers: dict[int, list[Op | None]] = {}  # None: the value is read outside
    if program.value is not None:
        readers[program.value] = [None]
    for op in program.ops:
        for buffer in op.inputs:
            readers.setdefault(buffer, []).append(op)

    def is_terminal(op: Op) -> bool:
        kinds = {reader and reader.kind for reader in readers.get(op.output, ())}
        return op.kind == "linear" and kinds <= {"mask", "head", None}

    def relu_behind(op: Op) -> Op | None:
        reader = readers[op.output][0] if len(readers.get(op.output, ())) == 1 else None
        is_relu = reader is not None and reader.attrs.get("function") == "relu"
        return reader if op.kind in BIASED and is_relu else None

    steps: list[Step] = []
    done: set[int] = set()
    for index, op in enumerate(program.ops):
        if op.output in done or op.kind == "head":
            continue
        group = [op]
        for other in program.ops[index + 1 :] if is_terminal(op) else ():
            same = other.inputs == op.inputs and len(other.weights) == len(op.weights)
            if is_terminal(other) and same:
                group.append(other)
        relu = relu_behind(op)
        outputs = tuple(member.output for member in group) if relu is None else (relu.output,)
        done.update(outputs)
        own = 1 if op.kind in BIASED else len(op.weights)
        steps.append(
            Step(
                op,
                outputs,
                sizes=tuple(program.buffers[output].width for output in outputs),
                weights=tuple(weight.name for member in group for weight in member.weights[:own]),
                biases=tuple(weight.name for member in group for weight in member.weights[own:]),
                terminal=is_terminal(op),
                relu=relu is not None,
            )
        )
    return steps
