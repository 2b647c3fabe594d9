"""Errors that are sent to a client whose request cannot be served."""

import contextlib
from typing import Any

from fastapi import responses

_TYPES = {
    **dict.fromkeys((400, 405, 413, 415, 421, 431), 'invalid_request_error'),
    401: 'authentication_error',
    403: 'permission_error',
    404: 'not_found_error',
    408: 'timeout_error',
    503: 'overloaded_error',
}
# The rest of the request stays unread, so its connection cannot be reused.
_UNREAD = {'Connection': 'close'}
_HEADERS = {
    401: {'WWW-Authenticate': 'Bearer'} | _UNREAD,
    408: _UNREAD,
    413: _UNREAD,
    503: {'Retry-After': '1'},  # Seconds; the server is full or starting.
}


class ApiError(Exception):
  """Ends a request with a status and a message."""

  def __init__(
      self, status: int, message: str, /, param: str | None = None, **more: Any
  ):
    """Set the wrong field, and further fields of the answer's body."""
    super().__init__(message)
    self.status = status
    self.message = message
    self.param = param
    self._more = more

  def response(self) -> responses.Response:
    """Return the answer, in the format that OpenAI's clients read."""
    error = {
        'message': self.message,
        'type': _TYPES.get(self.status, 'server_error'),
        'param': self.param,
        'code': self.status,
    }
    return responses.JSONResponse(
        {**self._more, 'error': error}, self.status, _HEADERS.get(self.status)
    )


def bad_request(param: str, problem: str) -> ApiError:
  """Return a 400 that names the field."""
  return ApiError(400, f'{param}: {problem}', param=param)


def failure(message: str, status: int = 400, **more: Any) -> ApiError:
  """Return an error in the format of the endpoints for weights."""
  return ApiError(status, message, success=False, message=message, **more)


@contextlib.contextmanager
def refusing():
  """Turn a ValueError raised in the context into a 400."""
  try:
    yield
  except ValueError as e:
    raise ApiError(400, str(e)) from e
