"""Recipes of a stranger, made from the schema: whatever a recipe may not say, it cannot say by any way round either.

Every key that nobody put into ``trust.RECIPES_MAY_SET`` is tried in every form, so a new key is hostile until somebody says
otherwise. Refused means: before any work, with no process started and nothing imported.
"""

import dataclasses
import subprocess
import time
import typing

import pytest
import yaml

from precflow.agent.variables import SETTABLE
from precflow.config import composition, key_tree, overrides, trust
from precflow.config.schema import Numbers, RunConfig, Side
from precflow.errors import ConfigError, TrustError

VARIABLES = (  # that make an interpreter, a loader or a library run, read or write something
    "LD_PRELOAD LD_LIBRARY_PATH PYTHONPATH PYTHONSTARTUP PYTHONWARNINGS PYTHONPYCACHEPREFIX PYTHONBREAKPOINT BROWSER "
    "OPENSSL_CONF GCONV_PATH ASCEND_CUSTOM_OPP_PATH ASCEND_OPP_PATH CUDA_CACHE_PATH TORCH_LOGS TORCH_HOME HF_HOME PATH IFS "
    "TORCH_DEVICE_BACKEND_AUTOLOAD HCCL_WHITELIST_FILE NCCL_NET_PLUGIN NCCL_DEBUG_FILE MKL_THREADING_LAYER "
    "CUDA_VISIBLE_DEVICES HF_HUB_OFFLINE GLIBC_TUNABLES MALLOC_TRACE http_proxy"
).split()


def keys_of(kind, path=()):
    """Yield ``(path, example value)`` of every key of the schema, each entry of a list and of a map once."""
    for name, hint in key_tree.fields(kind).items():
        yield from values_of(key_tree.without_none(hint), (*path, name))


def values_of(hint, path):
    if key_tree.is_section(hint):
        yield from keys_of(hint, path)
    elif key_tree.is_section(key_tree.item(hint)):
        yield from keys_of(key_tree.item(hint), (*path, "0"))
    elif typing.get_origin(hint) is tuple:
        yield path, ["owned"]
    elif key_tree.item(hint) is not None and hint is not Numbers:
        yield (*path, "ANY"), "owned"
    else:
        yield path, 7 if hint in (int, Numbers) else "owned"


HOSTILE = [(path, value) for path, value in keys_of(RunConfig) if not trust.may_set(path)]
HOSTILE += [(("target", "variables", name), "1") for name in VARIABLES]
HOSTILE += [(("target", "variables", "NCCL_ALGO"), value) for value in ("/tmp/x", "a b", "x" * 101, "http://x", "$(x)", "a\nb")]
HOSTILE += [(("workload", part, "_target_"), "owned.build") for part in ("model", "inputs", "loss", "optimizer")]
HOSTILE += [(("metrics", "mine", "_target_"), "owned.Metric"), (("workload", "model", "deep", "0", "_target_"), "owned.build")]
HELPERS = ("extras.require", "resolve.resolve", "resolve.build", "weights.load", "stable_diffusion.require")
HOSTILE += [(("workload", "model", "_target_"), f"precflow.workloads.{name}") for name in HELPERS]


def nested(path, value):
    for part in reversed(path):
        value = [value] if part.isdigit() else {part: value}
    return value


def laid(*layers):
    """Return plain data laid over each other."""
    found = {}
    for layer in layers:
        for key, value in layer.items():
            inner = found.get(key)
            found[key] = laid(inner, value) if isinstance(inner, dict) and isinstance(value, dict) else value
    return found


def hidden(value):
    return {"emulate": {"rules": [{"hidden": value}]}}


REFERENCE = "${emulate.rules[0].hidden}"


def literal(path, value):
    return {"evil": nested(path, value)}


def by_reference(path, value):
    return {"evil": laid(hidden(value), nested(path, REFERENCE))}


def by_two_references(path, value):
    return {
        "evil": laid({"emulate": {"rules": [{"hidden": value, "first": REFERENCE}]}}, nested(path, "${emulate.rules[0].first}"))
    }


def of_an_item(path, value):
    return {"evil": laid(hidden([0, value]), nested(path, "${emulate.rules[0].hidden[1]}"))}


def in_a_text(path, value):
    item = value[0] if isinstance(value, list) else value
    written = f"{REFERENCE}.x" if path[-1] == "_target_" else f"{REFERENCE}"
    return {"evil": laid(hidden(item), nested(path, [written] if isinstance(value, list) else written))}


def by_its_section(path, value):
    return {"evil": laid(hidden(nested(path[1:], value)), {path[0]: REFERENCE})}


def by_the_section_above(path, value):
    return {"evil": laid(hidden(nested(path[-1:], value)), nested(path[:-1], REFERENCE) if path[:-1] else {path[0]: value})}


def inherited(path, value):
    return {"evil": {"defaults": ["parent", "_self_"], "about": {"title": "x"}}, "parent": nested(path, value)}


def hidden_by_the_parent(path, value):
    return {"evil": {"defaults": ["parent", "_self_"], path[0]: REFERENCE}, "parent": hidden(nested(path[1:], value))}


def stacked(path, value):
    return {"evil": {"about": {"title": "x"}}, "parent": nested(path, value)}


FORMS = [
    literal,
    by_reference,
    by_two_references,
    of_an_item,
    in_a_text,
    by_its_section,
    by_the_section_above,
    inherited,
    hidden_by_the_parent,
    stacked,
]


@pytest.fixture(autouse=True)
def guarded(monkeypatch, tmp_path):
    """Let nothing be started, and make ``owned`` importable to tell if it is."""
    for name in ("owned", "owned_too"):
        (tmp_path / f"{name}.py").write_text(f"open({str(tmp_path / 'OWNED')!r}, 'w')\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(subprocess, "Popen", lambda *words, **_: pytest.fail(f"starts {words}"))
    yield
    assert not (tmp_path / "OWNED").exists()


def refusal_of(words):
    """Return why a recipe is more than data, ``None`` where it is not, even if its values are of no use."""
    try:
        composition.compose(words, complete=False)
    except TrustError as refused:
        return refused
    except ConfigError:
        return None
    return None


def words_of(form):
    return ["+recipe=[evil,parent]" if form is stacked else "+recipe=evil"]


@pytest.mark.parametrize("form", FORMS)
def test_what_a_recipe_may_not_say_it_cannot_say_by_any_way_round(team, form):
    passed = []
    for path, value in HOSTILE:
        files = form(path, value)
        for name, data in files.items():
            team(name, yaml.safe_dump(data, sort_keys=False))
        if refusal_of(words_of(form)) is None:
            passed.append((path, value))
    assert passed == []


def test_every_key_that_nobody_allowed_is_tried():
    tried = {trust.dotted(path) for path, _ in HOSTILE}
    assert {"target.interpreter", "reference.launcher", "target.setup", "site.trusted", "store", "executor.address"} <= tried
    assert len(HOSTILE) > 60


def test_a_key_that_is_new_is_hostile(team, monkeypatch):
    """A field that somebody adds to the schema tomorrow, in a section of which recipes set other keys."""
    grown = dataclasses.make_dataclass("Side", [("plugin", str, "")], bases=(Side,), frozen=True)
    real = key_tree.fields
    monkeypatch.setattr(key_tree, "fields", lambda kind: {**real(kind), "target": grown} if kind is RunConfig else real(kind))
    assert key_tree.is_known(("target", "plugin"))
    team("evil", "target: {plugin: owned}")
    with pytest.raises(TrustError, match=r"target\.plugin +belongs to a machine"):
        composition.compose(["+recipe=evil"], complete=False)


@pytest.mark.parametrize("form", [literal, by_reference, by_its_section])
def test_every_job_of_a_sweep_is_refused(team, form):
    team("evil", yaml.safe_dump(form(("target", "interpreter"), "/owned")["evil"]))
    jobs = overrides.expand_sweep(["+recipe=evil", "reference.dtype=float16,float32"])
    assert len(jobs) == 2
    for job in jobs:
        with pytest.raises(TrustError):
            composition.compose(job, complete=False)


SAID_BY_HAND = [
    (path, value) for path, value in HOSTILE if path[-1] != "_target_" and path[0] != "recipe" and "\n" not in str(value)
]


def test_the_same_may_be_said_in_a_site_file_and_on_the_command_line(team, sites):
    team("nice", "about: {title: x}")
    for path, value in SAID_BY_HAND:
        sites("mine", yaml.safe_dump(nested(path, value)))
        typed = f"[{value[0]}]" if isinstance(value, list) else f'"{value}"'
        for words in (["+site=mine"], [f"{'.'.join(path)}={typed}"]):
            refused = refusal_of(["+recipe=nice", *words])
            assert refused is None, f"{path}: {refused}"


MORE = {
    "a site that refers to the recipe": (
        "emulate: {rules: [{x: /owned}]}",
        "target: {interpreter: '${emulate.rules[0].x}'}",
        [],
    ),
    "a word that refers to it": ("emulate: {rules: [{x: /owned}]}", "", ["target.interpreter=${emulate.rules[0].x}"]),
    "a word in a list that does": ("emulate: {rules: [{x: owned}]}", "", ["target.launcher=['${emulate.rules[0].x}']"]),
    "a site's trust by reference": ("about: {owner: owned}", "site: {trusted: ['${about.owner}']}", []),
    "what a site says, in a title": ("about: {title: '${site.store}'}", "site: {store: /secret}", []),
    "a whole site, in an argument": ("workload: {model: {x: '${site}'}}", "site: {store: /secret}", []),
    "a site's variables, in an argument": (
        "workload: {model: {x: 'a ${target.variables} b'}}",
        "target: {variables: {MY_TOKEN: secret}}",
        [],
    ),
    "the other side's interpreter": ("reference: '${target}'", "target: {interpreter: /py}", []),
    "the folder of runs": ("about: {title: '${runs}'}", "", ["runs=/secret"]),
    "an interpolated target": ("workload: {model: {_target_: '${about.owner}'}}\nabout: {owner: owned.build}", "", []),
    "half a target": ("workload: {model: {_target_: 'precflow.${about.owner}'}}\nabout: {owner: cli.main}", "", []),
    "a target by its section": (
        "workload: {model: '${emulate.rules[0].x}'}\nemulate: {rules: [{x: {_target_: owned.build}}]}",
        "",
        [],
    ),
    "a key that is a reference": ("workload: {model: {'${about.owner}': owned.build}}\nabout: {owner: _target_}", "", []),
    "a merged map": ("emulate: {rules: [{x: &x {interpreter: /owned}}]}\ntarget: {<<: *x}", "", []),
    "an alias of a section": ("emulate: {rules: [{x: &x {launcher: [owned]}}]}\ntarget: *x", "", []),
    "a resolver in a reference": ("about: {title: '${oc.${about.owner}:HOME}', owner: env}", "", []),
    "a resolver": ("about: {title: '${oc.env:HOME}'}", "", []),
    "a section of Hydra's": ("hydra: {callbacks: {x: {_target_: owned.run}}}", "", []),
    "a package": ("# @package hydra.callbacks\nx: {_target_: owned.run}", "", []),
    "a launcher of Hydra's": ("defaults: [{override /hydra/launcher: x}]", "", []),
    "a site by inheritance": ("defaults: [/site/mine]", "site: {trusted: [owned]}", []),
    "an executor by inheritance": ("defaults: [{override /executor: dask}]", "", []),
    "a file outside of the folder": ("defaults: [../evil]", "", []),
    "a key taken away": ("target: {interpreter: null}", "", []),
    "an empty list of a machine": ("target: {setup: []}", "", []),
    "a switch that is set by reference": (
        "target: {variables: {NCCL_ALGO: '${emulate.rules[0].x}'}}\nemulate: {rules: [{x: /owned}]}",
        "",
        [],
    ),
    "variables by reference": (
        "target: {variables: '${emulate.rules[0].x}'}\nemulate: {rules: [{x: {LD_PRELOAD: /owned}}]}",
        "",
        [],
    ),
}


@pytest.mark.parametrize("name", MORE)
def test_ways_round_that_were_thought_of_by_hand_lead_nowhere(team, sites, name):
    recipe, site, words = MORE[name]
    team("evil", recipe)
    if site:
        sites("mine", site)
    with pytest.raises(TrustError):
        composition.compose(["+recipe=evil", *(["+site=mine"] if site else []), *words], complete=False)


def test_an_executor_that_a_folder_of_recipes_brings_along_is_not_taken(tmp_path):
    (tmp_path / "theirs" / "executor").mkdir(parents=True)
    (tmp_path / "theirs" / "recipes").mkdir()
    (tmp_path / "theirs" / "recipes" / "evil.yaml").write_text("about: {title: x}")
    (tmp_path / "theirs" / "executor" / "local.yaml").write_text("name: dask\naddress: tcp://owned:1")
    executor = composition.compose(["+recipe=evil"], config_dirs=[tmp_path / "theirs"], complete=False).config.executor
    assert (executor.name, executor.address) == ("local", "")


def test_a_folder_of_recipes_brings_no_sites(tmp_path, monkeypatch, sites):
    (tmp_path / "theirs" / "recipes").mkdir(parents=True)
    (tmp_path / "theirs" / "recipes" / "evil.yaml").write_text("about: {title: x}")
    for group, text in (("site", "target: {interpreter: /owned}"), ("executor", "name: dask\naddress: tcp://owned:1")):
        (tmp_path / "theirs" / group).mkdir()
        (tmp_path / "theirs" / group / "dask.yaml").write_text(text)
    sites("dask", "target: {interpreter: /mine}")
    monkeypatch.setenv("PRECFLOW_RECIPES", str(tmp_path / "theirs"))
    config = composition.compose(["+recipe=evil", "+site=dask", "executor=dask"], complete=False).config
    assert (config.target.interpreter, config.executor.address) == ("/mine", "")


GOOD = {
    "paths of a site": "workload: {model: {weights: '${site.paths.models}/a', deep: ['${site.paths.models}']}}",
    "a key of its own": "about: {title: x, owner: '${about.title}'}\nreference: {dtype: '${target.dtype}'}",
    "a section of its own": "emulate: {rules: [{operator: mm, rule: reverse}]}\nworkload: {model: {y: '${emulate.rules}'}}",
    "switches": f"target: {{variables: {{{', '.join(f'{name}: 1' for name in sorted(SETTABLE))}}}}}",
    "plain words": "target: {variables: {CUBLAS_WORKSPACE_CONFIG: ':4096:8', HCCL_ALGO: 'alltoall=level0:NA;level1:pipeline'}}",
    "ours and torch's": """
workload:
  model: {_target_: precflow.workloads.stable_diffusion.text_encoder, layers: 2}
  inputs: {_target_: precflow.workloads.stable_diffusion.prompts, token_ids: [[1]]}
  loss: {_target_: torch.nn.MSELoss}
  optimizer: {_target_: torch.optim.AdamW, lr: 0.1}
""",
}


@pytest.mark.parametrize("name", GOOD)
def test_what_recipes_do_say_goes_through(team, sites, name):
    team("evil", GOOD[name])
    sites("mine", "site: {paths: {models: /m}}")
    assert composition.compose(["+recipe=evil", "+site=mine"], complete=False).config.recipe == "evil"


def test_keys_of_a_later_version_are_no_breach_of_trust(team, sites):
    """Scripts, curves, layouts, a migration: the recipe is refused because this version lacks them, and for nothing else."""
    team("base", "about: {owner: us}")
    team("evil", TEAM)
    sites("mine", "site: {code: {ours: /c}, paths: {data: /d, models: /m}}\ntarget: {interpreter: /py, variables: {MY_OWN: x}}")
    with pytest.raises(ConfigError) as refused:
        composition.compose(["+recipe=evil", "+site=mine"], complete=False)
    assert not isinstance(refused.value, TrustError)
    lacking = {problem.key for problem in refused.value.problems if "does not have it yet" in problem.message}
    words = {problem.key for problem in refused.value.problems if "is not one of" in problem.message}
    assert lacking == set(LATER_KEYS)
    assert {problem.key for problem in refused.value.problems} - lacking == words
    assert words == {"tolerance.standards[0]"}


SCRIPTS = {
    "a path": "workload: {script: /tmp/evil.py}",
    "a name": "workload: {script: evil.py}",
    "data of the site": "workload: {script: '${site.paths.models}/evil.py'}",
    "a path in data of the site": "workload: {script: /m/evil.py}",
    "the folder above": "workload: {script: '${site.code.ours}/../evil.py'}",
    "the folder above on Windows": "workload: {script: '${site.code.ours}/x\\..\\..\\evil.py'}",
    "the folder itself": "workload: {script: '${site.code.ours}'}",
    "a reference to the folder above": "workload: {script: '${about.title}'}\nabout: {title: '${site.code.ours}/../evil.py'}",
    "a reference": "workload: {script: '${workload.arguments.x}', arguments: {x: /c/train.py}}",
    "half a reference": "workload: {script: '/c/${workload.arguments.x}', arguments: {x: train.py}}",
    "two references": "workload: {script: '${site.code.ours}/${workload.arguments.x}', arguments: {x: ../evil.py}}",
    "a hidden section": "workload: '${emulate.rules[0].hidden}'\nemulate: {rules: [{hidden: {script: /tmp/evil.py}}]}",
    "below an empty path": "workload: {script: '${site.paths.nothing}/tmp/evil.py'}",
    "a folder with the same beginning": "workload: {script: '${about.owner}'}\nabout: {owner: 'TMP/code2/evil.py'}",
    "a module": "workload: {script: '-m evil.train'}",
    "a module with the same beginning": "workload: {script: '-m ours2.train'}",
    "a NUL": 'workload: {script: "${site.code.ours}/\\0evil.py"}',
}


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_recipe_runs_no_script_but_below_a_folder_of_code(team, sites, tmp_path, name):
    team("evil", SCRIPTS[name].replace("TMP", str(tmp_path)))
    (tmp_path / "code").mkdir()
    sites("mine", f"site: {{code: {{ours: {tmp_path}/code}}, paths: {{models: /m, nothing: ''}}, trusted: [ours]}}")
    with pytest.raises(ConfigError, match=r"workload(\.script)?") as refused:
        composition.compose(["+recipe=evil", "+site=mine"], complete=False)
    assert any(problem.key.startswith("workload") for problem in refused.value.problems), refused.value


@pytest.mark.parametrize("kind", ["file", "folder"])
def test_a_link_does_not_lead_out_of_a_folder_of_code(team, sites, tmp_path, kind):
    (tmp_path / "code").mkdir()
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs" / "evil.py").write_text("")
    link = tmp_path / "code" / ("train.py" if kind == "file" else "sub")
    link.symlink_to(tmp_path / "theirs" / ("evil.py" if kind == "file" else ""))
    team("evil", f"workload: {{script: '${{site.code.ours}}/{'train.py' if kind == 'file' else 'sub/evil.py'}'}}")
    sites("mine", f"site: {{code: {{ours: {tmp_path}/code}}}}")
    with pytest.raises(TrustError, match=r"is a link to .*theirs/evil\.py, outside of"):
        composition.compose(["+recipe=evil", "+site=mine"])


@pytest.mark.parametrize(
    "text", ["code: {a: ''}", "code: {a: ' '}", "code: {a: /}", "code: {a: relative}", "code: {a: /x/..}", "paths: {a: ''}"]
)
def test_a_folder_of_the_site_that_is_everywhere_is_refused(team, sites, text):
    team("r", "workload: {model: {weights: '${site.paths.a}/etc/passwd'}}" if "paths" in text else "about: {title: x}")
    sites("mine", f"site: {{{text}}}")
    with pytest.raises(ConfigError, match=r"site\.(code|paths)\.a +.*(is no folder for code|is empty)"):
        composition.compose(["+recipe=r", "+site=mine"], complete=False)


@pytest.mark.parametrize(
    ("words", "script"),
    [
        (["+recipe=good", "+site=mine"], "/sub/train.py"),
        (["+recipe=plain", "workload.script=/x/train.py"], "/x/train.py"),
        (["+recipe=module", "+site=mine"], "-m ours.sub.train"),
    ],
)
def test_a_script_of_the_site_of_a_trusted_package_or_of_the_command_line_is_run(team, sites, tmp_path, words, script):
    team("good", "workload: {script: '${site.code.ours}/sub/train.py', arguments: {lr: 1e-4}}")
    team("plain", "about: {title: x}")
    team("module", "workload: {script: '-m ours.sub.train'}")
    (tmp_path / "disk" / "sub").mkdir(parents=True)
    (tmp_path / "code").symlink_to(tmp_path / "disk")  # the user's own link to the whole folder
    sites("mine", f"site: {{code: {{ours: {tmp_path}/code}}, trusted: [ours]}}")
    assert composition.compose(words, complete=False).config.workload.script.endswith(script)


@pytest.mark.parametrize("pattern", ["/etc/passwd", "../x", "~/x", "a/../../x"])
def test_files_are_kept_from_below_the_folder_of_the_script_only(team, pattern):
    team("r", f"workload: {{files: ['{pattern}']}}")
    with pytest.raises(ConfigError, match="leaves the folder"):
        composition.compose(["+recipe=r", "workload.script=train.py"], complete=False)


LATER_KEYS = ("reference.layout determinism.shuffle capture.slowdown").split()
TEAM = """
defaults: [base, override /capture: escalating, _self_]
about: {title: 7B pre-training, owner: llm}
environment:
  require: {free_disk: 100GB, torch: ">=2.1"}
  same: [weights, tokenizer]
workload:
  script: ${site.code.ours}/pretrain_gpt.py
  arguments: {num-layers: 4, bf16: true, data-path: "${site.paths.data}/pile", load: "${site.paths.models}/llm"}
reference: {device: cuda, ranks: 8, layout: {tensor: 2}}
target:
  device: npu
  ranks: 8
  migration: transfer_to_npu
  arguments: {use-fused-rmsnorm: true}
  variables: {HCCL_DETERMINISTIC: "true", CLOSE_MATMUL_K_SHIFT: 1, TASK_QUEUE_ENABLE: "0"}
determinism: {seed: script, algorithms: when_needed, shuffle: removed}
capture: {level: [module], phase: [forward, backward], step: [0, 1], rank: [0, 7], budget: 60GB, slowdown: 3x}
curves:
  loss: {pattern: 'iteration +(?P<step>\\d+)/.* lm loss: (?P<value>\\S+)', steps: 2000, standard: mindformers_migration}
tolerance:
  standards: [of_tomorrow]
  rules: [{match: "*.router.*", phase: gradient, relative_l2: 5%, because: ties}]
accepted: [{match: a, phase: gradient, relative_l2: 2%, because: order, ticket: LLM-1, until: "2099-03-31"}]
"""

LINES = "\n".join


def times(text, count):
    return ", ".join([text] * count)


BOMBS = {
    "merges of merges": LINES(["a0: &a0 {x: 1}", *(f"a{n}: &a{n} {{<<: [*a{n - 1}, *a{n - 1}]}}" for n in range(1, 40))]),
    "a merge of itself": "about: &a {<<: *a, title: x}",
    "keys made of aliases": LINES(
        ["a0: &a0 [x, x]", *(f"? &a{n} [*a{n - 1}, *a{n - 1}]\n: {n}" for n in range(1, 40)), "? *a39\n: 1"]
    ),
    "aliases that multiply": LINES(["a0: &a0 [x, x]", *(f"a{n}: &a{n} [*a{n - 1}, *a{n - 1}]" for n in range(1, 40))]),
    "an alias of itself": "about: &a {title: *a}",
    "references that multiply": "workload:\n model:\n"
    + LINES(f"  k{n}: '{f'${{workload.model.k{n + 1}}}' * 60}'" for n in range(8))
    + "\n  k8: x",
    "references to lists": f"""
workload:
  model:
    a: [{times("'${workload.model.b}'", 900)}]
    b: [{times("'${workload.model.c}'", 900)}]
    c: [{times("x", 900)}]
""",
    "references in a circle": "workload: {model: {a: ['${workload.model.a}', '${workload.model.a}', '${workload.model.a}']}}",
    "2 000 ranges": f"capture: {{step: [{', '.join(f'{n}00000-{n}99999' for n in range(1, 2001))}]}}",
    "ranges of 2 000 rules": f"capture: {{rules: [{times('{match: a, step: 0-99999}', 2000)}]}}",
    "a range of two millions": "capture: {step: 0-2000000}",
    "a sexagesimal number of 300 kB": f"about: {{title: {':'.join(['1'] * 150_000)}}}",
    "a sexagesimal number of 20 kB": f"about: {{title: {':'.join(['1'] * 10_000)}}}",
    "a number of 60 000 digits": f"determinism: {{seed: {'9' * 60_000}}}",
    "a hexadecimal one": f"determinism: {{seed: 0x{'f' * 60_000}}}",
    "a power of a long number": f"tolerance: {{max_abs_error: '2^{'9' * 6000}'}}",
    "a title of 5 MB": f"about: {{title: {'x' * 5_000_000}}}",
    "a title of 100 kB": f"about: {{title: {'x' * 100_000}}}",
    "a key of 1 000 letters": f"about: {{{'x' * 1000}: 1}}",
    "depth by brackets": "about: " + "[" * 5000,
    "depth by braces": "{a: " * 400 + "1" + "}" * 400,
    "depth by indentation": LINES(" " * n + "a:" for n in range(400)),
    "60 000 values": f"workload: {{model: {{x: [{'1, ' * 60_000}]}}}}",
    "5 000 keys that do not exist": LINES(f"k{n}: 1" for n in range(5000)),
    "5 000 variables": f"target: {{variables: {{{', '.join(f'HCCL_{n}: 1' for n in range(5000))}}}}}",
    "a tag that cannot be read": "about: {title: !!bool maybe}",
}


@pytest.mark.parametrize("name", BOMBS)
def test_a_small_file_ends_soon_and_says_where_it_is_too_much(team, name):
    team("evil", BOMBS[name])
    started = time.process_time()
    with pytest.raises(ConfigError) as refused:
        composition.compose(["+recipe=evil"], complete=False)
    assert time.process_time() - started < 6
    assert refused.value.problems[0].place.startswith("recipes/evil.yaml")
    assert len(str(refused.value)) < 40_000


def test_recipes_that_inherit_twice_from_two_each_end_soon(team):
    for number in range(40):
        team(f"r{number}", f"defaults: [r{number + 1}, r{number + 1}, _self_]\nabout: {{title: x}}")
    team("r40", "about: {title: x}")
    with pytest.raises(ConfigError, match="leads to more than 200 recipes"):
        composition.compose(["+recipe=r0"], complete=False)


@pytest.mark.parametrize(
    ("pattern", "said"),
    [
        ("(" * 500 + ")" * 500, "has 500 groups inside each other, expected at most 50"),
        ("(" * 30_000, "has 30000 groups inside each other"),
        ("a{1,99999999999999}", "is no regular expression that can be used"),
        ("[" * 30_000, "is no regular expression"),
    ],
)
def test_a_pattern_that_python_cannot_parse_is_refused(team, pattern, said):
    team("r", f"curves: {{loss: {{pattern: '{pattern}'}}}}")
    with pytest.raises(ConfigError, match=r"curves\.loss\.pattern") as refused:
        composition.compose(["+recipe=r"], complete=False)
    assert said in str(refused.value)
