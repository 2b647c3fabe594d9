"""Servers behind SGLang's router, which reads bodies and writes them anew.

Skipped unless EVOJAX_SGLANG_ROUTER_PYTHON names a Python with sglang-router; it
is another program with packages of its own, of 90 MB.
"""

import json

from absl.testing import absltest
from absl.testing import parameterized
import httpx2
import openai
import pytest

from tests.contract import contract_test
from tests.contract import servers

_CHAT = {'messages': [{'role': 'user', 'content': 'What is 31 + 4?'}]}
_PARAMS = {'max_new_tokens': 12, 'sampling_seed': 5}


class Router(parameterized.TestCase):
  """The suite; `start` says which server stands behind the router."""

  __test__ = False
  start = None
  takes_tools = True

  @classmethod
  def setUpClass(cls):
    super().setUpClass()
    behind = cls.start()
    cls.server = cls.enterClassContext(behind)
    cls.router = cls.enterClassContext(servers.router(cls.server.url))
    model = cls.ask('GET', '/v1/models', url=cls.server.url)
    cls.model = model['data'][0]['id']

  @classmethod
  def ask(cls, method, path, body=None, *, url=''):
    response = httpx2.request(
        method,
        (url or cls.router.url) + path,
        json=body,
        headers={'Authorization': f'Bearer {servers.KEY}'},
        timeout=60,
    )
    assert response.status_code == 200, (path, response.text)
    return response.json()

  def client(self, url=''):
    url = url or self.router.url
    return openai.OpenAI(
        base_url=f'{url}/v1', api_key=servers.KEY, max_retries=0
    )

  def test_generate_answers_as_without_the_router(self):
    body = {
        'text': 'What is 31 + 4?',
        'sampling_params': _PARAMS,
        'return_logprob': True,
    }
    found, expected = (
        self.ask('POST', '/generate', body, url=url)
        for url in (self.router.url, self.server.url)
    )
    self.assertEqual(found['text'], expected['text'])
    # The router asks for the texts of tokens, too: the third of each entry.
    logprobs, of_server = (
        [entry[:2] for entry in a['meta_info']['output_token_logprobs']]
        for a in (found, expected)
    )
    self.assertEqual(logprobs, of_server)

  @parameterized.parameters(*contract_test.TRAINERS)
  def test_body_of_another_trainer(self, name):
    body = {'input_ids': [5, 6, 7], **contract_test.TRAINERS[name]}
    meta = self.ask('POST', '/generate', body)['meta_info']
    self.assertLen(meta['output_token_logprobs'], meta['completion_tokens'])

  def test_batch(self):
    body = {'input_ids': [[5, 6], [7, 8, 9]], 'sampling_params': _PARAMS}
    self.assertLen(self.ask('POST', '/generate', body), 2)

  def test_stream(self):
    body = {'text': 'Hello', 'sampling_params': _PARAMS, 'stream': True}
    with httpx2.stream(
        'POST',
        self.router.url + '/generate',
        json=body,
        headers={'Authorization': f'Bearer {servers.KEY}'},
        timeout=60,
    ) as response:
      self.assertEqual(response.status_code, 200)
      lines = [line for line in response.iter_lines() if line]
    self.assertEqual(lines[-1], 'data: [DONE]')
    last = json.loads(lines[-2].removeprefix('data: '))
    self.assertIsNotNone(last['meta_info']['finish_reason'])

  def test_chat(self):
    ask = dict(model=self.model, seed=3, max_tokens=24, **_CHAT)
    found, expected = (
        self.client(url).chat.completions.create(**ask).choices[0]
        for url in (self.router.url, self.server.url)
    )
    self.assertEqual(found.message.content, expected.message.content)
    self.assertEqual(found.finish_reason, expected.finish_reason)
    chunks = list(self.client().chat.completions.create(stream=True, **ask))
    text = ''.join(
        c.choices[0].delta.content or '' for c in chunks if c.choices
    )
    self.assertEqual(text, found.message.content)

  def test_chat_with_logprobs_and_tools(self):
    tool = {
        'type': 'function',
        'function': {'name': 'add', 'parameters': {'type': 'object'}},
    }
    answer = self.client().chat.completions.create(
        model=self.model,
        max_tokens=8,
        logprobs=True,
        top_logprobs=2,
        tools=[tool] if self.takes_tools else [],
        **_CHAT,
    )
    self.assertNotEmpty(answer.choices[0].logprobs.content)

  def test_completion(self):
    answer = self.client().completions.create(
        model=self.model, prompt='12 + 34 =', max_tokens=8
    )
    self.assertBetween(answer.usage.completion_tokens, 1, 8)

  def test_models(self):
    found = self.ask('GET', '/v1/models')['data']
    self.assertIn(self.model, [m['id'] for m in found])


@pytest.mark.slow
class EvojaxTest(Router):
  """evojax's own service behind the router."""

  __test__ = True
  start = staticmethod(servers.evojax)


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.real_sglang_jax
class SglangJaxTest(Router):
  """sglang-jax behind the router."""

  __test__ = True
  start = staticmethod(servers.sglang_jax)
  takes_tools = False  # It answers 500 without a parser of their calls.


if __name__ == '__main__':
  absltest.main()
