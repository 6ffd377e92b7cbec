"""Overrides that tests of several files run with."""

TRAINED = (
    "workload.model._target_=trained.build",
    "workload.inputs._target_=trained.inputs",
    "workload.loss._target_=trained.loss",
    "workload.optimizer._target_=torch.optim.AdamW",
    "workload.optimizer.lr=0.01",
    "workload.mode=train",
    "capture.phase=[forward,backward,gradient,optimizer]",
    "capture.step=[0,1]",
)
