"""Was everything recorded that was asked for? What was not recorded must not look as if it was not computed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from precflow.agent.failures import AgentError

if TYPE_CHECKING:
    from precflow.agent.request import Request
    from precflow.agent.script.watcher import Watcher

_SHOWN = 3


def check_outcome(watcher: Watcher, request: Request, name: str, records: int, device: str) -> None:
    """Make sure that every requested step was seen and recorded on the side's device, with every module that was trained in it.

    Args:
        watcher: What was seen of the script.
        request: What was asked for.
        name: Name of the script.
        records: Number of records.
        device: Type of the side's device. A script chooses its device itself, and may have fallen back to the CPU.

    Raises:
        AgentError: ``workload``: says what was seen, and what to do.
    """
    if not watcher.steps.finished:
        raise _no_step_error(watcher, name)
    last = max(request.capture.step)
    if last >= watcher.steps.finished:
        made = "only step 0" if watcher.steps.finished == 1 else "steps 0 to %d" % (watcher.steps.finished - 1)
        message = "step %d should have been recorded, and %s made %s" % (last, name, made)
        raise AgentError("workload", message, "ask for steps that it makes (capture.step=[0]), or let it train longer")
    if watcher.unseen:
        shown = ", ".join(watcher.unseen[:_SHOWN]) + (" and more" if len(watcher.unseen) > _SHOWN else "")
        message = "%s trains %s, and no call of its model was seen: records would be missing" % (name, shown)
        step = "is it called by compiled code? workload.compile=eager" if watcher.settings.compiles else _FUNCTIONAL
        raise AgentError("workload", message, step)
    if not records:
        models = ", ".join(model.title for model in watcher.models)
        message = "nothing was recorded of %s in %s" % (models or "any model", name)
        raise AgentError("workload", message, "check capture.level, capture.phase and capture.scope")
    if watcher.devices and device not in watcher.devices:
        used, side = sorted(watcher.devices), request.side
        message = "%s computed on %s, and the device of the %s is %s" % (name, " and ".join(used), side, device)
        migration = "%s.migration=transfer_to_npu if it is written for CUDA, or " % side if device == "npu" else ""
        step = "a script chooses its device itself: %san option of its own (%s.arguments.device=%s)" % (migration, side, device)
        raise AgentError("workload", message, "%s; %s.device=%s if that is meant" % (step, side, used[0]))


_FUNCTIONAL = "its forward runs without calling the module (torch.func, TorchScript, another process); call the module instead"


def _no_step_error(watcher: Watcher, name: str) -> AgentError:
    models = ", ".join(model.title for model in watcher.models)
    if watcher.evaluations:
        message = "no optimizer stepped in %s: it called %s %d times, without gradients" % (name, models, watcher.evaluations)
        return AgentError("workload", message, "workload.evaluation=true records each such call as a step")
    if models:
        message = "no optimizer of torch stepped in %s: it called %s, and never finished a step" % (name, models)
        step = "does it update weights by hand, end before its first step, or have a GradScaler that skips each (init_scale)?"
        return AgentError("workload", message, step)
    if watcher.elsewhere:
        message = "%s called models in other threads only (%d calls)" % (name, watcher.elsewhere)
        return AgentError("workload", message, "what other threads run is not recorded: train in the main thread")
    message = "%s ended, and no model was called and no optimizer stepped in its process" % name
    step = "does it train in processes that it starts itself (mp.spawn, torchrun)? let it train in its own"
    return AgentError("workload", message, step)
