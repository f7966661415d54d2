"""Check a student's module: open it, copy a reference's weights into it, run it, and compare it step by step."""
