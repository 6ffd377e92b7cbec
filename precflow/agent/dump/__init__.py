"""A dump on disk as its writer makes it: steps, shards, the lock, and what a stopped writer left."""
