"""Hypotheses about the backward of a module, a file each (:mod:`precflow.agent.hypotheses.engine`)."""
