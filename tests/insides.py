"""What our objects are in Python, which nothing that a user reads says."""

import re

INSIDES = re.compile(r"\b(?:Figure|Span|Column|Bar|Line|Heading|Table|Estimate|HookPoint|Step|Address|Trace)\(\w+=")
