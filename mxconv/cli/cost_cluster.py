"""`mxconv cost --cluster`: how long a conversion takes on 1, 2, 4, ... nodes, and what bounds it."""

from pathlib import Path

from mxconv.cli.output import console, format_bytes, print_json


def print_cluster(
    package: Path | None,
    config: Path | None,
    num_nodes: int,
    processors: int,
    network: float,
    store: float,
    json_output: bool,
) -> None:
    """Print a row for each codec and number of nodes.

    Args:
        package: whose target would be converted, or
        config: a config.json of it.
        num_nodes: at most.
        processors: of a node.
        network: of a node, GB/s.
        store: of the shared folder, GB/s.
        json_output: also print one JSON object.

    Raises:
        MxconvError: the model is not known.
    """
    from rich.table import Table

    from mxconv.arch.model_sizes import ModelSizes
    from mxconv.cost.conversion_time import GB, PASSES, Cluster, conversion_time
    from mxconv.cost.counts import count_parameters

    assert (package is None) != (config is None)
    path = config if package is None else package / "config.json"
    assert path is not None
    num_bytes = 2 * count_parameters(ModelSizes.from_file(path)).total
    table, rows = Table("codec", "nodes", "minutes", "bound by"), []
    counts = [2**n for n in range(num_nodes.bit_length()) if 2**n < num_nodes] + [num_nodes]
    for codec in PASSES:
        for count in counts:
            found = conversion_time(num_bytes, codec, Cluster(count, processors, network * GB, store * GB))
            table.add_row(codec, str(count), f"{found.seconds / 60:.2f}", found.bottleneck)
            rows.append(
                {
                    "codec": codec,
                    "num_nodes": count,
                    "seconds": found.seconds,
                    "bottleneck": found.bottleneck,
                    "seconds_by_resource": found.seconds_by_resource,
                    "last_hash_seconds": found.last_hash_seconds,
                }
            )
    out = console(json_output)
    out.print(table)
    out.print(
        f"{format_bytes(num_bytes)} of 16-bit weights; {processors} processors and {network:g} GB/s a node, {store:g} "
        "GB/s from a folder that all share. A model on paper: docs/scale.md.",
        highlight=False,
    )
    if json_output:
        print_json({"num_bytes": num_bytes, "predictions": rows})
