"""What ``onnxtrain fit`` does: from its options and its data through the loop to the report."""
