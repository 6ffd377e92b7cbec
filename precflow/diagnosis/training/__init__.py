"""What is special about training: which phase is guilty, and whether the optimizer's step follows from its gradient."""
