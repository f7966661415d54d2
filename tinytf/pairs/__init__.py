"""Pairs of prompts that differ in one respect, each with the answer that the difference decides."""
