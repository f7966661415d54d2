"""A student's own module against a reference: opened, given the reference's weights, run, and compared step by step."""
