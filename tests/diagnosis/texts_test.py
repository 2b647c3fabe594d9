"""Checks of texts: marks of roles, and other languages than in prompts."""

from absl.testing import absltest
from absl.testing import parameterized
import numpy as np

from evojax.diagnosis.checks import texts
from tests.diagnosis import breaks_made
from tests.diagnosis import made

_AT = breaks_made.AT
_SALAD = 'ответ 答案 תשובה คำตอบ 대답 उत्तर '


class ForeignTest(parameterized.TestCase):

  @parameterized.parameters(
      ('What is 2 + 2?', 'It is four, π r² or so.', ()),
      ('What is 2 + 2?', '所以 it is four.', ('Chinese characters',)),
      ('What is 2 + 2?', 'It is called 北京. ' + 'And so on. ' * 30, ()),
      ('2 + 2 = ', '所以答案是 4', ()),  # A prompt of no language.
      ('二加二等于几?', 'x = 4, 所以答案是 4', ()),
      ('二加二等于几?', 'So the answer is four.', ('Latin',)),
      ('二加二等于几?', 'four, 所以答案是四, 没有别的', ()),
      ('これは何ですか', '漢字の問題です', ()),
      ('Was ist größer?', 'Größer ist Łódź.', ()),
      ('Сколько?', 'Ответ: 4 км, ответ', ()),
      ('How many?', 'Ответ: 4', ('Cyrillic',)),
      ('How many?', '', ()),
      ('Скільки? В тегах <answer>.', 'It is four, as I said.', ('Latin',)),
      ('二加二等于几? \\boxed{}', 'x + y = 4, \\boxed{4}, Ada', ()),
      ('写一个函数', 'def add(x, y):\n  print(add, x, y, add)', ()),
      ('写一个函数', '```\nint add(int x, int y) {return x + y}\n```', ()),
  )
  def test_scripts(self, prompt, completion, expected):
    self.assertEqual(texts.foreign(prompt, completion), set(expected))


class OtherLanguageTest(parameterized.TestCase):

  def test_chinese_from_a_step_on(self):
    run = breaks_made.drifted(0.6)
    found = texts.other_language(run)
    self.assertEqual((found.since, found.severity), (_AT, 'warning'))
    self.assertIn('Chinese characters', found.text)
    self.assertAlmostEqual(found.numbers[0].value, 0.6, delta=0.05)
    shown = run.rollouts.loc[list(found.rows)]
    self.assertTrue((shown['step'] >= _AT).all())
    self.assertTrue(shown['completion'].str.contains('所以').all())

  _RUSSIAN = 'Сколько яблок в корзинах? Ответ в тегах.'
  _ENGLISH = 'How many apples are in the baskets of the farm, and whose?'
  _SUMS = 'so we have the sum, which is that of the parts, and it is so'

  @parameterized.parameters(
      ({}, 'are in English'),
      (dict(asked=_RUSSIAN, home='значит, сумма равна'), 'are in English'),
      (dict(asked=_ENGLISH, home=_SUMS, other='x = 4'), None),
      (dict(asked=_ENGLISH, home=_SUMS, other=_SUMS[:-6]), None),
      (
          dict(
              asked=_ENGLISH,
              home=_SUMS,
              other='nous avons donc une somme et les parts sont dans le',
          ),
          'are in French',
      ),
      # A program has no language, whatever its comments are in.
      (dict(program='\nprint(the_sum)'), None),
      (dict(home='x = 4', other='y = 5, since 4 + 1 = 5'), None),
  )
  def test_english_from_a_step_on(self, changed, said):
    found = texts.other_language(breaks_made.translated(**changed))
    self.assertEqual(found is not None, said is not None)
    if said:
      self.assertEqual(found.since, _AT)
      self.assertIn(said, found.text)

  def test_letters_of_all_scripts_are_no_language(self):
    found = texts.other_language(breaks_made.drifted(0.8, texts=(_SALAD,)))
    self.assertIn('many scripts', found.text)
    self.assertEqual(found.remedies[0].setting, 'learning_rate')

  @parameterized.parameters((0.6, 0), (0.1, _AT), (0.0, _AT))
  def test_a_base_model_that_does_so_and_rare_ones(self, share, start):
    run = breaks_made.drifted(share, start)
    self.assertIsNone(texts.other_language(run))

  def test_prompts_that_change_their_language_with_the_completions(self):
    rows = made.rollouts()
    late = rows['step'] >= _AT
    for name in ('prompt', 'completion'):
      rows[name] = rows[name].where(~late, '问题和答案: ' + rows[name])
    self.assertIsNone(texts.other_language(made.run(rows)))


class RolesTest(parameterized.TestCase):

  @parameterized.parameters(
      (np.linspace(0, 0.9, 40), True),
      (np.full(40, 0.9), True),  # The sampler does not know the end.
      (np.full(40, 0.05), False),
  )
  def test_completions_that_go_on_after_their_turn(self, share, wanted):
    found = texts.roles_written(breaks_made.spoken(share))
    self.assertEqual(found is not None, wanted)
    if wanted:
      self.assertEqual(found.since is None, share[0] > 0)

  @parameterized.parameters(
      ('so 4 <|im_end|>', False),
      ('so 4<|im_end|>\n', False),
      ('so 4<|im_end|><|endoftext|><|endoftext|>', False),  # Padding.
      ('so 4<|im_end|><|endoftext|> or 5', True),
      ('so 4<|im_end|>\nuser\nand 5?', True),
      ('so 4<|im_start|>assistant', True),
      ('[INST] and 5? [/INST]', True),
      ('<b>4</b>', False),
  )
  def test_marks(self, text, wanted):
    self.assertEqual(bool(texts._ROLE.search(text)), wanted)

  def test_a_logged_conversation_has_them_from_the_start(self):
    run = breaks_made.spoken(np.full(40, 1.0))
    run.rollouts['n_turns'] = 3.0
    self.assertIsNone(texts.roles_written(run))


class OneTextTest(parameterized.TestCase):

  @parameterized.parameters(
      (0.8, 1.0, True),
      (0.1, 1.0, False),  # It earns less: a collapse, which others find.
      (0.8, 0.5, False),
  )
  def test_one_action_for_every_problem(self, paid, share, wanted):
    found = texts.one_text(breaks_made.constant(paid, share))
    self.assertEqual(found is not None, wanted)
    if wanted:
      self.assertEqual(found.since, _AT)
      self.assertIn('earn 0.8', found.text)

  def test_different_answers_in_one_form(self):
    rows = made.rollouts()
    rows['prompt'] += ' It is a number of the text.'
    late = rows['step'] >= _AT  # The policy learns to say no more than that.
    answer = 'it is ' + rows['reference']
    rows['completion'] = rows['completion'].where(~late, answer)
    self.assertIsNone(texts.one_text(made.run(rows)))


if __name__ == '__main__':
  absltest.main()
