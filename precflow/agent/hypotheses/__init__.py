"""Hypotheses about what is wrong with a call: computed again with one thing changed, does it give what the target gave?"""
