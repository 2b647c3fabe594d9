"""Training of a tiny random policy on the environments of `envs`.

    python -m tests.domains.verifiers.run letters|counting|keys [STEPS]

The command prints the mean reward of each step.
"""

import json
import pathlib
import shutil
import sys
import tempfile
from typing import Any

import ml_collections

import evojax
from evojax import domains
from tests import tiny

# A single token of the policy, so that it can be sampled by chance.
CALL = '<tool_call>{"name": "press", "arguments": {"key": "k", "times": 1}}'
CALL += '</tool_call>'


def make_policy(path: pathlib.Path) -> pathlib.Path:
  """Write a random policy with CALL as one of its tokens."""
  tokenizer = path / 'tokenizer'
  shutil.copytree(domains.policy_path('package:math'), tokenizer)
  file = tokenizer / 'tokenizer.json'
  content = json.loads(file.read_text())
  number = max(t['id'] for t in content['added_tokens']) + 1
  token = dict.fromkeys(
      ('single_word', 'lstrip', 'rstrip', 'normalized'), False
  )
  content['added_tokens'].append(
      dict(token, id=number, content=CALL, special=False)
  )
  file.write_text(json.dumps(content))
  config = json.loads((tokenizer / 'config.json').read_text())
  config['vocab_size'] = number + 1
  (tokenizer / 'config.json').write_text(json.dumps(config))
  return tiny.make_policy(
      path / 'policy', tokenizer=tokenizer, max_positions=256
  )


def make_config(
    policy: pathlib.Path, name: str, **overrides: Any
) -> ml_collections.ConfigDict:
  """Return the config of a run on one of the environments.

  Args:
    policy: Result of `make_policy`.
    name: Name of a function in `envs`.
    **overrides: As in `tiny.make_config`.
  """
  options = dict(
      domain__name='verifiers',
      domain__kwargs=ml_collections.ConfigDict(
          {'environment': f'tests.domains.verifiers.envs:{name}'}
      ),
      data__max_prompt_tokens=40,
      rollout__max_tokens=12 if name == 'letters' else 72,
      rollout__turn_tokens=0 if name == 'letters' else 8,
      rollout__prefill_chunk=8,
      rollout__decode_slots=32,
      rollout__prefill_rows=8,
      grpo__prompts=8,
      grpo__group_size=8,
      grpo__micro_groups=8,
      reward__parts='',
      reward__weights=ml_collections.ConfigDict({'rubric': 1.0}),
      optim__learning_rate=4e-2,
      eval__problems=8,
  )
  return tiny.make_config(policy, **(options | overrides))


def train(directory: pathlib.Path, name: str, steps: int) -> list[float]:
  """Return the mean reward of each step of a run."""
  policy = make_policy(directory)
  config = make_config(policy, name, steps=steps, checkpoint__every=steps)
  evojax.run(config, str(directory / 'run'))
  lines = (directory / 'run' / 'metrics.jsonl').read_text().splitlines()
  return [r['reward'] for r in map(json.loads, lines) if 'reward' in r]


if __name__ == '__main__':
  with tempfile.TemporaryDirectory() as folder:
    count = int(sys.argv[2]) if len(sys.argv) > 2 else 20
    print(
        *(f'{r:.3f}' for r in train(pathlib.Path(folder), sys.argv[1], count))
    )
