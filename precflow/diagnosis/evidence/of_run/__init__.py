"""Evidence about a run, a module each (:mod:`precflow.diagnosis.evidence.pieces`)."""
