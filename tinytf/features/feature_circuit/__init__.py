"""Feature circuits: which features of a prompt make the answer, and which features and tokens make those."""
