from pathlib import Path

import pytest

from precflow.config.command_line import parse
from precflow.errors import ConfigError


def test_options_may_stand_anywhere():
    line = parse(["+recipe=x", "--config-dir", "d", "a=1", "-m", "--cfg", "job", "b=2", "-cd=e"])
    assert line.words == ("+recipe=x", "a=1", "b=2")
    assert line.options == ("--cfg", "job")
    assert line.config_dirs == (Path("d"), Path("e"))
    assert line.multirun


@pytest.mark.parametrize(
    ("arguments", "options", "words"),
    [
        (["--info"], ("--info", "all"), ()),
        (["--info", "defaults"], ("--info", "defaults"), ()),
        (["-i", "+recipe=x"], ("--info", "all"), ("+recipe=x",)),
        (["--info=searchpath"], ("--info", "searchpath"), ()),
        (["-h"], ("--help",), ()),
        (["-c", "job", "-p", "target", "--resolve"], ("--cfg", "job", "--package", "target", "--resolve"), ()),
        (["--run", "+recipe=x"], (), ("+recipe=x",)),
    ],
)
def test_hydra_options_keep_working(arguments, options, words):
    line = parse(arguments)
    assert (line.options, line.words) == (options, words)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--cgf", "job"], "Did you mean  --cfg ?"),
        (["--config-dir"], "needs a value"),
        (["--cfg", "-m"], "needs a value"),
        (["-cn", "other"], "is not for precflow"),
        (["--config-path=x"], "is not for precflow"),
        (["--recipe", "x"], "+recipe=x"),
        (["--recipe=x"], "+recipe=x"),
        (["--emulate=mask_dropped"], "+emulate=mask_dropped"),
        (["+recipe=x", "--target.device=cpu"], "  target.device=cpu"),
        (["+recipe=x", "--target.device", "cpu"], "  target.device=cpu"),
        (["+recipe=x", "--target.device", "target.dtype=float32"], "  target.device=VALUE"),
        (["+recipe=x", "--target.devise=cpu"], "Did you mean  target.device ?"),
        (["--experimental-rerun", "x"], "the same command again"),
    ],
)
def test_other_options_are_refused(arguments, said):
    with pytest.raises(ConfigError) as refused:
        parse(arguments)
    assert said in str(refused.value)


def test_what_was_asked_for():
    assert parse(["--version"]).asks_for("--version", "--help")
    assert not parse(["+recipe=x"]).asks_for("--version")
