"""Evidence about a call that may introduce an error, a module each (:mod:`precflow.diagnosis.evidence.pieces`)."""
