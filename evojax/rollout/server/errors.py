"""Errors that a client gets when its request cannot be served."""

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
# The rest of a request is not read, so its connection is of no more use.
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
    """Name the field that is wrong, and fields of the body beside `error`."""
    super().__init__(message)
    self.status = status
    self.message = message
    self.param = param
    self._more = more

  def response(self) -> responses.Response:
    """Return the answer, in the shape that OpenAI's clients read."""
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
  """Return an error as the endpoints for weights report it."""
  return ApiError(status, message, success=False, message=message, **more)


@contextlib.contextmanager
def refusing():
  """Turn a ValueError into a 400."""
  try:
    yield
  except ValueError as e:
    raise ApiError(400, str(e)) from e
