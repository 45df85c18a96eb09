"""What torch's exporter wrote of a module: its calls, and parameters as the module had them."""
