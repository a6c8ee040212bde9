"""What llvm-mca expects of the NEON kernels: instructions and cycles for a tile of 16 x 8 weights.

    tests/aarch64/run predict

Prints the table of docs/arm.md. Loops come out of the disassembly of what tests/aarch64/run compiled, are found
by their instructions, and are scaled to a tile and all tokens of a pass. Caches and memory are taken to be infinitely
fast, and a loop to go on for ever: these are predictions, nobody has measured them.
"""

import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

CORES = {"neoverse-v2": ("neon", "neoni8mm", "neonbf16"), "apple-m1": ("neon",)}  # and the kernels that it runs
ITERATIONS = 200


@dataclass(frozen=True)
class Loop:
    """Part of a kernel, and which loop does it."""

    object_file: str
    what: str
    tokens: int  # of the pass; 0 where it does not matter
    counts: dict[str, int]  # how many of these instructions the loop has
    times: float  # how often it runs for a tile and the tokens


def functions(disassembly: str) -> list[list[tuple[int, str]]]:
    """Instructions with their addresses."""
    found: list[list[tuple[int, str]]] = []
    for line in disassembly.splitlines():
        if re.match(r"[0-9a-f]+ <.*>:$", line):
            found.append([])
        body = re.match(r"\s*([0-9a-f]+):\s+(\S.*)$", line)
        if body:
            text = re.sub(r"\s*//.*$", "", body[2])
            found[-1].append((int(body[1], 16), text))
    return found


def loops(instructions: list[tuple[int, str]]) -> list[list[str]]:
    """Bodies that a branch goes back over, without the branches, shortest first."""
    places = {address: i for i, (address, _) in enumerate(instructions)}
    found = []
    for i, (_, text) in enumerate(instructions):
        branch = re.match(r"(?:b\.\w+|b|cbn?z|tbn?z)\s+(?:.*,\s*)?([0-9a-f]+) <", text)
        if branch and places.get(int(branch[1], 16), i) < i:
            body = [text for _, text in instructions[places[int(branch[1], 16)] : i]]
            found.append([text for text in body if not re.match(r"(b|b\.\w+|cbn?z|tbn?z|bl|ret)\s", text)])
    return sorted(found, key=len)


def count(body: list[str], mnemonic: str) -> int:
    return sum(text.split()[0] == mnemonic for text in body)


def chosen(loop: Loop, bodies: list[list[str]]) -> list[str]:
    """The shortest loop with these numbers of instructions."""
    for body in bodies:
        if all(count(body, mnemonic) == number for mnemonic, number in loop.counts.items()):
            return body
    raise SystemExit(f"{loop.object_file}, {loop.what}: no loop has {loop.counts}; look at its disassembly")


def cycles(llvm_mca: str, body: list[str], core: str) -> float:
    command = [llvm_mca, "-mtriple=aarch64", f"-mcpu={core}", f"-iterations={ITERATIONS}"]
    done = subprocess.run(command, input="\n".join(body), capture_output=True, text=True)
    total = re.search(r"Total Cycles:\s+(\d+)", done.stdout)
    if done.returncode != 0 or not total:
        raise SystemExit(f"llvm-mca: {done.stderr}")
    return int(total[1]) / ITERATIONS


SHARED = {"tbl": 16, "orr": 0, "cmtst": 0}
SHIFTED = {"tbl": 16, "orr": 8, "cmtst": 0}
SHIFTED_9 = {"tbl": 24, "orr": 8, "cmtst": 8}
LOOPS = [
    *[
        loop
        for what, widen in (("bf16", "and"), ("fp16", "fcvtl"))
        for loop in (
            Loop("neon", what, 1, {"fmla": 16, widen: 8}, 2),  # eight rows a time
            Loop("neon", what, 4, {"fmla": 16, widen: 2}, 8),  # two rows
            Loop("neon", what, 8, {"fmla": 16, widen: 2}, 16),
        )
    ],
    Loop("neonbf16", "bf16", 1, {"bfmmla": 16, "dup": 2}, 1),
    Loop("neonbf16", "bf16", 4, {"bfmmla": 16, "zip1": 6}, 2),
    Loop("neonbf16", "bf16", 8, {"bfmmla": 16, "zip1": 6}, 4),
    # four tiles a time; E8M0 bytes are widened by ushll
    Loop("neon", "mxfp4-int8", 1, {"sdot": 32, "ushll": 1, "tbl": 32}, 1 / 4),
    Loop("neon", "mxfp4-int8", 4, {"sdot": 128, "ushll": 1, "tbl": 32}, 1 / 4),
    Loop("neon", "mxfp4-int8", 8, {"sdot": 256, "ushll": 1, "tbl": 32}, 1 / 4),
    Loop("neon", "mxint8", 1, {"sdot": 32, "tbl": 0}, 1 / 4),
    Loop("neon", "mxint8", 4, {"sdot": 128, "tbl": 0}, 1 / 4),
    Loop("neon", "mxint8", 8, {"sdot": 256, "tbl": 0}, 1 / 4),
    Loop("neon", "bsfp-draft", 1, {"sdot": 32, "ushll": 0, "tbl": 32}, 1 / 4),
    Loop("neon", "bsfp-draft", 4, {"sdot": 128, "ushll": 0, "tbl": 32}, 1 / 4),
    Loop("neon", "bsfp-draft", 8, {"sdot": 256, "ushll": 0, "tbl": 32}, 1 / 4),
    Loop("neoni8mm", "mxfp4-int8", 4, {"smmla": 64, "ushll": 1, "tbl": 32}, 1 / 4),
    Loop("neoni8mm", "mxfp4-int8", 8, {"smmla": 128, "ushll": 1, "tbl": 32}, 1 / 4),
    Loop("neoni8mm", "mxint8", 4, {"smmla": 64, "tbl": 0}, 1 / 4),
    Loop("neoni8mm", "mxint8", 8, {"smmla": 128, "tbl": 0}, 1 / 4),
    Loop("neon", "bsfp-full: a tile rebuilt, shared starts, R = 8", 0, SHARED, 1),
    Loop("neon", "bsfp-full: a tile rebuilt, row shifts, R = 8", 0, SHIFTED, 1),
    Loop("neon", "bsfp-full: a tile rebuilt, row shifts, R = 9", 0, SHIFTED_9, 1),
    Loop("neon", "mxfp4-fp32", 1, {"fmla": 33, "tbl": 20}, 1),
    Loop("neon", "mxfp4-fp32", 4, {"fmla": 32, "tbl": 5}, 4),  # four rows of a tile
    Loop("neon", "mxfp4-fp32", 8, {"fmla": 32, "tbl": 5}, 8),
    Loop("neon", "MXFP4 encoder: codes", 0, {"uqsub": 16, "usra": 16, "sli": 4}, 1),  # four rows of four tiles
    Loop("neon", "BSFP encoder, R = 8", 0, {"cmhs": 12, "fmla": 16, "sli": 0, "shll": 8, "cmtst": 0}, 4),  # one row
]


def main(objects: Path, objdump: str, llvm_mca: str) -> None:
    print("| kernel | what | tokens | instructions | " + " | ".join(f"cycles, {core}" for core in CORES) + " |")
    print("|---|---|---|---|" + "---|" * len(CORES))
    bodies = {}
    for name in dict.fromkeys(loop.object_file for loop in LOOPS):
        files = [objects / f"{file}.cpp.o" for file in ((name, "shared_neon") if name == "neon" else (name,))]
        command = [objdump, "-d", "--no-show-raw-insn", *map(str, files)]
        disassembly = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        bodies[name] = sorted((body for code in functions(disassembly) for body in loops(code)), key=len)
    for loop in LOOPS:
        body = chosen(loop, bodies[loop.object_file])
        fields = [loop.object_file, loop.what, str(loop.tokens or "any"), f"{len(body) * loop.times:.0f}"]
        for core, kernels in CORES.items():
            can = loop.object_file in kernels
            fields.append(f"{cycles(llvm_mca, body, core) * loop.times:.0f}" if can else "none")
        print(f"| {' | '.join(fields)} |")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], sys.argv[3])
