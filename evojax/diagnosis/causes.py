"""Possible causes of symptoms, and what would show each.

Many findings name a symptom, such as a reward that falls. Its causes lie in
code or settings that no log shows: a mask, a template, the order of rewards. So
each symptom has a list of possible causes, the most common first. The results
of other checks reorder it: causes that agree with a finding come first, and
causes that a check would probably have found come last. The lists come from
threads in which users of other trainers found the cause, see
benchmarks/reports.
"""

from collections.abc import Collection, Mapping, Sequence
import dataclasses

from evojax.diagnosis import findings


@dataclasses.dataclass(frozen=True)
class _Cause:
  """A possible cause of several symptoms."""

  text: str  # What may be wrong.
  look: str  # What would show it.
  found_by: tuple[str, ...] = ()  # Checks whose findings agree with it.
  # Checks that would probably find it.
  unlikely_by: tuple[str, ...] = ()
  foreign: bool = False  # Only in other trainers' code: not in runs of evojax.


_REFUSES = (
    'never_paid',
    'fixed_part',
    'right_refused',
    'form_refused',
    'text_refused',
    'plain_refused',
    'family_refused',
    'shown_refused',
    'key_disagrees',
    'keys_change',
    'part_stops',
)
_PAYS = (
    'reward_hacking',
    'length_gaming',
    'form_wins',
    'outweighed',
    'shaping_alone',
    'wrong_paid',
    'grader_open',
    'length_decides',
    'reward_by_length',
    'length_alone',
    'phrase_paid',
    'paid_without_key',
    'word_paid',
    'unscored',
)

CAUSES = {
    # The grader and the reward.
    'refused': _Cause(
        'the grader refuses right answers or never gets them: how it finds the'
        ' answer, the form it expects, a column that does not reach it, an'
        ' exception that it hides',
        'grade a reference solution, and read five rollouts that got nothing',
        found_by=_REFUSES,
    ),
    'order': _Cause(
        'rewards belong to other completions, or answers to other problems,'
        ' because an order changes on the way',
        'grade three logged completions by hand, with the answers of their own'
        ' prompts',
        found_by=('credit', 'key_disagrees'),
    ),
    'paid': _Cause(
        'the reward also pays for something else, and the policy learns that'
        ' instead, perhaps only in groups whose rollouts all fail',
        'plot each part of the reward, and read the rollouts that earn most',
        found_by=_PAYS,
    ),
    'breaks': _Cause(
        'the grader, a tool or an endpoint fails at times (a time limit, a full'
        ' disk, too many requests), and that counts as a wrong answer',
        'count its errors by step',
        found_by=('tests_time_out', 'same_error'),
    ),
    'coarse': _Cause(
        'the reward has so few values that all rollouts of a group get the'
        ' same',
        'sample more rollouts per prompt, or give credit for partial solutions',
    ),
    'ungrouped': _Cause(
        'the mean that is subtracted is taken over one rollout, or over the'
        ' turns of one episode, and not over the rollouts of a prompt',
        'compute the advantages of one group by hand',
        foreign=True,
    ),
    'sign': _Cause(
        'a sign is wrong: of the loss, the KL penalty, the entropy bonus or a'
        ' part of the reward',
        'update once on a fixed batch, and see whether what was rewarded became'
        ' likelier',
        found_by=('inverted_sign', 'credit'),
        foreign=True,
    ),
    # Prompts, limits and problems.
    'template': _Cause(
        'the model gets another prompt than it was made for: no chat template,'
        ' another one, two of them, or none of the instructions that the grader'
        ' relies on',
        'print one prompt as the model gets it, token by token',
        found_by=('template_twice', 'prompt_cut'),
    ),
    'limit': _Cause(
        'a limit of tokens or turns cuts completions before their answer',
        'read the end of five rollouts that got nothing; double the limit',
        found_by=('truncation', 'overlong_early', 'turn_limit', 'turns_cut'),
        unlikely_by=('truncation',),
    ),
    'no_end': _Cause(
        'sampler, trainer or grader does not know the token with which the'
        ' model ends, or only one of several',
        'compare the stop tokens of the generation config with the last token'
        ' of a good completion',
        found_by=('stop_string',),
        foreign=True,
    ),
    'end_masked': _Cause(
        'the token that ends a completion is masked, since padding is the same'
        ' token, so that the policy unlearns how to end',
        'check whether the mask of the loss is 1 at the last token',
        found_by=('padded_lengths',),
        foreign=True,
    ),
    'hard': _Cause(
        'the policy cannot solve these problems at all',
        'measure pass@64 of the initial policy; train on easier problems first,'
        ' or begin with supervised training',
        found_by=('too_hard',),
    ),
    'alike': _Cause(
        'the rollouts of a group are all the same: one seed for all of them, a'
        ' temperature near 0, or a cache',
        'read the rollouts of one group',
        found_by=('temperature', 'entropy_collapse'),
    ),
    'few_problems': _Cause(
        'the training problems are so few that the policy memorises them',
        'count the different prompts, and score problems that were left out',
        found_by=(
            'narrow_data',
            'duplicate_prompts',
            'repeated_steps',
            'train_eval_gap',
        ),
        unlikely_by=('narrow_data',),
    ),
    'harder': _Cause(
        'the problems get harder: a curriculum, the order of the data, a filter'
        ' that drops solved ones',
        'score an early and a late checkpoint on the same problems',
    ),
    # The update.
    'large_steps': _Cause(
        'steps are too large: the learning rate, many updates of one batch, or'
        ' few prompts in it',
        'train with a tenth of the learning rate from an earlier checkpoint',
        found_by=(
            'unusual_setting',
            'update_large',
            'clip_fraction',
            'off_policy',
            'few_rollouts',
        ),
    ),
    'small_steps': _Cause(
        'steps are too small: learning rate, warm-up, bound on the gradient, KL'
        ' penalty',
        'measure the mean change of a weight in an update, relative to its'
        ' size',
        found_by=(
            'learning_rate_zero',
            'warmup',
            'gradient_clipped',
            'kl_strong',
            'schedule_ends',
            'unusual_setting',
        ),
    ),
    'frozen': _Cause(
        'the update changes no weights: frozen parameters, an adapter without a'
        ' gradient, an optimizer that does not step',
        'compare the weights before and after an update, matrix by matrix',
        found_by=('gradient_zero', 'kl_zero'),
        foreign=True,
    ),
    'own_reference': _Cause(
        'the reference is the policy itself: one object, or a copy that every'
        ' update renews',
        'compare the weights of both after ten updates',
        foreign=True,
    ),
    'no_kl': _Cause(
        'the trainer logs 0 in place of a KL that it does not compute',
        'look up the coefficient of the penalty in the settings of the run',
        foreign=True,
    ),
    'not_sampled': _Cause(
        'the loss counts tokens that the policy did not sample: the prompt,'
        ' replies of tools, padding, what follows the end',
        'print the tokens of one row at which the mask of the loss is 1',
        found_by=('kl_negative', 'padded_lengths', 'impossible_share'),
        foreign=True,
    ),
    'dropped': _Cause(
        'most tokens or rollouts are masked out of the loss: because they are'
        ' too long, have no end, or differ between trainer and sampler',
        'count the tokens in the loss and those that were sampled',
        found_by=('left_out', 'filter_starves'),
        unlikely_by=('left_out',),
        foreign=True,
    ),
    'scaled': _Cause(
        'the loss is divided by another number of tokens or batches than are'
        ' accumulated',
        'compare the gradient norms of one batch, whole and in several parts',
        found_by=('loss_summed',),
        foreign=True,
    ),
    'weighed': _Cause(
        'the loss gives long and short completions different weights: it is a'
        ' mean over each completion, or over all tokens',
        'compare the lengths of rewarded and other rollouts, and the way in'
        ' which the loss is averaged',
    ),
    'bonus': _Cause(
        'an entropy bonus, or advantages that mostly push down',
        'look up the coefficient of the bonus, and the mean advantage of a'
        ' token',
        found_by=('no_baseline',),
    ),
    'clipped_up': _Cause(
        'the upper clip bound keeps rare right answers from becoming likelier',
        'try a higher upper bound (0.28), and fewer updates of a batch',
    ),
    'restarted': _Cause(
        'a restart without the state of the optimizer, the scheduler or the'
        ' reference',
        'check whether the symptom begins where the run was resumed',
        found_by=('kl_restarts',),
        foreign=True,
    ),
    'reference': _Cause(
        'the reference is another model than the one that training began with:'
        ' the base model below an adapter, another precision, other tokens',
        'the KL of the first step has to be 0',
        found_by=('kl_at_start',),
        unlikely_by=('kl_at_start',),
        foreign=True,
    ),
    # Losses that are NaN or infinite.
    'overflow': _Cause(
        'numbers overflow (in float16, or a ratio of probabilities), or the'
        ' logarithm of 0 is taken, such as that of a token which top_p removed',
        'compute that batch in float32; print its largest logit and smallest'
        ' log-prob',
        foreign=True,
    ),
    'division': _Cause(
        'a division by 0: a completion without tokens, a group of one rollout,'
        ' equal rewards, a mask that is empty',
        'look at the shortest completion of that batch, and at the smallest'
        ' standard deviation of the rewards of a group',
        foreign=True,
    ),
    'zero_times': _Cause(
        'something infinite is multiplied by 0: by a mask, or by the'
        ' coefficient of a term',
        'use `where` instead of a product, and print the largest masked value',
        foreign=True,
    ),
    'one_row': _Cause(
        'one row of the data is damaged or unusual',
        'update with the rows of that batch one by one',
        foreign=True,
    ),
    # The sampler.
    'old_weights': _Cause(
        'the sampler has other weights: an update, an adapter or a reset of its'
        ' prefix cache does not reach it',
        'sample one prompt at temperature 0 before and after a sync of weights:'
        ' its log-probs have to change',
        found_by=('other_weights', 'stale_sampler', 'kl_jumps'),
        unlikely_by=('logprob_gap',),
        foreign=True,
    ),
    'other_sampling': _Cause(
        'the sampler draws from other probabilities than the trainer computes:'
        ' temperature, top_p, top_k, a repetition penalty, precision, dropout',
        'compare the log-probs of one completion, token by token',
        found_by=('logprob_gap', 'filtered_sampling'),
        unlikely_by=('logprob_gap',),
        foreign=True,
    ),
    'other_tokens': _Cause(
        'the trainer gets other tokens than were sampled: text is encoded'
        ' again, a template is applied twice, special tokens or images are'
        ' lost',
        'compare the token ids of the sampler with those of the update',
        found_by=('other_weights',),
        unlikely_by=('logprob_gap',),
        foreign=True,
    ),
    'positions': _Cause(
        'padding or packing shifts positions, or lets rows see each other',
        'compare the log-probs of one row alone and within its batch',
        unlikely_by=('logprob_gap',),
        foreign=True,
    ),
    'routes': _Cause(
        'a mixture of experts routes tokens differently in sampler and trainer',
        "count the tokens with other experts; use the sampler's routes to"
        ' train',
        unlikely_by=('logprob_gap',),
        foreign=True,
    ),
    'old_rollouts': _Cause(
        'rollouts are older than the update: asynchronous sampling, a buffer,'
        ' several updates of a batch',
        'plot the ratio of trainer to sampler by the age of the rollouts',
        found_by=('clip_fraction', 'off_policy', 'kl_jumps'),
        foreign=True,
    ),
    # Evaluations.
    'asked_otherwise': _Cause(
        'the evaluation asks or grades differently from training: template,'
        ' instructions, limit, temperature, grader',
        'score training problems just as the evaluation does',
    ),
    'other_checkpoint': _Cause(
        'the evaluation runs on other weights: the base model without its'
        ' adapter, an old checkpoint',
        'change the weights by hand, and see whether its score changes',
        foreign=True,
    ),
    # Tools.
    'parser': _Cause(
        'tool calls are parsed in another form than the template teaches',
        'parse one call of a rollout by hand',
        found_by=('malformed_calls', 'missing_tool'),
        unlikely_by=('malformed_calls',),
    ),
    'useless': _Cause(
        'tools fail, or their replies are cut or empty, so that calls do not'
        ' help',
        'read the replies of five episodes',
        found_by=('replies_cut',),
    ),
    'unreachable': _Cause(
        'a package, a key or a file is missing where the tools run, and the'
        ' error comes back as their reply',
        'call the tool by hand there, and read the whole error',
    ),
    'unpaid': _Cause(
        'nothing that is paid depends on the tools, or each call costs',
        'compare the mean reward with and without calls, within groups',
        found_by=('efficiency_collapse', 'turn_limit'),
    ),
    'last_turn': _Cause(
        'only some turns get the credit, or are trained at all',
        'print the advantage and the mask of the loss by turn',
        found_by=('turns_ignored', 'credit'),
        foreign=True,
    ),
}

_FALLS = (
    'paid',
    'not_sampled',
    'old_weights',
    'other_sampling',
    'breaks',
    'end_masked',
    'sign',
    'harder',
    'old_rollouts',
    'restarted',
)
_NO_SUCCESS = (
    'refused',
    'template',
    'limit',
    'order',
    'old_weights',
    'breaks',
    'hard',
)
_UNCALLED = 'parser', 'useless', 'unpaid', 'last_turn', 'not_sampled', 'limit'

# Symptom -> its causes, the most common first. Causes that the finding itself
# names, such as the learning rate if the reward falls, are left out.
SYMPTOMS = {
    'reward_falling': _FALLS,
    'eval_falling': _FALLS,
    'outcome_falling': _FALLS,
    'not_learning': (
        'old_weights',
        'frozen',
        'order',
        'refused',
        'small_steps',
        'dropped',
        'not_sampled',
        'scaled',
        'few_problems',
        'sign',
    ),
    'hardly_moves': ('small_steps', 'frozen', 'scaled', 'dropped'),
    'gradient_zero': (
        'refused',
        'alike',
        'coarse',
        'ungrouped',
        'frozen',
        'dropped',
    ),
    'stale_sampler': ('old_weights', 'small_steps', 'frozen'),
    'too_hard': _NO_SUCCESS,
    'never_paid': ('refused', 'template', 'limit', 'order'),
    'fixed_part': ('refused', 'order', 'breaks'),
    'dead_groups': ('alike', 'refused', 'coarse', 'template', 'hard'),
    'unreadable': ('template', 'refused', 'limit', 'no_end', 'large_steps'),
    'format_bottleneck': ('template', 'refused', 'limit'),
    'truncation': (
        'end_masked',
        'paid',
        'no_end',
        'old_weights',
        'template',
        'not_sampled',
    ),
    'loops': ('large_steps', 'no_end', 'paid', 'other_sampling', 'end_masked'),
    'shrinks': ('paid', 'weighed', 'limit', 'large_steps', 'not_sampled'),
    'reward_by_length': ('paid', 'limit', 'weighed', 'end_masked'),
    'length_alone': ('paid', 'limit', 'weighed', 'end_masked'),
    'entropy_collapse': (
        'large_steps',
        'paid',
        'clipped_up',
        'few_problems',
        'alike',
        'sign',
    ),
    'entropy_rising': (
        'bonus',
        'not_sampled',
        'other_sampling',
        'order',
        'large_steps',
        'old_weights',
        'sign',
    ),
    'one_answer': ('template', 'paid', 'large_steps', 'order'),
    'hidden_goal': ('order', 'paid', 'last_turn'),
    'wrong_paid': ('order', 'refused', 'paid'),
    'credit': ('order', 'sign', 'last_turn'),
    'clip_fraction': ('old_rollouts', 'large_steps', 'other_sampling'),
    'kl_explosion': (
        'sign',
        'not_sampled',
        'paid',
        'old_weights',
        'other_sampling',
        'reference',
    ),
    'kl_at_start': ('reference', 'not_sampled', 'other_tokens', 'positions'),
    'kl_negative': ('not_sampled', 'other_sampling', 'reference'),
    'not_finite': (
        'overflow',
        'zero_times',
        'division',
        'not_sampled',
        'large_steps',
        'one_row',
    ),
    'logprob_gap': ('other_tokens', 'positions', 'old_weights', 'routes'),
    'ratio_off': ('other_sampling', 'other_tokens', 'positions', 'routes'),
    'other_weights': (
        'old_weights',
        'other_tokens',
        'other_sampling',
        'positions',
    ),
    'off_policy': ('old_rollouts', 'large_steps', 'other_sampling'),
    'kl_jumps': ('old_rollouts', 'old_weights', 'large_steps', 'one_row'),
    'train_eval_gap': (
        'few_problems',
        'asked_otherwise',
        'other_checkpoint',
        'paid',
    ),
    'gives_up': _UNCALLED,
    'echo_trap': ('useless', 'paid', 'large_steps', 'last_turn'),
    'calls_unlearned': _UNCALLED,
    'malformed_calls': ('parser', 'template', 'large_steps', 'not_sampled'),
    'turns_cut': ('no_end', 'end_masked', 'parser'),
    'same_error': ('unreachable', 'breaks'),
    'tests_dropped': ('unpaid', 'useless', 'last_turn', 'limit'),
    'kl_zero': ('own_reference', 'frozen', 'no_kl'),
    'kl_restarts': ('restarted', 'own_reference'),
    'update_large': (
        'old_rollouts',
        'other_sampling',
        'other_tokens',
        'positions',
    ),
    'loss_summed': ('scaled',),
    'left_out': ('other_sampling', 'other_tokens', 'old_rollouts', 'routes'),
    'form_wins': ('refused', 'order', 'harder'),
    'inverted_sign': ('sign', 'order', 'paid'),
    'verdicts_differ': ('breaks',),
    'score_jumps': ('old_weights', 'breaks', 'order'),
    'submits_at_once': ('unpaid', 'useless', 'hard', 'limit'),
}
# Checks whose finding names the cause, or the setting to change; a list of
# other causes would only distract from it.
NAMED = frozenset(
    'advantage_spikes after_evaluations answer_in_prompt answers_differ'
    ' calls_grow constant_part critic_untrained duplicate_prompts'
    ' efficiency_collapse entropy_jumps eval_jumps eval_scale eval_zero'
    ' evals_part family_refused few_rollouts fewer_problems filter_by_length'
    ' filter_starves filtered_sampling fixed_length form_alone form_refused'
    ' gap_restarts grader_open grader_overwritten gradient_clipped hard_coded'
    ' history_leak idle_steps impossible_share key_disagrees keys_change'
    ' kl_strong learning_rate_zero length_decides length_gaming limit_shortens'
    ' missing_tool narrow_data no_baseline one_text other_language other_length'
    ' outweighed overlong_early padded_lengths paid_without_key'
    ' part_of_the_data part_stops'
    ' phrase_paid plain_refused prompt_cut redundant_part repeated_steps'
    ' replies_cut'
    ' reward_hacking reward_lost right_refused roles_written same_samples'
    ' schedule_ends shaping_alone shown_refused silent stop_string temperature'
    ' template_twice tests_tampered tests_time_out text_refused too_easy'
    ' turn_limit turns_ignored unsampled_tokens unscored unusual_setting'
    ' visible_only warmup word_paid'
    .split()
)
_OWN = 'evojax'


def attach(
    found: Sequence[findings.Finding], quiet: Collection[str], format_: str
) -> list[findings.Finding]:
  """Return the findings, with the possible causes of those that are symptoms.

  Args:
    found: The findings in the order in which they are shown.
    quiet: Checks that found nothing wrong.
    format_: Format of the logs. In runs of evojax no cause lies in the trainer.
  """
  places = {f.check: i for i, f in enumerate(found, 1)}
  return [
      dataclasses.replace(f, causes=_of(f, places, quiet, format_ == _OWN))
      if f.severity != 'note'
      else f
      for f in found
  ]


def _of(
    symptom: findings.Finding,
    places: Mapping[str, int],
    quiet: Collection[str],
    own: bool,
) -> tuple[findings.Cause, ...]:
  """Return the causes of a symptom: found, possible, and unlikely ones."""
  seen, possible, unlikely = [], [], []
  for name in SYMPTOMS.get(symptom.check, ()):
    cause = CAUSES[name]
    if own and cause.foreign or name in symptom.ruled_out:
      continue
    by = [c for c in cause.found_by if c in places and c != symptom.check]
    without = [c for c in cause.unlikely_by if c in quiet]
    if by:
      look = f'see finding {places[by[0]]}'
      seen.append(findings.Cause(cause.text, look, found_by=by[0]))
    elif without:
      unlikely.append(
          findings.Cause(cause.text, cause.look, unlikely_by=without[0])
      )
    else:
      possible.append(findings.Cause(cause.text, cause.look))
  return (*seen, *possible, *unlikely)
