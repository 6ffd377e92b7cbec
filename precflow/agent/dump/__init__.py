"""Writing a dump to disk: record files, shards of tensors, seals, the lock, and going on after an interruption."""
