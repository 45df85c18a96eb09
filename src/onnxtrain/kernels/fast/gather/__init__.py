"""Sums of rows that have the same index, always in the same order: the gradient of Gather."""
