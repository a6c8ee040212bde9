"""Runs compiled kernels of one warp a program on the CPU, each instruction as NVIDIA's PTX ISA says, on all lanes.

An independent reading of the ISA, for kernels that nobody can run where there is no GPU. A read or write outside of
the arguments, a branch on which lanes disagree, an instruction that is not known, and a byte of shared memory that one
lane writes and another reads without a barrier between them are errors.
"""

import re
from collections.abc import Callable, Sequence
from copy import copy
from math import prod
from typing import Any

import numpy as np

SHARED_BYTES = 1 << 13
SPECIAL = ("%tid.x", "%ctaid.x", "%ctaid.y", "%ctaid.z", "%nctaid.x", "%nctaid.y")
COMPARE: dict[str, Callable[[Any, Any], Any]] = {
    "eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal
}  # fmt: skip
BINARY: dict[str, Callable[[Any, Any], Any]] = {
    "add": np.add, "sub": np.subtract, "and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor,
    "min": np.minimum, "max": np.maximum
}  # fmt: skip


class PtxError(Exception):
    """A program does what the hardware would not forgive, or what this file does not know."""


class PtxKernel:
    """A kernel, from its PTX text."""

    def __init__(self, text: str) -> None:
        body = re.sub(r"//[^\n]*|^\s*\.(?:loc|file)[^\n]*", "", text, flags=re.MULTILINE)
        head, _, body = body[body.index(".entry") :].partition("\n{")
        self.parameters = re.findall(r"\.param \.(\w+)[^,)]*?(\w+)\s*[,)\n]", head)
        self.labels: dict[str, int] = {}
        self.shared: dict[str, int] = {"global_smem": SHARED_BYTES // 2}
        self.steps: list[tuple[str | None, list[str], list[str]]] = []
        room = 0
        for statement in re.findall(r"\$?\w+:|[^;:]+;", body[: body.rindex("}")]):
            line = " ".join(statement.strip(" \t\n;").lstrip("{}").split())
            line = re.sub(r"^(?:[{}] ?)+(?=[.@a-z])", "", line)
            if statement.endswith(":"):
                self.labels[statement[:-1]] = len(self.steps)
            elif found := re.fullmatch(r"\.shared \.align \d+ \.b8 (\w+)\[(\d+)\]", line):
                self.shared[found[1]], room = room, room + int(found[2])
            elif line and not line.startswith((".reg", ".pragma")):
                found = re.fullmatch(r"(?:@(!?[%\w]+) )?([\w.:]+) ?(.*)", line)
                assert found is not None, line
                guard, opcode, operands = found.groups()
                self.steps.append((guard, opcode.split("."), re.findall(r"\{[^}]*\}|\[[^\]]*\]|[^,\s]+", operands)))

    def run(self, grid: tuple[int, ...], arguments: Sequence[Any], at_once: int = 64) -> int:
        """Run all programs.

        Args:
            grid: (x, y) or (x, y, z).
            arguments: contiguous arrays, which are read and written, and integers; what is left out is 0.
            at_once: how many programs take the same step together, until a branch parts them.

        Returns:
            The number of steps.
        """
        arrays = [each.reshape(-1).view(np.uint8) for each in arguments if isinstance(each, np.ndarray)]
        bases = [(number + 1) << 40 for number in range(len(arrays))]
        places = iter(bases)
        numbers = [next(places) if isinstance(each, np.ndarray) else int(each) for each in arguments]
        parameters = dict(zip([name for _, name in self.parameters], numbers, strict=False))
        memory = dict(zip(bases, arrays, strict=True))
        total = 0
        for first in range(0, prod(grid), at_once):
            programs = np.arange(first, min(first + at_once, prod(grid)))
            shared = _Shared(len(programs))
            groups = [_Warps(self, memory, parameters, shared, programs - first, programs, grid)]
            while groups:
                total += groups.pop().run(groups)
        return total


class _Shared:
    """The shared memory of some programs, and who used which byte of it, since which barrier."""

    def __init__(self, num_programs: int) -> None:
        # nothing is zero by itself
        self.bytes = np.random.default_rng(0).integers(0, 256, num_programs * SHARED_BYTES, np.uint8)
        self.written, self.read = (np.zeros((len(self.bytes), 2), np.int64) for _ in range(2))  # epoch, lane

    def check_race(self, places: np.ndarray, lanes: np.ndarray, epoch: int, is_store: bool) -> None:
        other, mine = (self.read, self.written) if is_store else (self.written, self.read)
        if ((other[places, 0] == epoch) & (other[places, 1] != lanes)).any():
            raise PtxError("shared memory: two lanes use a byte without a barrier between them")
        mine[places, 0], mine[places, 1] = epoch, np.broadcast_to(lanes, places.shape)


class _Warps:
    """Programs that go the same way; a register has a value for each of their lanes."""

    def __init__(
        self,
        kernel: PtxKernel,
        memory: dict[int, np.ndarray],
        parameters: dict[str, int],
        shared: _Shared,
        slots: np.ndarray,
        programs: np.ndarray,
        grid: tuple[int, ...],
    ) -> None:
        self.kernel, self.memory, self.parameters, self.shared, self.grid = kernel, memory, parameters, shared, grid
        self.lane = np.tile(np.arange(32), len(programs))
        self.slot, program = np.repeat(slots, 32), np.repeat(programs, 32)
        x, y, z = program % grid[0], program // grid[0] % grid[1], program // (grid[0] * grid[1])
        special = (self.lane, x, y, z, 0 * program + grid[0], 0 * program + grid[1])
        self.registers = {name: each.astype(np.uint64) for name, each in zip(SPECIAL, special, strict=True)}
        self.epoch, self.at = 1, 0

    def part(self, chosen: np.ndarray, place: int) -> "_Warps":
        made = copy(self)
        made.lane, made.slot, made.at = self.lane[chosen], self.slot[chosen], place
        made.registers = {name: each[chosen] for name, each in self.registers.items()}
        return made

    def run(self, groups: "list[_Warps]") -> int:
        """Go on to the end; programs that a branch parts from the others join `groups`."""
        count, steps = 0, self.kernel.steps
        while self.at < len(steps):
            guard, opcode, operands = steps[self.at]
            self.at, count = self.at + 1, count + 1
            active = np.ones(len(self.lane), bool)
            if guard is not None:
                active = self.registers[guard.lstrip("!")].astype(bool) ^ guard.startswith("!")
            if opcode[0] in ("bra", "ret"):
                taken = active.reshape(-1, 32)
                if (taken.any(1) != taken.all(1)).any():
                    raise PtxError(f"lanes disagree at a branch: {' '.join(operands)}")
                to = self.kernel.labels[operands[0]] if opcode[0] == "bra" else len(steps)
                if active.all():
                    self.at = to
                elif active.any():
                    groups.append(self.part(active, to))
                    vars(self).update(vars(self.part(~active, self.at)))
            else:
                self.execute(opcode, operands, active)
        return count

    def get(self, operand: str, kind: str = "b64") -> np.ndarray:
        """A value in each lane, in NumPy's type of `kind`."""
        if operand in self.kernel.shared:
            bits = np.full(len(self.lane), self.kernel.shared[operand], np.uint64)
        elif operand.startswith("0f"):
            bits = np.full(len(self.lane), int(operand[2:], 16), np.uint64)
        elif re.match(r"-?\d", operand):
            bits = np.full(len(self.lane), int(operand.rstrip("U"), 0) & (1 << 64) - 1, np.uint64)
        else:
            bits = self.registers[operand]
        if kind == "pred":
            return bits.astype(bool)
        width = int(kind[1:])
        narrow = bits.astype(f"u{width // 8}")
        return narrow.view({"s": f"i{width // 8}", "f": f"f{width // 8}"}.get(kind[0], narrow.dtype.str))

    def put(self, operand: str, value: np.ndarray, active: np.ndarray) -> None:
        if value.dtype != bool:
            value = np.ascontiguousarray(value).view(f"u{value.dtype.itemsize}")
        old = self.registers.get(operand, np.zeros(len(self.lane), np.uint64))
        self.registers[operand] = np.where(active, value.astype(np.uint64), old)

    def execute(self, opcode: list[str], operands: list[str], active: np.ndarray) -> None:
        name, kind = opcode[0], opcode[-1]
        with np.errstate(all="ignore"):
            if name == "ld" and opcode[1] == "param":
                number = self.parameters.get(operands[1].strip("[] "), 0) & (1 << 64) - 1
                self.put(operands[0], np.full(len(self.lane), number, np.uint64), active)
            elif name in ("ld", "st", "atom"):
                self.access(opcode, operands, active)
            elif name == "bar":
                self.epoch += 1
            elif name == "griddepcontrol":
                pass  # kernels run one after the other here
            elif name == "mma":
                assert opcode[3] == "m16n8k16" and opcode[6] == opcode[9] == "f32", opcode
                assert opcode[7] == opcode[8] and opcode[7] in ("bf16", "f16"), opcode
                self.multiply([_names(each) for each in operands], opcode[7])
            elif name == "mov" and (operands[0].startswith("{") or operands[1].startswith("{")):
                self.move_parts(operands, active)
            elif name == "setp":
                self.put(
                    operands[0], COMPARE[opcode[1]](self.get(operands[1], kind), self.get(operands[2], kind)), active
                )
            else:
                first, *others = operands[1:]
                self.put(operands[0], self.value(opcode, first, others), active)

    def value(self, opcode: list[str], first: str, others: list[str]) -> np.ndarray:
        name, kind = opcode[0], opcode[-1]
        a = self.get(first, kind)
        if name == "mov":
            return a
        if name == "cvt":
            return a.astype(self.get("0", opcode[-2]).dtype)
        if name == "not":
            return ~a
        if name == "neg":
            return -a
        if name == "selp":
            return np.where(self.get(others[1], "pred"), a, self.get(others[0], kind))
        b = self.get(others[0], kind if name not in ("shl", "shr") else "u32")
        if name == "div":  # of integers, toward zero
            return np.fix(a / np.where(b == 0, 1, b)).astype(a.dtype)
        if name in BINARY:
            return BINARY[name](a, b)  # type: ignore[no-any-return]
        width = int(kind[1:])
        if name in ("shl", "shr"):
            amount = np.minimum(b, width - 1).astype(a.dtype)
            moved = a << amount if name == "shl" else a >> amount
            return moved if kind[0] == "s" else np.where(b < width, moved, 0).astype(a.dtype)
        if name in ("mul", "mad"):
            wide = f"{kind[0]}{2 * width}" if opcode[1] == "wide" else kind
            dtype = self.get("0", wide).dtype
            product = a.astype(dtype) * b.astype(dtype)
            return product + self.get(others[1], wide) if name == "mad" else product
        c = self.get(others[1], kind)
        if name == "fma":
            return (a.astype(np.float64) * b + c).astype(np.float32)
        if name == "bfe":
            return (a >> b.astype(a.dtype)) & ((1 << c) - 1).astype(a.dtype)
        if name == "prmt":
            eight = a.astype(np.uint64) | b.astype(np.uint64) << np.uint64(32)
            found = np.zeros(len(a), np.uint64)
            for byte in range(4):
                selector = (c >> np.uint32(4 * byte)).astype(np.uint64) & np.uint64(15)
                picked = eight >> (selector & np.uint64(7)) * np.uint64(8) & np.uint64(255)
                sign = np.where(picked > 127, 255, 0).astype(np.uint64)
                found |= np.where(selector > 7, sign, picked) << np.uint64(8 * byte)
            return found.astype(np.uint32)
        if name == "lop3":
            table, found = int(others[2], 0), np.zeros(len(a), np.uint32)
            for row in range(8):
                if table >> row & 1:
                    found |= (a if row & 4 else ~a) & (b if row & 2 else ~b) & (c if row & 1 else ~c)
            return found
        raise PtxError(f"unknown instruction {'.'.join(opcode)}")

    def move_parts(self, operands: list[str], active: np.ndarray) -> None:
        if operands[0].startswith("{"):
            low, high = _names(operands[0])
            self.put(low, self.get(operands[1], "u16"), active)
            self.put(high, (self.get(operands[1], "u32") >> 16).astype(np.uint16), active)
        else:
            low, high = _names(operands[1])
            self.put(
                operands[0],
                self.get(low, "u16").astype(np.uint32) | self.get(high, "u16").astype(np.uint32) << 16,
                active,
            )

    def access(self, opcode: list[str], operands: list[str], active: np.ndarray) -> None:
        """Loads, stores and atomic additions."""
        is_store, is_shared = opcode[0] == "st", "shared" in opcode
        base, _, offset = operands[not is_store].strip("[] ").partition("+")
        address = self.get(base.strip())[active].astype(np.int64) + int(offset or 0)
        if not len(address):
            return
        names, width = _names(operands[is_store]), int(opcode[-1][1:]) // 8
        argument = int(address[0]) >> 40 << 40
        start = address - (0 if is_shared else argument)
        memory = self.shared.bytes if is_shared else self.memory.get(argument)
        room = SHARED_BYTES if is_shared else 0 if memory is None else len(memory)
        wrong = (start < 0) | (start > room - width * len(names)) | (start % (width * len(names)) != 0)
        if memory is None or wrong.any():
            raise PtxError(f"{'.'.join(opcode)}: address {int(address[wrong][0]):#x} is outside or not aligned")
        if is_shared:
            start = start + self.slot[active] * SHARED_BYTES
        for index, name in enumerate(names):
            places = start[:, None] + (index * width + np.arange(width))
            if is_shared:
                self.shared.check_race(places, self.lane[active][:, None], self.epoch, is_store)
            if is_store:
                memory[places] = self.get(name, f"u{8 * width}")[active].view(np.uint8).reshape(-1, width)
                continue
            found = np.zeros(len(self.lane), f"u{width}")
            found[active] = memory[places].view(found.dtype)[:, 0]
            if opcode[0] == "atom":
                assert "add" in opcode, opcode
                amount = self.get(operands[2], f"u{8 * width}")
                for lane, where in zip(np.flatnonzero(active), places, strict=True):  # one after the other
                    found[lane] = memory[where].view(found.dtype)[0]
                    memory[where] = (found[lane : lane + 1] + amount[lane]).view(np.uint8)
            self.put(name, found, active)

    def multiply(self, operands: list[list[str]], kind: str) -> None:
        """mma.m16n8k16: lane 4 g + t has rows g and g + 8 of A and D, column g of B, and pairs of columns or rows t."""
        count = len(self.lane) // 32
        warp, g, t = np.arange(len(self.lane)) // 32, self.lane // 4, self.lane % 4
        a, b, sums = np.zeros((count, 16, 16)), np.zeros((count, 16, 8)), np.zeros((count, 16, 8))
        for index, name in enumerate(operands[1]):
            for half in range(2):
                a[warp, g + 8 * (index % 2), 2 * t + half + 8 * (index // 2)] = self.half(name, half, kind)
        for index, name in enumerate(operands[2]):
            for half in range(2):
                b[warp, 2 * t + half + 8 * index, g] = self.half(name, half, kind)
        for index, name in enumerate(operands[3]):
            sums[warp, g + 8 * (index // 2), 2 * t + index % 2] = self.get(name, "f32")
        sums = (sums + a @ b).astype(np.float32)
        for index, name in enumerate(operands[0]):
            self.put(name, sums[warp, g + 8 * (index // 2), 2 * t + index % 2], np.ones(len(self.lane), bool))

    def half(self, name: str, half: int, kind: str) -> np.ndarray:
        """A number of 16 bits, of the two in a register."""
        bits = self.get(name, "u32") >> np.uint32(16 * half)
        if kind == "f16":
            return bits.astype(np.uint16).view(np.float16).astype(np.float32)
        return (bits << np.uint32(16)).view(np.float32)


def _names(operand: str) -> list[str]:
    return [each.strip() for each in operand.strip("{} ").split(",")]
