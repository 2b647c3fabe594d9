"""An OpenEnv server: `python -m tests.domains.openenv_server PORT`."""

import sys

from openenv.core import env_server
import uvicorn


class Say(env_server.Action):
  """Say something."""

  text: str


class Heard(env_server.Observation):
  text: str = ''


class Digits(env_server.Environment):
  """Rewards a digit in each of three steps."""

  SUPPORTS_CONCURRENT_SESSIONS = True

  def __init__(self):
    super().__init__()
    self._state = env_server.State(step_count=0)

  def reset(self, seed=None, episode_id=None, **kwargs):
    self._state = env_server.State(step_count=0)
    return Heard(text=f'Count {seed}.')

  def step(self, action, timeout_s=None, **kwargs):
    if action.text == 'raise':
      raise RuntimeError('the world has ended')
    self._state.step_count += 1
    share = sum(c.isdigit() for c in action.text) / max(len(action.text), 1)
    done = self._state.step_count == 3
    return Heard(text=f'{share:.1f}', done=done, reward=share)

  @property
  def state(self):
    return self._state


if __name__ == '__main__':
  app = env_server.create_fastapi_app(Digits, Say, Heard, max_concurrent_envs=8)
  uvicorn.run(app, port=int(sys.argv[1]), log_level='warning')
