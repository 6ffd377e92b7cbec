"""Where two sides part, what the evidence says, and the rules that turn it into advice."""
