"""The C policy (producers/policy.h) for Python, through ctypes and numpy: what producers act with."""

import ctypes
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from producers.program import Program, ProgramError

LIBRARY = Path(__file__).with_name("policy.so")

_pointer, _u64 = ctypes.c_void_p, ctypes.c_uint64
_SIGNATURES = {
    "hr_policy_create": (
        _pointer,
        [ctypes.c_char_p, _u64, ctypes.c_uint32, ctypes.c_char_p, ctypes.c_size_t],
    ),
    "hr_policy_destroy": (None, [_pointer]),
    "hr_policy_bytes": (_u64, [_pointer]),
    "hr_policy_load": (None, [_pointer, _pointer]),
    "hr_policy_act": (None, [_pointer] * 5 + [_u64] * 3 + [ctypes.c_int] + [_pointer] * 2),
    "hr_policy_logits": (None, [_pointer] * 5),
}


class CPolicy:
    """Acts for a fixed number of agents. `load` before the first `act`."""

    def __init__(self, program: Program | bytes, agents: int, library: Path = LIBRARY) -> None:
        """`program` may be encoded. ProgramError where the C policy refuses it."""
        code = program if isinstance(program, bytes) else program.encode()
        self._policy = None
        self._library = _load(library)
        error = ctypes.create_string_buffer(256)
        self._policy = self._library.hr_policy_create(code, len(code), agents, error, len(error))
        if not self._policy:
            raise ProgramError(error.value.decode())
        self.program = Program.decode(code)
        self.agents = agents

    def __del__(self) -> None:
        if self._policy:
            self._library.hr_policy_destroy(self._policy)

    @property
    def allocated_bytes(self) -> int:
        return int(self._library.hr_policy_bytes(self._policy))

    def load(self, flat: NDArray[np.float32]) -> None:
        """Takes the weights: float32 [program.count] in program order."""
        flat = np.ascontiguousarray(flat, np.float32)
        if flat.shape != (self.program.count,):
            raise ValueError(f"{flat.shape} weights for a program of {self.program.count}")
        self._library.hr_policy_load(self._policy, flat.ctypes.data)

    def act(
        self,
        obs: NDArray,
        mask: NDArray[np.uint8] | None = None,
        *,
        state: NDArray[np.float32] | None = None,
        reset_before: NDArray[np.uint8] | None = None,
        key: int = 0,
        first_agent: int = 0,
        step: int = 0,
        argmax: bool = False,
    ) -> tuple[NDArray, NDArray[np.float32]]:
        """Actions [agents, heads], int32 or of a Gaussian float32, and their log-probability [agents]
        float32, for obs [agents, *obs_shape] and mask [agents, logits]. A recurrent program reads and writes
        `state` [agents, state_width], the rows in `reset_before` [agents] zeroed first. The noise is a
        function of (key, first_agent + row, step, head)."""
        obs, mask = self._checked(obs), self._checked_mask(mask)
        actions = np.empty((self.agents, self.program.heads), self.program.buffers[self.program.action].dtype)
        log_prob = np.empty(self.agents, np.float32)
        self._library.hr_policy_act(
            self._policy, obs.ctypes.data, _address(mask), *self._memory(state, reset_before),
            key, first_agent, step, argmax, actions.ctypes.data, log_prob.ctypes.data,
        )  # fmt: skip
        return actions, log_prob

    def logits(
        self,
        obs: NDArray,
        *,
        state: NDArray[np.float32] | None = None,
        reset_before: NDArray[np.uint8] | None = None,
    ) -> NDArray[np.float32]:
        """Logits [agents, logits] float32, before masking, or a Gaussian's means; else as `act`."""
        obs = self._checked(obs)
        logits = np.empty((self.agents, self.program.logits), np.float32)
        memory = self._memory(state, reset_before)
        self._library.hr_policy_logits(self._policy, obs.ctypes.data, *memory, logits.ctypes.data)
        return logits

    def _memory(
        self, state: NDArray[np.float32] | None, reset_before: NDArray[np.uint8] | None
    ) -> tuple[int | None, int | None]:
        """Addresses of both."""
        shape = (self.agents, self.program.state_width)
        if shape[1] == 0:
            return None, None
        if state is None or state.dtype != np.float32 or state.shape != shape or not state.flags.c_contiguous:
            raise ValueError(f"a recurrent program needs its state, a contiguous float32 {shape}")
        if reset_before is not None and _array(reset_before, "uint8", shape[:1]) is not reset_before:
            raise ValueError("reset_before is not contiguous")
        return _address(state), _address(reset_before)

    def _checked(self, obs: NDArray) -> NDArray:
        buffer = self.program.buffers[self.program.obs]
        return _array(obs, buffer.dtype, (self.agents, *buffer.shape))

    def _checked_mask(self, mask: NDArray[np.uint8] | None) -> NDArray[np.uint8] | None:
        return None if mask is None else _array(mask, "uint8", (self.agents, self.program.logits))


def _array(array: NDArray, dtype: str, shape: tuple[int, ...]) -> NDArray:
    if array.dtype != dtype or array.shape != shape:
        raise ValueError(f"{array.dtype} {array.shape} where {dtype} {shape} is needed")
    return np.ascontiguousarray(array)


def _address(array: NDArray | None) -> int | None:
    return None if array is None else array.ctypes.data


def _load(path: Path) -> ctypes.CDLL:
    if not path.exists():
        raise FileNotFoundError(f"{path} is missing: run make build")
    library = ctypes.CDLL(str(path))
    for name, (result, arguments) in _SIGNATURES.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library
