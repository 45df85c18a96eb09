"""From a graph to a step that runs: lowering, lifetimes, the plan, its proof and its program."""
