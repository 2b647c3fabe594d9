from rota import tasks

WORK = {'cook': 60, 'wash': 30, 'sweep': 20, 'shop': 40}


def test_share():
  plan = tasks.share(WORK, ['ann', 'bob'])
  assert plan == {'ann': ['cook', 'sweep'], 'bob': ['shop', 'wash']}
  assert tasks.share({}, ['ann']) == {'ann': []}


def test_share_among_many():
  plan = tasks.share({'a': 5, 'b': 5, 'c': 5}, ['x', 'y', 'z'])
  assert plan == {'x': ['a'], 'y': ['b'], 'z': ['c']}
  assert tasks.share({'a': 1}, ['x', 'y']) == {'x': ['a'], 'y': []}


def test_longest():
  assert tasks.longest({'ann': ['cook', 'sweep'], 'bob': ['shop']}, WORK) == 80
  assert tasks.longest({'ann': []}, WORK) == 0


def test_pick():
  offers = [(0, 60, 'long'), (0, 20, 'a'), (20, 40, 'b'), (30, 50, 'c')]
  assert tasks.pick(offers) == ['a', 'b']
  assert tasks.pick([(5, 9, 'x'), (1, 5, 'y')]) == ['y', 'x']
  assert tasks.pick([]) == []


def test_late():
  work = {'a': (30, 30), 'b': (20, 60), 'c': (20, 60)}
  assert tasks.late(work) == ['c']
  assert tasks.late(work, start=5) == ['a', 'c']
  assert tasks.late({'a': (10, 10)}) == []
