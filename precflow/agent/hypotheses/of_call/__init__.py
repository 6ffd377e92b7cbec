"""Hypotheses about a call, a file each (:mod:`precflow.agent.hypotheses.engine`)."""
