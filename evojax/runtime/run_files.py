"""The names of the files and folders of a workdir.

The folder of an arm has CHECKPOINTS, EVIDENCE, METRICS and TIMES as well.
"""

import json
import os
import pathlib
from typing import Any

# Written at the start.
CONFIG = 'config.json'  # The resolved config with its hash, and the mode.
MANIFEST = 'manifest.json'  # One entry per start: versions, devices, command.

# Written during a run.
LOG = 'log.txt'  # All that was printed.
METRICS = 'metrics.jsonl'  # One row per logged step.
TIMES = 'times.jsonl'  # When each step began and ended, see `goodput`.
LEDGER = 'ledger.jsonl'  # One row per step of a run that evolves.
CHECKPOINTS = 'checkpoints'  # step_NNNNNN/: the state of a training.
EVIDENCE = 'evidence'  # SPLIT/step_NNNNNN.parquet: one row per rollout.
ARMS = 'arms'  # NAME/: the folder of an arm.
HARNESSES = 'harness'  # SHA256/: a harness.
SKILLS = 'skills'  # Kept changes, which other runs can use.
INBOX = 'inbox'  # Changes that the user proposes.
REPORT = 'report.html'  # The page.

# Written in the folder of an arm.
JOB = 'job.json'  # The job of the arm.
ARM = 'arm.json'  # Its result.

# Written at the end.
SUMMARY = 'summary.json'  # Of a run that trains or evolves.
EVAL = 'eval.json'  # Scores of --mode=eval.
EQUAL_ARMS = 'aa.json'  # Result of --mode=aa.
SEALED = 'sealed.json'  # Sealed scores of a training.
SEALED_EVIDENCE = 'sealed'  # POLICY/: evidence of the sealed scores.
POLICY = 'policy'  # The trained policy, a Hugging Face directory.


def starts(folder: str | os.PathLike[str]) -> list[dict[str, Any]]:
  """Return the entries of a run's manifest; [] if it has none.

  Raises:
    ValueError: If it is damaged.
  """
  path = pathlib.Path(folder, MANIFEST)
  try:
    return json.loads(path.read_bytes()) if path.exists() else []
  except ValueError as error:
    raise ValueError(
        f'{path} is damaged ({error}): restore it from a copy, or delete it;'
        ' the run then continues, but its earlier starts are forgotten'
    ) from error
