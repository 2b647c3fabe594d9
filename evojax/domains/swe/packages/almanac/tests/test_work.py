from almanac import work


def test_working_days():
  assert work.working_days(1, 7) == 5
  assert work.working_days(5, 8) == 2
  assert work.working_days(6, 7) == 0


def test_holidays():
  assert work.working_days(1, 7, holidays=(1, 2)) == 3
  assert work.working_days(1, 7, holidays=(6,)) == 5


def test_due():
  assert work.due((2024, 1, 1), 4) == 738890
  assert work.due((2024, 1, 1), 5) == 738893
  assert work.due((2024, 1, 5), 1) == 738893


def test_due_after_holidays():
  assert work.due((2024, 1, 1), 1, holidays=(738887,)) == 738888
  assert work.due((2024, 1, 1), 0) == 738886


def test_share():
  assert work.share((2024, 1, 1), (2024, 1, 7)) == 71
  assert work.share((2024, 1, 6), (2024, 1, 7)) == 0
  assert work.share((2024, 1, 2), (2024, 1, 1)) == 0
