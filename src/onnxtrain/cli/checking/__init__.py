"""What ``check`` and ``gradcheck`` try, and how gradients are compared with differences."""
