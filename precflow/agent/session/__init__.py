"""What a request asks the agent to do: record a workload, rehearse it without values, or report the environment."""
