"""The parts of ``capture.py``: the work that is captured, our agent and the peer around it, and the many small calls."""
