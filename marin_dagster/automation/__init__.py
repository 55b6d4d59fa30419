"""Schedules that run what the cache lacks, and the sensor that watches the store."""
