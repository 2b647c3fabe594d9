"""A server that answers as a language model that judges would."""

import collections
import contextlib
import http.server
import json
import threading


class Server:
  """An OpenAI-compatible server that scores by a function of the prompt."""

  def __init__(self, answer):
    """`answer(prompt, times it was asked)` is a reply or a status.

    A reply may be a pair of a text and its finish_reason.
    """
    self.bodies, self.keys, self.most = [], [], 0
    times, now, lock = collections.Counter(), [], threading.Lock()
    server = self

    class Handler(http.server.BaseHTTPRequestHandler):

      def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers['Content-Length'])))
        prompt = body['messages'][0]['content']
        with lock:
          now.append(1)
          server.most = max(server.most, len(now))
          server.bodies.append(body)
          server.keys.append(self.headers['Authorization'])
          times[prompt] += 1
        found = answer(prompt, times[prompt])
        with lock:
          now.pop()
        status = found if isinstance(found, int) else 200
        text, end = found if isinstance(found, tuple) else (found, 'stop')
        choice = {'message': {'content': text}, 'finish_reason': end}
        message = {'choices': [choice]}
        data = json.dumps(message if status == 200 else 'no').encode()
        with contextlib.suppress(ConnectionError):
          self.send_response(status)
          self.send_header('Content-Length', str(len(data)))
          self.end_headers()
          self.wfile.write(data)

      def log_message(self, *_):
        pass

    self._http = http.server.ThreadingHTTPServer(('127.0.0.1', 0), Handler)
    self.url = f'http://127.0.0.1:{self._http.server_port}/v1'
    threading.Thread(target=self._http.serve_forever, daemon=True).start()

  def close(self):
    self._http.shutdown()
    self._http.server_close()
