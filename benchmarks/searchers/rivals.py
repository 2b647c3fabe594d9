"""Optuna and Syne Tune, through their own interfaces.

    python -m venv runs/rivals
    runs/rivals/bin/pip install -r benchmarks/searchers/requirements.txt
    python -m benchmarks.searchers --rivals=runs/rivals/bin/python

This module runs in that environment, which has no evojax. It reads a request
from standard input; all messages are JSON. The request names a searcher, and
either a recorded table to replay (the answer is the result of
`replays.searched`) or a space: then the searcher writes the trials to be
trained to standard output, and receives scores; see `searching`.

Searchers see the score of a trial after 1, 3, 9, ... units; they start and
prune trials as they choose. Their first trial is the recipe of the run. Options
are the libraries' defaults, except that BOHB uses its model as soon as
possible: by default it waits for 34 trials.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
import datetime
import json
import logging
import os
import pathlib
import sys
from typing import Any, Protocol
import warnings

import numpy as np

from benchmarks import json_lines
from benchmarks.searchers import replays
from benchmarks.searchers import tables

Values = Mapping[str, Any]


class Search(Protocol):
  """The object of a search.

  Attributes:
    space: Dimensions with `name` and `choices`, or `low`, `high`, `log`, `int`.
    first: Values of the first trial.
    most: Largest number of units of a trial.
  """

  space: Sequence[Mapping[str, Any]]
  first: Values
  most: int

  def run(self, values: Values) -> Iterator[tuple[int, float]]:
    """Train a trial; yield its units and its score at every report.

    Raises:
      tables.SpentError: If the tokens are spent.
    """


class Recorded:
  """The search of a table; each dimension is the level of a factor."""

  def __init__(self, trials: tables.Trials):
    count = trials.world.table.factors
    self.space = [
        dict(name=f'factor_{k}', choices=[0, 1]) for k in range(count)
    ]
    self.first = {of['name']: 0 for of in self.space}
    self.most, self._trials = trials.most, trials

  def run(self, values: Values) -> Iterator[tuple[int, float]]:
    levels = [int(values[of['name']]) for of in self.space]
    return self._trials.run(sum(x << k for k, x in enumerate(levels)))


class Live:
  """The search in another process, which trains the trials on request."""

  def __init__(self, request: Mapping[str, Any], out: Any):
    self.space, self.first = request['space'], request['first']
    self.most, self._out, self._trials = request['most'], out, 0

  def train(self, trial: int, start: int | None, values: Values, units: int):
    """Return the score of a trial after further units.

    Args:
      trial: Number of the trial; a new number is a new trial.
      start: Trial whose policy a new one continues; None: the base policy.
      values: Values of the trial.
      units: Units to train.

    Raises:
      tables.SpentError: If the tokens are spent.
    """
    wanted = dict(trial=trial, start=start, values=values, units=units)
    print(json.dumps(wanted, default=_plain), file=self._out, flush=True)
    score = json.loads(sys.stdin.readline())
    if score is None:
      raise tables.SpentError
    return score

  def run(self, values: Values) -> Iterator[tuple[int, float]]:
    trial, done = self._trials, 0
    self._trials += 1
    for units in tables.reports(self.most):
      yield units, self.train(trial, None, values, units - done)
      done = units


def _plain(value: Any) -> Any:
  """Return a NumPy number as a Python number."""
  return value.item()


def optuna_(search: Search, seed: int) -> None:
  """Search by TPE with Hyperband (Akiba et al. 2019, arXiv:1907.10902)."""
  import optuna

  optuna.logging.set_verbosity(optuna.logging.ERROR)
  study = optuna.create_study(
      direction='maximize',
      sampler=optuna.samplers.TPESampler(seed=seed),
      pruner=optuna.pruners.HyperbandPruner(
          min_resource=1, max_resource=search.most
      ),
  )
  study.enqueue_trial(dict(search.first))

  def suggest(trial, of):
    if 'choices' in of:
      return trial.suggest_categorical(of['name'], of['choices'])
    if of['int']:
      return trial.suggest_int(of['name'], of['low'], of['high'])
    return trial.suggest_float(of['name'], of['low'], of['high'], log=of['log'])

  while True:
    trial = study.ask()
    values = {of['name']: suggest(trial, of) for of in search.space}
    pruned, score = False, None
    for units, score in search.run(values):
      trial.report(score, units)
      if pruned := trial.should_prune():
        break
    if pruned:
      study.tell(trial, state=optuna.trial.TrialState.PRUNED)
    else:
      study.tell(trial, score)


def _space(search: Search) -> dict[str, Any]:
  """Return the space of a search in Syne Tune's form."""
  from syne_tune import config_space

  def domain(of):
    if 'choices' in of:
      return config_space.choice(of['choices'])
    if of['int']:
      return config_space.randint(of['low'], of['high'])
    make = config_space.loguniform if of['log'] else config_space.uniform
    return make(of['low'], of['high'])

  return {of['name']: domain(of) for of in search.space}


def _common(search: Search, seed: int) -> dict[str, Any]:
  """Return the options common to all schedulers of Syne Tune."""
  np.random.seed(seed)  # Some code uses NumPy's global generator.
  return dict(
      config_space=_space(search),
      metric='score',
      time_attr='units',
      do_minimize=False,
      random_seed=seed,
  )


def _trial(number: int, values: Values) -> Any:
  from syne_tune.backend import trial_status

  return trial_status.Trial(number, dict(values), datetime.datetime.now())


def _stopped(scheduler: Any, trial: Any, units: int, score: float) -> bool:
  """Report a score; return whether the trial ended, which removes it.

  This is what Syne Tune's `Tuner` does.
  """
  from syne_tune.optimizer import scheduler as scheduler_lib

  decision = scheduler.on_trial_result(trial, {'units': units, 'score': score})
  ends = decision != scheduler_lib.SchedulerDecision.CONTINUE
  if ends:
    scheduler.on_trial_remove(trial)
  return ends


def _one_by_one(scheduler: Any, search: Search) -> None:
  """Run a scheduler's trials (Salinas et al. 2022) on one worker."""
  number = 0
  while (suggestion := scheduler.suggest()) is not None:
    trial = _trial(number, suggestion.config)
    scheduler.on_trial_add(trial)
    for units, score in search.run(suggestion.config):
      if _stopped(scheduler, trial, units, score):
        break
    number += 1


def asha(search: Search, seed: int) -> None:
  """Search by ASHA (Li et al. 2018, arXiv:1810.05934)."""
  from syne_tune.optimizer import baselines

  scheduler = baselines.ASHA(
      max_t=search.most,
      points_to_evaluate=[dict(search.first)],
      **_common(search, seed),
  )
  _one_by_one(scheduler, search)


def bohb(search: Search, seed: int) -> None:
  """Search by BOHB (Falkner et al. 2018, arXiv:1807.01774)."""
  from syne_tune.optimizer import baselines

  scheduler = baselines.BOHB(
      max_t=search.most,
      points_to_evaluate=[dict(search.first)],
      # The density estimate needs more trials than dimensions.
      num_min_data_points=len(search.space) + 1,
      **_common(search, seed),
  )
  _one_by_one(scheduler, search)


def pbt(search: Live, seed: int) -> None:
  """Search by PBT (Jaderberg et al. 2017, arXiv:1711.09846), unit by unit.

  A trial in the lower quarter stops, and one from the upper quarter continues
  in its place under other values. This needs policies, which a table lacks.
  """
  from syne_tune.optimizer.schedulers import pbt as pbt_lib

  scheduler = pbt_lib.PopulationBasedTraining(
      max_t=10**9,
      perturbation_interval=1,
      searcher_kwargs=dict(points_to_evaluate=[dict(search.first)]),
      **_common(search, seed),
  )
  places: list[tuple[Any, int] | None] = [None] * scheduler.population_size
  units: dict[int, int] = {}
  while True:
    for place, trial in enumerate(places):
      start = None
      if trial is None:
        suggestion = scheduler.suggest()
        start = suggestion.checkpoint_trial_id
        trial = _trial(len(units), suggestion.config)
        units[trial.trial_id] = units.get(start, 0)
        scheduler.on_trial_add(trial)
      number = trial.trial_id
      score = search.train(number, start, trial.config, 1)
      units[number] += 1
      ends = _stopped(scheduler, trial, units[number], score)
      places[place] = None if ends else trial


# Searchers for tables, so without PBT.
RIVALS = {
    'Optuna TPE + Hyperband': optuna_,
    'Syne Tune ASHA': asha,
    'Syne Tune BOHB': bohb,
}
LIVE: Mapping[str, Callable[..., None]] = {
    'optuna': optuna_,
    'asha': asha,
    'bohb': bohb,
    'pbt': pbt,
}


def _replay(request: Mapping[str, Any]) -> dict[str, Any]:
  """Return the results of a searcher in the replays of a table."""
  rows = json_lines.read(pathlib.Path(request['path']))
  rival = RIVALS[request['rival']]

  def search(trials, rng):
    try:
      rival(Recorded(trials), int(rng.integers(2**31)))
    except tables.SpentError:
      pass
    return trials.finish()

  return replays.searched(
      tables.tables(rows)[request['setting']],
      replays.Plan(**request['plan']),
      search,
  )


def main() -> None:
  request = json.loads(sys.stdin.readline())
  warnings.simplefilter('ignore')
  logging.disable(logging.WARNING)
  # Output of the libraries must not look like an answer.
  out = os.fdopen(os.dup(1), 'w')
  os.dup2(2, 1)
  if 'path' in request:
    print(json.dumps(_replay(request)), file=out, flush=True)
    return
  try:
    LIVE[request['rival']](Live(request, out), request['seed'])
  except tables.SpentError:
    pass


if __name__ == '__main__':
  main()
