from gradients.emit import differentiated

TEXT = """(float[2] a, int64[2] k, float[3] b) => (float[2] y) {
  c, y = com.microsoft.PythonOp<func_name="f", input_convention="ddd", safe_run_mode=1,
    input_tensor_types=[1, 7, 1], input_tensor_ranks=[1, 1, 1],
    output_tensor_types=[1], output_tensor_ranks=[1], bw_tensor_reuse_map=[1]>(a, k, b)
}"""


def test_the_function_s_own_backward_is_called() -> None:
    forward, backward, *_ = differentiated(TEXT).graph
    assert backward.op_type == "PythonOpGrad"
    assert [v.name for v in backward.inputs if v is not None] == ["c", "d_y"]
    assert [backward.outputs[i].name for i in (0, 2)] == ["a_grad", "b_grad"]
    shown = {name: attr.value for name, attr in backward.attributes.items()}
    assert shown["func_name"] == "f" and shown["output_convention"] == "ddd"
    assert tuple(shown["output_tensor_types"]) == (1, 7, 1)
    assert tuple(shown["input_tensor_types"]) == (1,)
    assert tuple(shown["output_tensor_requires_grads"]) == (1, 0, 1)
    assert tuple(shown["tensor_reuse_map"]) == (1,)
    assert tuple(forward.attributes["input_requires_grads"].as_ints()) == (1, 0, 1)


def test_constants_among_the_arguments_have_a_flag_of_their_own() -> None:
    text = TEXT.replace('"ddd"', '"cdcdd"')
    forward, backward, *_ = differentiated(text).graph
    assert tuple(forward.attributes["input_requires_grads"].as_ints()) == (0, 1, 0, 0, 1)
    assert tuple(backward.attributes["output_tensor_requires_grads"].as_ints()) == (1, 0, 1)
