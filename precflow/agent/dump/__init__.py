"""Writing a dump to disk: record files, shards of tensors, seals, the writer's lock, and resuming after an interruption."""
