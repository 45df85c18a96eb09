"""Gradient graphs: the rules of every operator and the engine that applies them (no torch)."""
