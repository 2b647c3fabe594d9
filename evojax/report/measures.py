"""Meanings of the measures of a diagnosis, for the page of a run.

There are texts for the diagnostics that come with evojax, the rules in
`diagnosis.rules` and the search itself. Diagnostics of other harnesses are
explained in their own files.
"""

_MEANINGS = {
    # The diagnostics of seed harnesses.
    'outcome': 'share of completions that are solved',
    'pass_at_g': 'share of groups with at least one solved completion',
    'headroom': 'what some completion of a group solves and the average one'
    ' does not',
    'dead_group_ratio': 'groups with equal rewards, which teach nothing',
    'alive_by_outcome': 'groups with different rewards, of which some'
    ' completions are solved and others are not',
    'alive_by_shaping': 'groups with equal outcomes that only shaped rewards'
    ' tell apart',
    'reward_mean': 'mean reward of all completions',
    'reward_spread': 'standard deviation of the rewards within a group, on'
    ' average',
    'truncated': 'completions that the token limit cut',
    'format_failures': 'completions that are unsolved and have no readable'
    ' answer',
    'n_tokens': 'mean length of a completion',
    'n_tokens_solved': 'mean length of solved completions',
    'n_tokens_unsolved': 'mean length of unsolved completions',
    'length_reward_corr': 'correlation of length and reward',
    'mean_logprob': 'mean log-prob of the tokens of unsolved completions; near'
    ' 0 the policy is certain and no longer explores',
    'logprob_gap': 'mean difference between the log-probs of sampler and'
    ' trainer',
    'not_python': 'programs that do not compile',
    'crashed': 'programs that crash',
    'out_of_time': 'programs that run out of time in a test',
    'visible_only': 'programs that pass the tests of the prompt alone: a sign'
    ' of hard-coded answers',
    'edits': 'episodes that edit a file',
    'reads_history': 'episodes that read the git history, which may hold the'
    ' fix',
    'submits': 'episodes that submit their work',
    'touches_tests': 'episodes that change tests',
    'failed_calls': 'tool calls that fail',
    'failed_edits': 'edits that fail',
    'repeated_calls': 'tool calls that repeat the one before',
    'searches_first': 'episodes that search before they edit, of those that'
    ' edit',
    'tests_its_edit': 'episodes that run tests after their last edit, of those'
    ' that edit',
    'solution_diversity': 'how much the edited files differ between the'
    ' episodes of a group that nobody solves',
    'turns': 'mean turns of an episode',
    'turns_used': 'turns beyond an edit and a submission, as a share of those'
    ' that the limit allows; near 0 the policy gives up',
    'idle_turns': 'turns beyond the five of a careful repair, as a share of'
    ' those that the limit allows',
    'turns_of_solved': 'mean turns of solved episodes',
    # Straight lines through the updates.
    'outcome_start': 'solved share at the start of training, from a straight'
    ' line through all updates',
    'outcome_rise': 'rise of the solved share over all updates, on that line',
    'outcome_rise_high': 'upper 95 % bound of outcome_rise',
    'unsolved_closed': 'outcome_rise as a share of what was unsolved at the'
    ' start',
    'shaped_rise': 'by how much more the reward rose than the solved share',
    'shaped_rise_low': 'lower 95 % bound of shaped_rise',
    'recent_rise': 'rise of the solved share over recent updates',
    'recent_rise_low': 'lower 95 % bound of recent_rise',
    'recent_rise_high': 'upper 95 % bound of recent_rise',
    'tested_rise': 'rise of the share of episodes that test their last edit',
    'tested_rise_high': 'upper 95 % bound of tested_rise',
    'turns_rise': 'rise of the mean turns of an episode',
    # Rules.
    'slow_learning': 'lower 95 % bound of the recent rise of the solved share:'
    ' below 0, the policy may have stopped learning',
    'outcome_falling': 'rise of the solved share over all updates: below 0, it'
    ' falls',
    'weak_signal': 'groups with both solved and unsolved completions; only they'
    ' teach the policy to solve more',
    'too_hard': 'groups with equal rewards, while few problems are solved',
    'too_easy': 'groups with equal rewards, while most problems are solved',
    'exploration_collapse': 'mean log-prob of the tokens of unsolved'
    ' completions, while much is unsolved',
    'format_bottleneck': 'completions without a readable answer, as a share of'
    ' the unsolved ones',
    'laziness': 'rise of the share of episodes that test their last edit, while'
    ' turns fall and no more is solved',
    'length_gaming': 'correlation of length and reward, while completions are'
    ' cut',
    'reward_hacking': 'by how much more the reward rose than the solved share,'
    ' while no more is solved',
    # The search.
    'failures_in_row': 'changes since the last one that was kept',
    'calibration': 'mean of measured minus predicted effects; below 0,'
    ' predictions are too high',
    'sign_agreement': 'how often the sign of an effect was predicted',
}
# The statistics of a backtest, see `evolve.backtest.compare`.
_STATISTICS = {
    'alive_by_outcome': 'kept groups with solved and unsolved completions',
    'alive_by_shaping': 'kept groups with equal outcomes and different rewards',
    'phantom_advantage': 'share of the advantage that falls on those groups',
    'sign_agreement': 'advantages that are positive if solved and negative if'
    ' not',
    'constant_parts': 'reward parts with a weight that do not vary',
    'length_correlation': 'correlation of length and reward',
    'gradient_cosine': 'cosine of the gradient with that of the outcome alone',
    'kept_groups': 'groups that enter the update',
    'replayed_effect': 'change of the solved share by the updates of a replay',
    'replayed_low': 'its lower bound',
    'replayed_high': 'its upper bound',
    'equal_updates': '1 if the change makes no difference to a replay',
}
# Prefixes of names that end in a level, a mode, ...
_FAMILIES = {
    'outcome_level_': 'solved share of problems of difficulty {}',
    'outcome_': 'solved share of completions of the mode {}',
    'share_': 'completions of the mode {}',
    'action_': 'calls of the action with code {} per completion',
    'tried_': 'changes of the class {} that were tried',
    'found_': 'what the run found in its rollouts: {}',
}


def meaning(name: str) -> str:
  """Return what a measure means; '' if only its diagnostic says so."""
  if name in _MEANINGS:
    return _MEANINGS[name]
  for start, text in _FAMILIES.items():
    if name.startswith(start):
      return text.format(name.removeprefix(start))
  return ''


def statistic(name: str) -> str:
  """Return what a statistic of a backtest means; '' if that is not known."""
  return _STATISTICS.get(name, '')
