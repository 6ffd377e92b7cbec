from precflow.config.documents import Mark, read
from precflow.config.layers import COMMAND_LINE, Layers


def layered(tmp_path, *texts):
    layers = Layers()
    for number, text in enumerate(texts):
        file = tmp_path / f"{number}.yaml"
        file.write_text(text)
        layers.add(read(file, "recipe", str(number)))
    return layers


def test_maps_merge_and_lists_replace(tmp_path):
    layers = layered(tmp_path, "a: {x: 1, y: 2}\nl: [1, 2, 3]\n", "a:\n  y: 3\nl: [4]\n")
    assert layers.data == {"a": {"x": 1, "y": 3}, "l": [4]}
    assert layers.provenance() == {"a.x": "0.yaml:1", "a.y": "1.yaml:2", "l[0]": "1.yaml:3"}


def test_a_package_puts_a_file_deeper(tmp_path):
    file = tmp_path / "c.yaml"
    file.write_text("level: [api]\n")
    layers = Layers()
    layers.add(read(file, "capture", "c"), ("capture",))
    assert layers.data == {"capture": {"level": ["api"]}}
    assert layers.mark(("capture", "level", "0")).place == "c.yaml:1"


def test_the_command_line_lies_on_top(tmp_path):
    layers = layered(tmp_path, "a: {x: 1}\n")
    assert layers.assign(("a", "x"), 5, Mark(COMMAND_LINE, "5")) == ""
    assert layers.assign(("b", "c", "d"), {"e": [1]}, Mark(COMMAND_LINE)) == ""
    assert layers.data == {"a": {"x": 5}, "b": {"c": {"d": {"e": [1]}}}}
    assert layers.provenance() == {"a.x": COMMAND_LINE, "b.c.d.e[0]": COMMAND_LINE}


def test_entries_of_lists(tmp_path):
    layers = layered(tmp_path, "rules:\n  - {match: a}\nlist: [1, 2]\n")
    assert layers.assign(("rules", "0", "match"), "b", Mark(COMMAND_LINE)) == ""
    assert layers.assign(("list", "1"), 7, Mark(COMMAND_LINE)) == ""
    assert layers.data == {"rules": [{"match": "b"}], "list": [1, 7]}
    assert "counted from 0" in layers.assign(("rules", "1", "match"), "b", Mark(COMMAND_LINE))
    assert "counted from 0" in layers.assign(("list", "2"), 7, Mark(COMMAND_LINE))


def test_a_key_is_taken_away(tmp_path):
    layers = layered(tmp_path, "a: {x: 1, y: 2}\n")
    assert layers.remove(("a", "x")) == ""
    assert (layers.data, layers.provenance()) == ({"a": {"y": 2}}, {"a.y": "0.yaml:1"})
    assert "not set" in layers.remove(("a", "x"))
    assert "not set" in layers.remove(("no", "x"))


def test_an_unknown_place_is_empty():
    assert Layers().mark(("a",)).place == ""


def test_a_scalar_replaces_a_map_and_back(tmp_path):
    layers = layered(tmp_path, "a: {x: 1}\n", "a: 2\n", "a: {y: 3}\n")
    assert (layers.data, layers.provenance()) == ({"a": {"y": 3}}, {"a.y": "2.yaml:1"})


def test_arguments_belong_to_their_function(tmp_path):
    recipe = "inputs: {_target_: a.b, texts: [one], size: 2}\n"
    layers = layered(tmp_path, recipe)
    mark = Mark(COMMAND_LINE, None)
    layers.assign(("inputs", "size"), 3, mark)
    layers.assign(("inputs", "_target_"), "c.d", mark)
    assert layers.data == {"inputs": {"_target_": "c.d", "size": 3}}
    assert set(layers.provenance()) == {"inputs._target_", "inputs.size"}
    layers.assign(("inputs", "_target_"), "c.d", mark)
    assert layers.data["inputs"]["size"] == 3


def test_a_file_that_names_another_function_starts_afresh(tmp_path):
    layers = layered(tmp_path, "m: {_target_: a.b, x: 1}\n", "m: {_target_: c.d, y: 2}\n")
    assert layers.data == {"m": {"_target_": "c.d", "y": 2}}
    layers = layered(tmp_path, "m: {_target_: a.b, x: 1}\n", "m: {y: 2}\n")
    assert layers.data == {"m": {"_target_": "a.b", "x": 1, "y": 2}}
