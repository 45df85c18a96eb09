"""Which tensors of a model are weights, where they are kept, and why others are none."""
