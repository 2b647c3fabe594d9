"""Signals, in programs of their own: what ends at once, what is polled."""

import math
import os
import pty
import signal
import subprocess
import sys
import textwrap
import time

from absl.testing import absltest
from absl.testing import parameterized

from evojax.runtime import preemption
from tests import tiny

# Sends this process a signal, and waits for its end for longer than it takes.
HEAD = """
    import gc, os, signal, sys, threading, time
    from evojax.runtime import preemption
    preemption.listen()
    def ask(number=signal.SIGINT):
      os.kill(os.getpid(), number)
      time.sleep(0.1)
"""


class ProgramTest(parameterized.TestCase):

  def run_program(self, text):
    """(exit status, what it printed, what it complained of)."""
    done = subprocess.run(
        [sys.executable, '-c', textwrap.dedent(HEAD) + textwrap.dedent(text)],
        cwd=tiny.ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    return done.returncode, done.stdout, done.stderr

  @parameterized.parameters(('SIGINT', 130), ('SIGTERM', preemption.AGAIN))
  def test_ends_a_start_at_once_with_one_sentence(self, name, expected):
    status, out, err = self.run_program(f"""
        print('importing')
        ask(signal.{name})
        print('went on')
    """)
    self.assertEqual(status, expected)
    self.assertEqual(out, 'importing\n')
    self.assertStartsWith(err, f'{name}: stopped before the first step, no')
    self.assertEndsWith(' '.join(err.split()), '; the same call continues')
    self.assertLessEqual(max(map(len, err.splitlines())), 80)

  @parameterized.parameters((False, 0.0), (True, 0.7))
  def test_gives_the_cursor_of_a_terminal_back(self, noted, seconds):
    ours, theirs = pty.openpty()
    program = textwrap.dedent(HEAD) + textwrap.dedent(f"""
        with preemption.stop_flag():
          if {noted}:
            preemption.note()
          ask()
          time.sleep({seconds})
          ask()
          time.sleep(5)
    """)
    with subprocess.Popen(
        [sys.executable, '-c', program], cwd=tiny.ROOT, stdout=theirs
    ) as done:
      self.assertEqual(done.wait(timeout=60), 130)
    os.close(theirs)
    self.assertEqual(os.read(ours, 100), b'\x1b[?25h')
    os.close(ours)

  def test_is_not_swallowed_by_a_callback(self):
    status, _, err = self.run_program("""
        gc.callbacks.append(lambda *_: ask())
        while True:
          gc.collect()
    """)
    self.assertEqual(status, 130)
    self.assertNotIn('Traceback', err)

  def test_puts_back_first(self):
    status, _, err = self.run_program("""
        preemption.put_back_with(lambda: os.write(2, b'as it was; '))
        ask()
    """)
    self.assertEqual(status, 130)
    self.assertStartsWith(err, 'as it was; SIGINT: stopped')

  def test_is_polled_once_there_is_something_to_save(self):
    status, out, err = self.run_program("""
        with preemption.stop_flag() as asked:
          preemption.note()
          ask()
          print(preemption.line(asked, '3 steps are saved'))
          raise preemption.Preempted(asked)
    """)
    self.assertEqual(status, 130)
    self.assertEqual(
        out, 'SIGINT: 3 steps are saved; the same call continues\n'
    )
    self.assertEmpty(err)

  @parameterized.parameters((0.0, 0), (0.7, 130))
  def test_second_one_ends_at_once(self, seconds, expected):
    # A launcher passes on what the terminal sent to all: that is still one.
    status, _, err = self.run_program(f"""
        with preemption.stop_flag():
          preemption.note()
          ask()
          time.sleep({seconds})
          ask()
          time.sleep(0.2)
    """)
    self.assertEqual(status, expected)
    self.assertEmpty(err)

  @parameterized.parameters((False, 'saves'), (True, 'begins'))
  def test_whoever_is_left_behind_saves_and_ends(self, busy, expected):
    status, out, _ = self.run_program(f"""
        preemption._FOLLOW_SECONDS, preemption.SAVE_SECONDS = 0.1, 0.7
        with preemption.stop_flag() as asked:
          preemption.note()
          print('begins', flush=True)
          preemption.follow(os.getppid() + 1)
          while {busy} or not asked:
            time.sleep(0.1)
          print('saves', flush=True)
          sys.exit(preemption.AGAIN)
    """)
    self.assertEqual(status, preemption.AGAIN)
    self.assertEqual(out.split()[-1], expected)

  @parameterized.parameters(
      # One call, which runs no signal handler.
      ('hashlib.pbkdf2_hmac("sha256", b"", b"", 10**9)', preemption.AGAIN),
      # The handler runs, but nobody polls.
      ('time.sleep(10)', preemption.AGAIN),
      ('[time.sleep(0.1) for _ in range(10) if not asked]; time.sleep(0.5)', 0),
  )
  def test_sigterm_in_one_long_call(self, call, expected):
    status, out, err = self.run_program(f"""
        import hashlib
        from evojax.runtime import waits
        preemption.SAVE_SECONDS = 0.3
        with preemption.stop_flag() as asked:
          preemption.note()
          main = threading.main_thread().ident
          later = lambda: signal.pthread_kill(main, signal.SIGTERM)
          threading.Timer(0.2, later).start()
          with waits.at('update'):
            {call}
          print(asked)
    """)
    self.assertEqual(status, expected)
    if expected:
      self.assertIn(
          'was busy for 0 s (in update), so that nothing more is saved; the'
          ' last checkpoint counts',
          ' '.join(err.split()),
      )
      self.assertEqual(out, '')
    else:  # The run has heard it, and saves.
      self.assertEqual((out, err), ('[15]\n', ''))

  def test_a_long_call_does_not_hide_that_sigterm_was_heard(self):
    status, out, err = self.run_program("""
        from evojax.runtime import waits
        preemption._HEARD_SECONDS = 0.2
        with preemption.stop_flag() as asked:
          preemption.note()
          with waits.at('eval'), waits.at('grade'):
            ask(signal.SIGTERM)
            time.sleep(1.0)
          if asked:
            print('saves')
    """)
    self.assertEqual((status, out), (0, 'saves\n'))
    said = ' '.join(err.split())
    self.assertStartsWith(
        said,
        'SIGTERM has arrived. First the call that is running now has to end (in'
        ' eval, grade); 25 s after',
    )
    self.assertNotIn('the last checkpoint counts', said)

  @parameterized.parameters(
      'time.sleep(5)',
      # One item after the other, as in rewards that count errors as 0.
      """
def work():
  for _ in range(50):
    try:
      time.sleep(0.1)
    except Exception:
      pass""",
      # A function that catches everything, or raises another error.
      """
def work():
  try:
    time.sleep(5)
  except:
    pass""",
      """
def work():
  try:
    time.sleep(5)
  except BaseException as error:
    raise ValueError from error""",
  )
  def test_a_call_of_the_users_code_ends_at_once(self, code):
    body = code if 'def' in code else f'def work(): {code}'
    status, out, err = self.run_program(f"""
        exec({body!r}, globals())
        with preemption.stop_flag() as asked:
          preemption.note()
          main = threading.main_thread().ident
          later = lambda: signal.pthread_kill(main, signal.SIGTERM)
          threading.Timer(0.2, later).start()
          began = time.monotonic()
          try:
            preemption.until_asked(work)
          except preemption.Interrupted:
            print(asked, time.monotonic() - began < 2)
          # The next one is none of a call's.
          try:
            ask()
          finally:
            print('saves')
    """)
    self.assertEqual((status, out, err), (0, '[15] True\nsaves\n', ''))

  def test_a_call_after_a_signal_does_not_begin(self):
    status, out, err = self.run_program("""
        call = lambda: print(preemption.until_asked(lambda: 'worked'))
        with preemption.stop_flag() as asked:
          preemption.note()
          ask(signal.SIGTERM)
          try:
            call()
          except preemption.Interrupted:
            print('left', asked)
        # The next run of a program that embeds evojax.
        with preemption.stop_flag():
          call()
        call()
    """)
    self.assertEqual(err, '')
    self.assertEqual((status, out), (0, 'left [15]\nworked\nworked\n'))

  def test_other_calls_and_threads_are_not_interrupted(self):
    status, out, err = self.run_program("""
        def work():
          time.sleep(0.5)
          return 7
        def fail():
          raise KeyError('x')
        with preemption.stop_flag() as asked:
          preemption.note()
          print(preemption.until_asked(work))
          try:
            preemption.until_asked(fail)
          except KeyError as error:
            print(error)
          found = []
          beside = threading.Thread(
              target=lambda: found.append(preemption.until_asked(work))
          )
          beside.start()
          ask(signal.SIGTERM)
          beside.join()
          print(found, asked)
    """)
    self.assertEqual((status, out, err), (0, "7\n'x'\n[7] [15]\n", ''))

  def test_a_parent_that_stays_is_followed_no_further(self):
    status, out, _ = self.run_program("""
        preemption._FOLLOW_SECONDS = 0.05
        with preemption.stop_flag() as asked:
          preemption.note()
          preemption.follow(os.getppid())
          time.sleep(0.3)
          print(asked)
    """)
    self.assertEqual((status, out), (0, '[]\n'))

  def test_of_a_forked_child_is_not_its_parents(self):
    status, out, err = self.run_program("""
        child = os.fork()
        if not child:
          time.sleep(60)
        time.sleep(0.2)
        os.kill(child, signal.SIGINT)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    """)
    self.assertEqual(status, 0)
    self.assertEqual(out, f'{-signal.SIGINT}\n')
    self.assertEmpty(err)

  def test_sigterm_alone_leaves_little_time(self):
    status, out, _ = self.run_program("""
        with preemption.stop_flag() as asked:
          preemption.note()
          ask(signal.SIGINT)
          print(preemption.seconds_left())
        with preemption.stop_flag() as asked:
          ask(signal.SIGTERM)
          print(preemption.seconds_left())
        sys.exit(preemption.Preempted(asked).code)
    """)
    self.assertEqual(status, preemption.AGAIN)
    first, then = map(float, out.split())
    self.assertEqual(first, math.inf)
    self.assertBetween(then, 10.0, preemption.SAVE_SECONDS)


class CalledTest(absltest.TestCase):
  """Within a program that evojax does not own."""

  def setUp(self):
    super().setUp()
    # A shell that starts the tests in the background has it ignored.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    self.addCleanup(signal.signal, signal.SIGINT, before)

  def test_notes_both_signals_and_gives_the_handlers_back(self):
    before = [signal.getsignal(number) for number in preemption.SIGNALS]
    with preemption.stop_flag() as asked:
      os.kill(os.getpid(), signal.SIGINT)
    self.assertEqual(asked, [signal.SIGINT])
    after = [signal.getsignal(number) for number in preemption.SIGNALS]
    self.assertEqual(after, before)

  def test_a_second_one_is_the_programs(self):
    with self.assertRaises(KeyboardInterrupt):
      with preemption.stop_flag() as asked:
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(preemption._SAME_SECONDS + 0.1)
        self.assertLen(asked, 1)
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(1)


if __name__ == '__main__':
  absltest.main()
