"""Probes of SGLang servers: whether they are up, and what they can do."""

import contextlib
from typing import Any

import httpx2

from evojax.rollout import answers
from evojax.rollout import servers as servers_lib

SECONDS = 30.0  # Time limit of a probe.


class GoneError(Exception):
  """A server is unusable at the moment; a later attempt may succeed."""


async def fetch(http: httpx2.AsyncClient, url: str) -> httpx2.Response:
  """Return the answer to a GET, whatever its status."""
  return await http.get(url, timeout=SECONDS)


async def read(http: httpx2.AsyncClient, url: str) -> dict[str, Any]:
  """Return the JSON object at a URL; {} if the server does not have it.

  Raises:
    DisagreementError: If the server refuses the key.
    GoneError: If it answers with another status than 200.
  """
  response = await fetch(http, url)
  if response.status_code in (401, 403):
    raise denied(url)
  if response.status_code in (404, 405):
    return {}
  if response.status_code != 200:
    raise GoneError(_refused(url, response))
  with contextlib.suppress(ValueError):
    if isinstance(value := response.json(), dict):
      return value
  return {}


async def check_health(http: httpx2.AsyncClient, url: str) -> None:
  """Check that a server says it is up.

  Raises:
    GoneError: If it does not.
  """
  health = await fetch(http, f'{url}/health')
  if health.status_code != 200:
    raise GoneError(_refused(f'{url}/health', health))


async def probe(
    http: httpx2.AsyncClient, url: str
) -> tuple[servers_lib.Abilities, dict[str, Any], dict[str, Any]]:
  """Return a server's abilities, its model info and its server info.

  Args:
    http: Connections to servers.
    url: Address of the server, without a path.

  Raises:
    DisagreementError: If it is not an SGLang server, or refuses the key.
    GoneError: If the server is not up.
  """
  await check_health(http, url)
  for path in ('/model_info', '/get_model_info'):
    if model := await read(http, url + path):
      break
  else:
    raise answers.DisagreementError(
        f'{url} has neither /model_info nor /get_model_info: is it an SGLang'
        ' server?'
    )
  info = await read(http, f'{url}/server_info')
  info = info or await read(http, f'{url}/get_server_info')
  abilities = servers_lib.Abilities(
      model_info=path,
      update=await _has(http, f'{url}/update_weights_from_disk'),
      tensors=await _has(http, f'{url}/update_weights_from_tensor'),
      ranks=_count(info, 'tp_size'),
      replicas=_count(info, 'dp_size'),
      abort=await _has(http, f'{url}/abort_request'),
      seeds=bool(
          info.get('enable_deterministic_sampling')
          or info.get('enable_deterministic_inference')
      ),
      reports_version=model.get('weight_version') is not None,
      version=str(info.get('version') or ''),
      dtype=str(info.get('dtype') or ''),
  )
  return abilities, model, info


def _count(info: dict[str, Any], name: str) -> int:
  """Return a positive number of the server info; 1 if it is not reported."""
  found = info.get(name)
  return found if type(found) is int and found > 0 else 1


async def _has(http: httpx2.AsyncClient, url: str) -> bool:
  """Return True if a path exists; a GET of a path for POST does nothing."""
  return (await fetch(http, url)).status_code != 404


def denied(url: str) -> answers.DisagreementError:
  """Return the error of a server that refuses the key."""
  return answers.DisagreementError(
      f"{url} refused the key: put the server's --api-key into the environment"
      ' variable that config.rollout.api_key_env names, and its'
      ' --admin-api-key, if it has one, into that of'
      ' config.rollout.admin_key_env'
  )


def described(error: Exception) -> str:
  """Return the text of an error, with the class of an HTTP error."""
  if isinstance(error, httpx2.HTTPError):
    return f'{type(error).__name__} {error}'.strip()
  return str(error)


def _refused(url: str, response: httpx2.Response) -> str:
  """Return one line about an answer whose status is not 200."""
  return f'{url} answered {response.status_code} {response.text[:300]}'.strip()
