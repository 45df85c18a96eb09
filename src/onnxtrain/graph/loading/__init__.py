"""From files, bytes and protobufs to models, and back."""
