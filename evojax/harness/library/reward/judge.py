"""judge: the score of the language model that config.domain.judge names, 0..1.

A judge of how well instructions were followed made the best version of
EvoTrainer (arXiv:2606.03108, v8). What pleases a judge need not be right.
"""


def parts(e):
  return {'judge': e.judge}
