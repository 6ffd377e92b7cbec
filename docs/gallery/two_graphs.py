"""Write the graph of a small network as an exporter would, once more with another epsilon in its norm, and as it should be."""

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

draw = np.random.default_rng(5)
WEIGHTS = [
    numpy_helper.from_array(draw.normal(0, 0.2, shape).astype(np.float32), name)
    for name, shape in {"fc1.weight": (16, 32), "norm.weight": (32,), "norm.bias": (32,), "fc2.weight": (32, 16)}.items()
]

for file, epsilon in {"old.onnx": 1e-5, "new.onnx": 1e-3, "mended.onnx": 1e-5}.items():
    nodes = [
        helper.make_node("MatMul", ["x", "fc1.weight"], ["/fc1/MatMul_output_0"], "/fc1/MatMul"),
        helper.make_node(
            "LayerNormalization",
            ["/fc1/MatMul_output_0", "norm.weight", "norm.bias"],
            ["/norm/LayerNormalization_output_0"],
            "/norm/LayerNormalization",
            epsilon=epsilon,
        ),
        helper.make_node("Relu", ["/norm/LayerNormalization_output_0"], ["/act/Relu_output_0"], "/act/Relu"),
        helper.make_node("MatMul", ["/act/Relu_output_0", "fc2.weight"], ["y"], "/fc2/MatMul"),
    ]
    graph = helper.make_graph(
        nodes,
        "network",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [4, 16])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [4, 16])],
        WEIGHTS,
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), file)
