"""Language models of Python's own language reference, from raw text to a report."""
