from almanac import months
import pytest


def test_leap_years():
  assert months.is_leap(2024) is True
  assert months.is_leap(2023) is False


def test_leap_years_of_centuries():
  assert months.is_leap(2000) is True
  assert months.is_leap(1900) is False
  assert months.is_leap(2100) is False


def test_days_in_month():
  assert months.days_in_month(2024, 2) == 29
  assert months.days_in_month(2023, 2) == 28
  assert months.days_in_month(2023, 12) == 31
  assert months.days_in_month(2023, 4) == 30


def test_no_such_month():
  with pytest.raises(ValueError):
    months.days_in_month(2023, 0)
  with pytest.raises(ValueError):
    months.days_in_month(2023, 13)


def test_day_of_year():
  assert months.day_of_year(2023, 1, 1) == 1
  assert months.day_of_year(2023, 12, 31) == 365
  assert months.day_of_year(2024, 3, 1) == 61


def test_add_months():
  assert months.add_months((2023, 1, 15), 1) == (2023, 2, 15)
  assert months.add_months((2023, 11, 30), 3) == (2024, 2, 29)
  assert months.add_months((2023, 1, 31), -2) == (2022, 11, 30)
  assert months.add_months((2022, 12, 5), 12) == (2023, 12, 5)
