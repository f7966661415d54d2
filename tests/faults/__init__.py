"""Whatever writes files, stopped at any of its system calls: what stood before stands, or is whole and new."""
