"""Logs of the seventh list: a sample of what users report.

How it was drawn, written down before the step that follows:

1. Queries, fixed before the first was run (2026-11-28): see QUERIES. Each is
   put to a search of issue threads, and then to one of web pages; up to 12
   results each, in the order of their rank.
2. Rounds: the first result of each query that qualifies among issue threads,
   then among pages, then the second one among issue threads, and so on; at most
   3 of a query, 1 of a repository and topic, until there are 24.
3. A result qualifies if it is about RL post-training of language models, if its
   cause was found or is convincingly given there, and if the symptom shows or
   could show in the log of such a trainer. Threads of earlier lists are left
   out; kinds of faults that earlier lists have are not.
"""

QUERIES = (
    'GRPO reward not increasing',
    'GRPO training collapse',
    'reward increases but eval accuracy drops',
    'KL divergence explodes GRPO',
    'entropy collapse RL LLM',
    'completion length keeps growing',
    'GRPO loss 0 grad norm 0',
    'agent stops calling tools during RL training',
    'training reward stuck at zero',
    'nan loss PPO verl',
    'vLLM logprob mismatch training',
    'reward hacking in RL fine-tuning',
)
# The first twelve gave fewer than 24, so that these were added before they were
# run; their results are taken by the same rule.
MORE_QUERIES = (
    'GRPO reward suddenly drops to zero KL becomes large',
    'GRPO reward fluctuates instead of rising',
    'RL training grad norm spikes entropy rises model outputs nonsense',
    'response length explodes and clip ratio rises during RL',
    'format reward always zero GRPO',
    'model outputs exclamation marks after some RL steps',
    'GRPO grad norm is zero but reward std is not zero',
    'accuracy reward decreases while format reward increases',
    'GRPO reward plateaus after a few steps',
    'validation score lower after RL training than before',
    'importance ratio not 1 on-policy RL training',
    'multi-turn agent RL training reward collapse',
)
SOUND_QUERIES = (
    'is it normal GRPO loss negative',
    'is this training curve normal RL LLM',
    'response length decreases is this expected GRPO',
    'GRPO successful run training log reward curve',
)
