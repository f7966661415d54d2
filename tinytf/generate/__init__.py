"""What a model says after a text, and of one."""
