"""Errors in the user's own code are told apart from ours."""

import json
import re

from absl.testing import absltest

from evojax.runtime import plugins


class LocatedTest(absltest.TestCase):

  def located(self, function):
    try:
      function()
    except ValueError as error:
      located = plugins.located(error)
      self.assertEqual(plugins.is_of_user(error), __file__ in located)
      return located

  def test_the_users_own_line(self):
    for function in (lambda: int('x'), lambda: json.loads('x')):
      line = function.__code__.co_firstlineno
      self.assertRegex(
          self.located(function),
          f'^{re.escape(__file__)}:{line}: (ValueError|JSONDecodeError): .',
      )

  def test_our_own_errors_stay_as_they_are(self):
    said = self.located(
        lambda: plugins.load('domain.name', 'no.x', {}, needs='m()', example='')
    )
    self.assertStartsWith(said, "domain.name='no.x' is neither one of")


if __name__ == '__main__':
  absltest.main()
