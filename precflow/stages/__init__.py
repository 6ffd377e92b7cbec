"""One file a stage: glue between the rooms, nothing else."""
