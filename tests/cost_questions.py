"""Questions to the cost models, of a config.json and of a package with traces."""

import json
from pathlib import Path

from published.model_cards import LLAMA_3_1_8B

from mxconv.arch.fields import Fields
from mxconv.arch.model_sizes import ModelSizes
from mxconv.cost.answers import Question
from mxconv.cost.hardware import open_hardware
from mxconv.cost.levels import Workload, strategies_of, with_acceptance
from mxconv.cost.package_levels import package_levels, package_strategies
from mxconv.cost.trace import read_trace
from mxconv.package.package import Package


def config_question(config: dict[str, object] = LLAMA_3_1_8B, name: str = "h100-sxm") -> Question:
    architecture = ModelSizes.from_fields(Fields(config, "config.json"))
    return Question(architecture, strategies_of(architecture), open_hardware(name))


def package_question(folder: Path, traces: Path) -> Question:
    """Of a package, with one trace by its target alone and one with its 4-bit draft."""
    with Package(folder) as package:
        levels = package_levels(package)
    draft = levels[1].name
    greedy = [_line(number, "target", 0, 0, 1, 0.02) for number in range(30)]
    drafted = []
    for number in range(30):
        drafted += [_line(number, "target", 0, 0, 1, 0.03), _line(number, draft, 4, number % 5, 4, 0.02)]
    for name, lines in (("greedy", greedy), ("drafted", drafted)):
        (traces / f"{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    found = [read_trace(traces / f"{name}.jsonl") for name in ("greedy", "drafted")]
    measured = {draft: found[1].levels[1].acceptance}
    strategies = {
        name: with_acceptance(own, measured, "trace drafted") for name, own in package_strategies(levels).items()
    }
    architecture = levels[0].architecture
    assert architecture is not None
    workload = Workload(context=64, kv_dtype="fp32")
    return Question(architecture, strategies, open_hardware("core-ultra-9-285k"), workload, traces=found)


def _line(number: int, level: str, num_proposed: int, num_accepted: int, num_forwards: int, seconds: float) -> object:
    counts = {"num_proposed": num_proposed, "num_accepted": num_accepted, "num_forwards": num_forwards}
    return {"prompt": 0, "round": number, "level": level, "seconds": seconds} | counts
