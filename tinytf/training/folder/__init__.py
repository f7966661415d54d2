"""The folder of a run: its files, their readers, and reports on them."""
