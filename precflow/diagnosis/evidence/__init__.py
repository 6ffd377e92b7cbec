"""The facts that rules may ask about, each measured by a small function; `names` lists them all."""
