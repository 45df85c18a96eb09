"""Writing files so that a crash leaves the old one or the new one (nothing else is needed)."""
