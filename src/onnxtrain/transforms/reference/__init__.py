"""Training models of the reference: what is missing or wrong in them is mended on loading."""
