"""Logs of the seventh list's faults in rewards, formats, agents, lengths.

How the list was drawn, each step written down before the next (2026-11-28):

1. Twelve queries, fixed before the first was run, each put to a search of issue
   threads and to one of web pages: GRPO reward not increasing; GRPO training
   collapse; reward increases but eval accuracy drops; KL divergence explodes
   GRPO; entropy collapse RL LLM; completion length keeps growing; GRPO loss 0
   grad norm 0; agent stops calling tools during RL training; training reward
   stuck at zero; nan loss PPO verl; vLLM logprob mismatch training; reward
   hacking in RL fine-tuning.
2. Results are taken in the order of their rank, at most 3 of a query and 1 of a
   repository and topic, if they are about RL post-training of language models,
   if the cause is found or convincingly given in what the search shows of them,
   and if the symptom could show in the log of such a trainer. Threads of earlier
   lists are left out, kinds of faults that they have are not.
3. These gave 19. Twelve more queries, fixed before they were run, were put to
   the search of threads, and the first result that qualifies of each was taken
   until there were 24: GRPO reward suddenly drops to zero KL becomes large; GRPO
   reward fluctuates instead of rising; RL training grad norm spikes entropy
   rises model outputs nonsense; response length explodes and clip ratio rises
   during RL; format reward always zero GRPO; model outputs exclamation marks
   after some RL steps; GRPO grad norm is zero but reward std is not zero;
   accuracy reward decreases while format reward increases; and four more that
   were not reached.
4. Of 313 results 24 were kept; 28 are in an earlier list, 31 had been seen in
   another query, 47 are of the kind but without a cause, 181 are no bad run of
   RL on a language model, and 2 qualify but came after the 24th.
5. Sound runs: three queries for threads whose answer is that all is well, and
   one for published curves (is it normal GRPO loss negative; is this training
   curve normal RL LLM; response length decreases is this expected GRPO; GRPO
   successful run training log reward curve) gave 3; the other 5 are those among
   the results above, in the order of the queries.
"""
