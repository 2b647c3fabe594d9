"""Dates as (year, month, day), of the Gregorian calendar."""
