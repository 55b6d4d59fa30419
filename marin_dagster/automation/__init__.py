"""Runs that start by themselves: schedules, and the sensor that watches the store."""
