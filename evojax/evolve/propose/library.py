"""Interventions: which alert calls for which change, and why.

An entry answers the alerts that it names, and those whose diagnostic calls for
its intervention class. So a new intervention is one entry of ENTRIES, and a new
diagnostic needs no edit here.

The expected effect is a 90 % interval for Avg@k after one arm, in fractions,
against the same arm without the change. Its centre is half of the effect that
the source reports, since an arm is short. It extends about five points to
either side, since no source trained a policy of this size and most changes do
little. `rules` narrows it with the trials of the run.
"""

from collections.abc import Callable
import dataclasses

from evojax.evolve import propose
from evojax.evolve.propose import changes
from evojax.evolve.propose import slices
from evojax.harness import delta
from evojax.harness import spec
from evojax.harness import surface as surface_lib
from evojax.ledger import records


@dataclasses.dataclass(frozen=True, kw_only=True)
class Entry:
  """One intervention."""

  triggers: tuple[str, ...] = ()  # Alerts that it answers, by name.
  change: changes.Change
  # Returns whether the change makes sense in a context.
  when: Callable[[propose.Context], bool] = lambda context: True
  expected: records.Interval = (-0.04, 0.05)  # Most changes do little.
  hypothesis: str
  source: str
  check: str = ''  # A further sign to expect if the hypothesis holds.

  def apply(self, context: propose.Context) -> spec.Harness | None:
    """Return the parent with the change; None where it makes no difference."""
    return self.change.apply(context) if self.when(context) else None

  def answers(
      self, alert: records.Measure, surface: surface_lib.Surface
  ) -> bool:
    """Return whether an alert calls for it, by name or by class."""
    named = alert.name in self.triggers
    # Most alerts name no class, so that no lookup is needed.
    if named or not alert.calls_for:
      return named
    factor = self.change.factor(surface)
    return delta.class_of(factor, surface) in alert.calls_for


# Alerts that mean the same thing.
_COLLAPSE = ('exploration_collapse', 'mean_logprob')
_WEAK = ('dead_group_ratio', 'weak_signal', 'reward_spread')
_UNSTABLE = ('outcome_falling',)
# Sources of several entries.
_DAPO = 'DAPO, Yu et al. 2025, arXiv:2503.14476'
_DR_GRPO = 'Dr. GRPO, Liu et al. 2025, arXiv:2503.20783, Sec. 3'
_ADAM = 'Kingma & Ba 2015, arXiv:1412.6980, Sec. 2.1'
_DEEPSCALER = 'Luo et al. 2025, DeepScaleR'
_EVOTRAINER = 'EvoTrainer, arXiv:2606.03108'
_BALANCED = 'Bae et al. 2025, arXiv:2504.03380: success near 1/2 teaches most'

ENTRIES = {
    'learning_rate_up': Entry(
        triggers=('slow_learning',),
        change=changes.scale('optim.learning_rate', 3.0),
        expected=(-0.03, 0.15),
        hypothesis=(
            'The policy moves too little per update: three times the learning'
            ' rate moves it three times as far on the same rollouts.'
        ),
        source=f'{_ADAM}: the step of Adam is bounded by the learning rate',
        check='unsolved_closed rises',
    ),
    'learning_rate_far_up': Entry(
        triggers=('slow_learning',),
        change=changes.scale('optim.learning_rate', 30.0),
        # Such rates suit policies of billions of parameters. If one is right
        # here, too, a replay of a few updates at 30 times the rate shows it.
        when=lambda context: context.config['optim.learning_rate'] < 1e-5,
        expected=(0.0, 0.15),
        hypothesis='At so small a rate the policy hardly moves.',
        source=_ADAM,
        check='unsolved_closed rises',
    ),
    'learning_rate_down': Entry(
        triggers=_UNSTABLE,
        change=changes.scale('optim.learning_rate', 1 / 3),
        expected=(-0.04, 0.10),
        hypothesis='Updates overshoot: the outcome falls as training goes on.',
        source=_ADAM,
        check='outcome_falling is gone',
    ),
    'warmup': Entry(
        triggers=_UNSTABLE,
        change=changes.warm_up(),
        hypothesis=(
            "Adam's first steps, before its second moment is known, do damage"
            ' that later ones repair.'
        ),
        source='Ma & Yarats 2021, arXiv:1910.04209',
    ),
    'tighter_gradient_clip': Entry(
        triggers=_UNSTABLE,
        change=changes.scale('optim.max_grad_norm', 0.3),
        hypothesis='A few groups with large gradients throw the policy off.',
        source='Pascanu et al. 2013, arXiv:1211.5063, Sec. 3.2',
        check='outcome_falling is gone',
    ),
    'token_aggregation': Entry(
        triggers=('truncated', 'length_gaming', 'slow_learning'),
        change=changes.set_value('grpo.aggregation', 'token'),
        expected=(-0.04, 0.06),
        hypothesis=(
            'Averaging every completion over its length first gives the tokens'
            ' of long ones little weight: neither good steps nor rambling in'
            ' them are learned from.'
        ),
        source=f'{_DAPO}, Sec. 3.3; Table 1: +1 point on AIME 2024',
    ),
    'constant_aggregation': Entry(
        triggers=('truncated', 'length_gaming', 'length_reward_corr'),
        change=changes.set_value('grpo.aggregation', 'constant'),
        hypothesis=(
            'Dividing by the length makes a long wrong answer cheaper than a'
            ' short one; one constant for all removes that bias.'
        ),
        source=_DR_GRPO,
        check='truncated falls',
    ),
    'centred_advantages': Entry(
        triggers=('slow_learning', 'too_hard', 'too_easy', 'weak_signal'),
        change=changes.set_value('grpo.advantage', 'group_mean'),
        hypothesis=(
            'Dividing by the standard deviation gives groups with one odd'
            ' completion the largest advantages; centring alone weighs groups'
            ' by what they tell.'
        ),
        source=_DR_GRPO,
    ),
    'leave_one_out': Entry(
        triggers=('weak_signal', 'reward_spread'),
        change=changes.set_value('grpo.advantage', 'leave_one_out'),
        hypothesis=(
            'A baseline without the completion itself is unbiased in small'
            ' groups.'
        ),
        source='RLOO, Ahmadian et al. 2024, arXiv:2402.14740, Sec. 3',
    ),
    'sequence_ratio': Entry(
        triggers=_UNSTABLE,
        change=changes.set_value('grpo.ratio', 'sequence'),
        when=changes.off_policy,
        expected=(-0.04, 0.06),
        hypothesis='The ratios of single tokens are noise in the update.',
        source='GSPO, Zheng et al. 2025, arXiv:2507.18071, Sec. 4',
    ),
    'clip_higher': Entry(
        triggers=(*_COLLAPSE, *_WEAK),
        change=changes.scale('grpo.clip_high', 1.4),
        when=changes.off_policy,
        expected=(-0.04, 0.06),
        hypothesis=(
            'The upper clip bound stops unlikely tokens from becoming likelier:'
            ' a higher one keeps exploration alive.'
        ),
        source=f'{_DAPO}, Sec. 3.1; Table 1: +2 points on AIME 2024',
        check='mean_logprob stays lower',
    ),
    'dual_clip': Entry(
        triggers=_UNSTABLE,
        change=changes.set_value('grpo.dual_clip', 3.0),
        when=changes.off_policy,
        hypothesis='Large ratios under negative advantages have no bound yet.',
        source='Ye et al. 2020, arXiv:1912.09729, Sec. 4.3',
    ),
    'reward_variance_filter': Entry(
        triggers=_WEAK,
        change=changes.filter_and_refill(),
        expected=(-0.02, 0.09),
        hypothesis=(
            'Groups with equal rewards teach nothing: replacing them by others'
            ' fills every update with signal.'
        ),
        source=(
            f'{_DAPO}, Sec. 3.2, Table 1: +8 points on AIME 2024; EvoTrainer,'
            ' arXiv:2606.03108, v2: +1.9'
        ),
    ),
    'outcome_variance_filter': Entry(
        triggers=('reward_hacking', 'alive_by_shaping', *_WEAK),
        change=changes.shipped_file('keep/outcome_variance.py'),
        when=changes.shaped,
        expected=(-0.04, 0.06),
        hypothesis=(
            'Groups that only the shaping tells apart teach the shaping: the'
            ' outcome alone should say which groups train.'
        ),
        source=f'{_DAPO}, Eq. 11',
        check='alive_by_shaping falls among what trains',
    ),
    'middle_difficulty_filter': Entry(
        triggers=('too_hard', 'too_easy', 'weak_signal', 'slow_learning'),
        change=changes.shipped_file('keep/middle_difficulty.py'),
        expected=(-0.04, 0.06),
        hypothesis=(
            'Groups with one odd completion are mostly noise: those solved'
            ' neither nearly always nor nearly never teach most.'
        ),
        source=_BALANCED,
    ),
    'usual_spread_filter': Entry(
        triggers=_WEAK,
        change=changes.shipped_file('keep/ema_outcome_spread.py'),
        hypothesis=(
            'Which groups teach most changes as the policy learns: those that'
            ' vary at least half as much as is usual should train.'
        ),
        source=f'{_EVOTRAINER}, v4: a filter by a moving average',
    ),
    'no_credit_for_cut_completions': Entry(
        triggers=('truncated',),
        change=changes.shipped_file('weight/finished_only.py'),
        expected=(-0.03, 0.08),
        hypothesis=(
            'What a cut completion would have become is unknown: its advantage'
            ' is noise.'
        ),
        source=(
            f'{_DAPO}, Sec. 3.4; Table 1: +6 points on AIME 2024 from overlong'
            ' filtering'
        ),
    ),
    'credit_for_hard_groups': Entry(
        triggers=('too_easy', 'exploration_collapse'),
        change=changes.shipped_file('weight/hard_groups.py'),
        expected=(-0.04, 0.06),
        hypothesis=(
            'What is solved already takes most of the gradient: groups that are'
            ' still hard should count more.'
        ),
        source='GRPO-LEAD, Zhang & Zuo 2025, arXiv:2504.09696',
    ),
    'overlong_penalty': Entry(
        triggers=('truncated', 'length_gaming'),
        change=changes.give_weight('overlong', 0.5),
        when=lambda context: not changes.has_turns(context),
        expected=(-0.04, 0.07),
        hypothesis=(
            'Completions run into the limit and count as wrong: a soft penalty'
            ' that begins below the limit tells them apart from wrong ones that'
            ' end.'
        ),
        source=f'{_DAPO}, Eq. 13; Table 1: +3 points on AIME 2024',
        check='truncated falls below 15 %',
    ),
    'overlong_episode_penalty': Entry(
        triggers=('truncated', 'length_gaming'),
        change=changes.give_weight('overlong_episode', 0.5),
        when=changes.has_turns,
        expected=(-0.04, 0.07),
        hypothesis=(
            'Episodes run into the limit, mostly with replies of tools: a soft'
            ' penalty that begins below the limit tells them apart from wrong'
            ' ones that end.'
        ),
        source=f'{_DAPO}, Eq. 13; Table 1: +3 points on AIME 2024',
        check='truncated falls below 15 %',
    ),
    'partial_credit': Entry(
        triggers=('too_hard', 'dead_group_ratio', 'weak_signal'),
        change=changes.give_weight('partial', 0.3),
        when=changes.grades_partly,
        expected=(-0.05, 0.07),
        hypothesis=(
            'Programs that pass no test and programs that fail a single one'
            ' earn the same: the share of tests passed tells them apart in'
            ' groups that nobody solves.'
        ),
        source=(
            'RLTF, Liu et al. 2023, arXiv:2307.04349: adaptive feedback by the'
            ' share of unit tests passed; EvoTrainer, arXiv:2606.03108:'
            ' partial-pass reward'
        ),
        check='alive_by_shaping rises and outcome with it',
    ),
    'judged_work': Entry(
        triggers=('weak_signal', 'dead_group_ratio', 'slow_learning'),
        change=changes.give_weight('judge', 0.1),
        when=lambda context: bool(context.config.get('domain.judge.url')),
        expected=(-0.04, 0.07),
        hypothesis=(
            'Wrong episodes that follow their instructions are nearer to a'
            ' right one than those that ignore them: a judge tells them apart.'
        ),
        source='EvoTrainer, arXiv:2606.03108, v8: judge of instructions, 0.1',
    ),
    'format_reward': Entry(
        triggers=('format_failures', 'format_bottleneck'),
        change=changes.give_weight('format', 0.3),
        expected=(-0.03, 0.09),
        hypothesis=(
            'Right values are lost to a missing answer format: a reward for the'
            ' format also teaches it in groups that nobody solves.'
        ),
        source=(
            'DeepSeek-R1, Guo et al. 2025, arXiv:2501.12948, Sec. 2.2.2: format'
            ' reward beside accuracy'
        ),
        check='format_failures falls below 30 %',
    ),
    'brevity': Entry(
        triggers=('length_gaming', 'length_reward_corr'),
        change=changes.give_weight('brevity', 0.2),
        hypothesis='Longer completions earn more without solving more.',
        source='Kimi k1.5, arXiv:2501.12599, Sec. 2.3.3: length reward',
        check='length_reward_corr falls below 0.3',
    ),
    'shorter_limit': Entry(
        triggers=('length_gaming', 'length_reward_corr'),
        change=changes.shorter_limit(),
        hypothesis=(
            'Completions spend tokens that solve nothing: under a shorter limit'
            ' the brief ones are reinforced.'
        ),
        source=f'{_DEEPSCALER}: training at 8K tokens before 16K and 24K',
        check='n_tokens falls, truncated does not rise',
    ),
    'full_limit': Entry(
        triggers=('truncated',),
        change=changes.set_value('rollout.token_limit', 0),
        expected=(-0.04, 0.08),
        hypothesis='The limit cuts completions that would have been right.',
        source=f'{_DEEPSCALER}: 8K, then 16K, then 24K tokens',
        check='truncated falls below 15 %',
    ),
    'rare_success': Entry(
        triggers=('too_hard', 'exploration_collapse'),
        change=changes.give_weight('rare_success', 0.5),
        expected=(-0.04, 0.06),
        hypothesis=(
            'Sharpening what is likely anyway gains little: a success that the'
            ' rest of its group missed should pay more.'
        ),
        source='He et al. 2025, arXiv:2506.02355: unlikeliness reward',
        check='pass_at_g does not fall',
    ),
    'temperature_up': Entry(
        triggers=(*_COLLAPSE, *_WEAK, 'solution_diversity'),
        change=changes.shift('rollout.temperature', 0.2),
        expected=(-0.05, 0.06),
        hypothesis=(
            'Completions of a group are too much alike: sampled hotter, they'
            ' differ in what they earn.'
        ),
        source='Skywork-OR1, He et al. 2025, arXiv:2505.22312, Sec. 3',
        check='dead_group_ratio falls',
    ),
    'kl_penalty': Entry(
        triggers=(*_COLLAPSE, *_UNSTABLE, 'reward_hacking'),
        change=changes.set_value('grpo.kl_coef', 0.01),
        expected=(-0.05, 0.06),
        hypothesis=(
            'The policy drifts far from where it started: a pull towards the'
            ' reference keeps its other answers alive.'
        ),
        source='GRPO, Shao et al. 2024, arXiv:2402.03300, Eq. 4 (beta 0.04)',
        check='mean_logprob stays lower',
    ),
    'entropy_bonus': Entry(
        triggers=_COLLAPSE,
        change=changes.set_value('grpo.entropy_coef', 0.01),
        expected=(-0.04, 0.06),
        hypothesis=(
            'The policy grows certain of a few answers before it has found the'
            ' right ones: a bonus for its entropy keeps the others alive.'
        ),
        source='A3C, Mnih et al. 2016, arXiv:1602.01783, Sec. 4 (weight 0.01)',
        check='mean_logprob stays lower',
    ),
    'no_entropy_bonus': Entry(
        triggers=('slow_learning',),
        change=changes.set_value('grpo.entropy_coef', 0.0),
        expected=(-0.04, 0.06),
        hypothesis='The bonus for entropy holds learning back.',
        source=(
            'Cui et al. 2025, arXiv:2505.22617, Sec. 4.1: a bonus for entropy'
            ' hardly helps, or makes it explode'
        ),
    ),
    'no_kl_penalty': Entry(
        triggers=('slow_learning',),
        change=changes.set_value('grpo.kl_coef', 0.0),
        expected=(-0.04, 0.06),
        hypothesis='The pull towards the reference holds learning back.',
        source=f'{_DAPO}, Sec. 2.3',
    ),
    'easier_problems': Entry(
        triggers=('too_hard',),
        change=slices.half_of_levels(harder=False),
        expected=(-0.05, 0.07),
        hypothesis='Nobody solves the harder problems yet: they teach nothing.',
        source=_BALANCED,
        check='dead_group_ratio falls',
    ),
    'harder_problems': Entry(
        triggers=('too_easy',),
        change=slices.half_of_levels(harder=True),
        expected=(-0.05, 0.07),
        hypothesis='Everybody solves the easier problems: they teach nothing.',
        source=_BALANCED,
        check='dead_group_ratio falls',
    ),
    'middle_families': Entry(
        triggers=('too_hard', 'too_easy', 'weak_signal', 'dead_group_ratio'),
        change=slices.middle_families(),
        expected=(-0.05, 0.07),
        hypothesis=(
            'Families that are solved about half of the time teach most: the'
            ' others wait until the policy has learned from these.'
        ),
        source=_BALANCED,
        check='dead_group_ratio falls',
    ),
}
