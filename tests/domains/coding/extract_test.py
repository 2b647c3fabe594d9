"""Extraction of the program from a completion."""

import textwrap

from absl.testing import absltest
from absl.testing import parameterized

from evojax.domains.coding import extract

P = 'n = int(input())\nprint(n + 1)\n'
IF = 'if input():\n    print(1)\n  # Less.\n'


class ExtractTest(parameterized.TestCase):

  @parameterized.named_parameters(
      ('python', f'```python\n{P}```'),
      ('py', f'```py\n{P}```'),
      ('python3', f'```python3\n{P}```'),
      ('a version', f'```Python3.11\n{P}```'),
      ('a name of a file', f'```python:main.py\n{P}```'),
      ('a class of pandoc', f'```{{.python .numberLines}}\n{P}```'),
      ('an option', f'```py, linenos\n{P}```'),
      ('capital', f'```Python\n{P}```'),
      ('no language', f'```\n{P}```'),
      ('more in the info', f'```python title="a.py"\n{P}```'),
      ('prose around', f'Sure:\n\n```python\n{P}```\nThis adds one.'),
      ('line ends of Windows', f'```python\r\n{P}```\r\n'),
      ('indented fence', f'  ```python\n{P}  ```'),
      ('four backticks', f'````python\n{P}````'),
      ('longer closing', f'```python\n{P}`````'),
      ('the last of two', f'```python\nprint(0)\n```\nBetter:\n```\n{P}```'),
      ('after thinking', f'<think>```\nprint(0)\n``` hm</think>```\n{P}```'),
      ('output after it', f'```python\n{P}```\nprints\n```text\n4\n```'),
      ('output without a mark', f'```python\n{P}```\nprints\n```\n4\nYES\n```'),
      ('no marks at all', f'```\n{P}```\nprints\n```\n4\nYES\n```'),
      ('input and output', f'```py\n{P}```\n```\n3 1\n```\n```\n4\n```'),
      ('an open one after it', f'```python\n{P}```\nOr:\n```python\nprint('),
      ('nested shorter', f'```python\nprint(0)\n```\n````\n{P}````'),
  )
  def test_program(self, text):
    self.assertEqual(extract.extract(text), P)

  @parameterized.parameters('', ' ', '  ', '   ')
  def test_a_fence_in_a_list(self, margin):
    """Its lines lose the indentation of the fence, if they have it."""
    fenced = f'```python\n{IF}```\n'
    text = f'1. Read:\n\n{textwrap.indent(fenced, margin)}'
    self.assertEqual(extract.extract(text), IF)
    self.assertEqual(extract.extract(f'{margin}```\n{P}{margin}```'), P)

  @parameterized.named_parameters(
      ('nothing', ''),
      ('unfenced', P),
      ('cut', f'```python\n{P}'),
      ('cut in the closing fence', f'```python\n{P}``'),
      ('closed only', f'{P}```'),
      ('inline', f'`{P}`'),
      ('fence within a line', f'Use ```{P}``` here'),
      ('other language', f'```cpp\n{P}```'),
      ('a session', f'```python-repl\n{P}```'),
      ('another session', f'```pycon\n{P}```'),
      ('a file', f'```pyproject.toml\n{P}```'),
      ('only in the thinking', f'<think>\n```\n{P}```\n</think>\nDone.'),
      ('thinking that does not end', f'<think>\n```\n{P}```\nWait.'),
      ('thinks again', f'</think>```\n{P}```\n <think>\n```\n{P}```'),
      ('too short closing', f'````python\n{P}```'),
      ('deep indentation', textwrap.indent(f'```\n{P}```', '    ')),
  )
  def test_no_program(self, text):
    self.assertIsNone(extract.extract(text))

  def test_empty_block_is_an_empty_program(self):
    self.assertEqual(extract.extract('```python\n```'), '')

  def test_a_fence_in_the_info_string_is_content(self):
    """The second of two openings is a line of the first one's program."""
    found = extract.extract(f'```python\nprint(0)\n```python\n{P}```')
    self.assertEqual(found, f'print(0)\n```python\n{P}')

  def test_long_texts_take_no_time(self):
    for text in (
        '`' * 10**6,
        '```\n' * 10**5,
        '``` x\n' * 10**5,
        '```' + ' ' * 10**6 + '`',
        '\n' * 10**6,
        ' ' * 10**6,
        ' ```\n' + ' ' * 10**6 + '\n```',
    ):
      extract.extract(text)


if __name__ == '__main__':
  absltest.main()
