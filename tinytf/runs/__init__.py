"""The folder of a run: its files, their readers, and the reports of what they hold; free of torch."""
