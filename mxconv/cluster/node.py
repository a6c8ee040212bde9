"""What a node is called in a report."""

import socket
import sys
from typing import Any

ID_LENGTH = 8  # of Ray's id: enough to find it on the dashboard


def node_name() -> str:
    """The host's name; in a worker with the beginning of Ray's id for the node, since nodes may share a machine."""
    ray: Any = sys.modules.get("ray")  # in a worker it is there
    if ray is None or not ray.is_initialized():
        return socket.gethostname()
    return f"{socket.gethostname()} ({ray.get_runtime_context().get_node_id()[:ID_LENGTH]})"
