"""Errors that a client gets when its request cannot be served."""

from collections.abc import Mapping
from typing import Any

_TYPES = {
    400: 'invalid_request_error',
    401: 'authentication_error',
    404: 'not_found_error',
    405: 'invalid_request_error',
    408: 'timeout_error',
    413: 'invalid_request_error',
    503: 'overloaded_error',
}
# Seconds after which clients should try a full or starting server again.
_RETRY_AFTER = 1

# Statuses after which the rest of the request is not read.
_UNREAD = (401, 408, 413)


class ApiError(Exception):
  """Ends a request with a status and a message."""

  def __init__(self, status: int, message: str, *, param: str | None = None):
    super().__init__(message)
    self.status = status
    self.message = message
    self.param = param

  @property
  def headers(self) -> dict[str, str]:
    """Return the headers that belong to the status."""
    headers = {}
    if self.status == 503:
      headers['Retry-After'] = str(_RETRY_AFTER)
    if self.status == 401:
      headers['WWW-Authenticate'] = 'Bearer'
    if self.status in _UNREAD:
      headers['Connection'] = 'close'
    return headers


def bad_request(param: str, problem: str) -> ApiError:
  """Return a 400 that names the field."""
  return ApiError(400, f'{param}: {problem}', param=param)


def unavailable(message: str) -> ApiError:
  """Return a 503, which tells the client to try again."""
  return ApiError(503, message)


def body(error: ApiError) -> Mapping[str, Any]:
  """Return the JSON of an error, in the shape that OpenAI's clients read."""
  return {
      'error': {
          'message': error.message,
          'type': _TYPES.get(error.status, 'server_error'),
          'param': error.param,
          'code': error.status,
      }
  }
