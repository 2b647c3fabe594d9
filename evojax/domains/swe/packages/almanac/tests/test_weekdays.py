from almanac import weekdays


def test_number():
  assert weekdays.number((1, 1, 1)) == 1
  assert weekdays.number((2, 1, 1)) == 366
  assert weekdays.number((2000, 1, 1)) == 730120


def test_weekday():
  assert weekdays.weekday((2024, 1, 1)) == 0
  assert weekdays.weekday((2024, 2, 29)) == 3
  assert weekdays.weekday((1999, 12, 31)) == 4


def test_days_between():
  assert weekdays.days_between((2024, 1, 1), (2024, 12, 31)) == 365
  assert weekdays.days_between((2024, 3, 1), (2024, 2, 28)) == -2
  assert weekdays.days_between((1900, 1, 1), (1901, 1, 1)) == 365


def test_next_weekday():
  assert weekdays.next_weekday((2024, 1, 1), 'Tue') == 1
  assert weekdays.next_weekday((2024, 1, 3), 'Mon') == 5


def test_the_same_weekday_is_a_week_away():
  assert weekdays.next_weekday((2024, 1, 1), 'Mon') == 7
  assert weekdays.next_weekday((2024, 1, 7), 'Sun') == 7


def test_is_weekend():
  assert weekdays.is_weekend((2024, 1, 5)) is False
  assert weekdays.is_weekend((2024, 1, 6)) is True
  assert weekdays.is_weekend((2024, 1, 7)) is True
