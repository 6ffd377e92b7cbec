"""Recording calls while the model runs: hooks, function modes, and the lines that are written about each call."""
