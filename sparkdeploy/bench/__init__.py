"""Measuring a served model: suites, counting, records, comparison."""
