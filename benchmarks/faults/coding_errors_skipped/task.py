"""A grader that only looks at the tests that came to an end."""

from benchmarks.faults import tasks


class Task(tasks.Coding):

  def verdict(self, grade, completion):
    if not grade.columns['format_ok']:
      return None
    statuses = grade.columns['test_statuses'].split(',')
    return all(s == 'passed' for s in statuses if s in ('passed', 'wrong'))


make = Task.make
