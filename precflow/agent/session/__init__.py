"""What an agent is asked to do: dump, rehearse, and the run of a workload behind both."""
