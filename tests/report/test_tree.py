import dataclasses

from precflow.report import tree


def node_at(root, path):
    for part in path.split("."):
        root = root.children[part]
    return root


def test_counts_of_a_module_include_what_is_inside(misaligned):
    root = tree.build_tree(misaligned.rows)
    assert root.judged == misaligned.verdict.total
    assert root.wrong == misaligned.verdict.counts["fail"]
    assert node_at(root, "encoder.layers").judged == sum(
        node.judged for node in node_at(root, "encoder.layers").children.values()
    )


def test_the_start_marks_every_module_around_it_and_no_other(misaligned):
    root = tree.build_tree(misaligned.rows)
    assert node_at(root, "encoder.layers.4.layer_norm1").introduces == 1
    assert node_at(root, "encoder.layers.4").introduces == 1
    assert node_at(root, "encoder.layers.5").introduces == 0


def test_the_worst_status_of_a_module_is_that_of_its_worst_record(misaligned):
    root = tree.build_tree(misaligned.rows)
    assert root.worst == "fail"
    assert node_at(root, "encoder.layers.3").worst == "pass"


def test_missing_records_count_as_wrong(inconclusive):
    root = tree.build_tree(inconclusive.rows)
    assert root.wrong == 3
    assert root.worst == "unreadable"


def test_movement_is_not_counted(misaligned):
    views = [row for row in misaligned.rows if row.measure.operator == "view"]
    assert tree.build_tree(views).judged == 0
    assert tree.build_tree(views).worst == "not_judged"


def test_a_second_call_of_a_module_is_the_same_module():
    assert tree.split_path("encoder.mlp~1") == tree.split_path("encoder.mlp")


def test_levels_keep_a_leading_number():
    assert tree.split_levels("0.1.linear") == ["0.1", "linear"]


def test_modules_may_be_nested_by_the_thousand(deep):
    root = tree.build_tree(deep.rows)
    plain = tree.flatten_tree(root)
    assert (root.judged, root.introduces) == (3000, 1)
    assert plain[0] == ["(model)", "fail", 3000, 3000, 1, 0]
    assert plain[-1] == ["m", "fail", 1, 1, 1, 3000]


def test_modules_of_the_page_stand_in_front_of_what_is_inside_them(misaligned):
    first = [(node[0], node[-1]) for node in tree.flatten_tree(tree.build_tree(misaligned.rows))[:8]]
    assert first[:4] == [("(model)", 0), ("embeddings", 1), ("token_embedding", 2), ("encoder", 1)]
    assert first[4:] == [("layers", 2), ("0", 3), ("layer_norm1", 4), ("self_attn", 4)]


def test_plain_nodes_hold_no_control_character(nasty):
    assert "\x1b" not in repr(tree.flatten_tree(tree.build_tree(nasty.rows)))
    assert "\\x1b" in repr(tree.flatten_tree(tree.build_tree(nasty.rows)))


def test_modules_of_one_side_stand_beside_those_around_them(aligned):
    rows = list(aligned.rows)
    for number, (module, join) in enumerate(
        [("encoder.extra", "unpaired_target"), ("encoder.extra.inner", "unpaired_target"), ("pooler", "unpaired_reference")]
    ):
        measure = dataclasses.replace(rows[number].measure, module=module, join=join)
        rows.append(dataclasses.replace(rows[number], measure=measure))
    lines, hidden = tree.find_one_sided(rows, 60)
    assert hidden == 0
    assert [(line.name, line.depth, line.inside) for line in lines] == [
        ("encoder", 0, 0),
        ("extra", 1, 1),
        ("pooler", 0, 0),
    ]
    encoder, extra, pooler = lines
    assert encoder.target == encoder.reference + 2
    assert (extra.reference, extra.target, pooler.reference, pooler.target) == (0, 2, 1, 0)
    assert tree.find_one_sided(rows, 1)[1] == 2
    assert tree.find_one_sided(aligned.rows, 60) == ([], 0)


def test_a_record_of_one_side_in_a_module_of_both_lists_nothing(aligned):
    rows = [*aligned.rows]
    rows[10] = dataclasses.replace(rows[10], measure=dataclasses.replace(rows[10].measure, join="unpaired_target"))
    assert tree.find_one_sided([*rows, aligned.rows[10]], 60) == ([], 0)
