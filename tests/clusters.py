"""Processes and machines of Ray clusters in tests."""

import pathlib
from typing import Any


def parent_of(process: int) -> int:
  """Return the parent of a process."""
  text = pathlib.Path(f'/proc/{process}/stat').read_text()
  return int(text.rpartition(')')[2].split()[1])


def kill_machine(cluster: Any, nodes: list[Any], worker: int) -> None:
  """Kill a machine with all its processes, and remove it from the nodes.

  Args:
    cluster: A `ray.cluster_utils.Cluster`.
    nodes: Its machines.
    worker: A process that Ray has started on the machine.
  """
  raylet = parent_of(worker)
  (node,) = (
      node
      for node in nodes
      if raylet in [p.process.pid for p in node.all_processes['raylet']]
  )
  nodes.remove(node)
  cluster.remove_node(node, allow_graceful=False)
