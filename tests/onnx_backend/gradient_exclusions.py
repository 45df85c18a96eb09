"""What of ONNX's node cases is not differentiated, each with its reason."""

_RANDOM = "the outputs are drawn anew in each run"
_NOTHING_TO_ATTEND = (
    "the softmax of a row that is masked altogether is NaN; Where hides it from the output, but in "
    "the gradient of the softmax it is multiplied by 0"
)
_INFINITE = "inputs are infinite: there is no derivative, and what is infinite is multiplied by 0"

INPUTS: dict[tuple[str, int], str] = {
    ("Dropout", 1): "the ratio is a setting",
    ("Resize", 1): "the region of interest is a setting",
}
"""Floating point inputs, by operator and index, that count as constants."""

EXCLUDED: dict[str, str] = {
    "test_attention_23_boolmask_fullymasked_row_nan_robustness_expanded": _NOTHING_TO_ATTEND,
    "test_attention_23_fullymasked_qk_matmul_output_mode3_zero_expanded": _NOTHING_TO_ATTEND,
    "test_attention_24_fullymasked_qk_matmul_output_mode3_zero_expanded": _NOTHING_TO_ATTEND,
    "test_attention_24_qk_matmul_output_mode3_softmax_precision_expanded": _NOTHING_TO_ATTEND,
    "test_attention_4d_causal_nonpad_negative_offset_structural_empty_expanded": _NOTHING_TO_ATTEND,
    "test_attention_4d_causal_padded_kv_bf16_expanded": _NOTHING_TO_ATTEND,
    "test_attention_causal_boolmask_nan_robustness_expanded": _NOTHING_TO_ATTEND,
    "test_attention_local_window_gqa_rank4_mask_expanded": _NOTHING_TO_ATTEND,
    "test_bernoulli": _RANDOM,
    "test_bernoulli_double": _RANDOM,
    "test_bernoulli_double_expanded": _RANDOM,
    "test_bernoulli_expanded": _RANDOM,
    "test_mod_float_edge_cases_fmod_0_float16": _INFINITE,
    "test_mod_float_edge_cases_fmod_0_float32": _INFINITE,
    "test_mod_float_edge_cases_fmod_0_float64": _INFINITE,
}
"""Cases that cannot be differentiated, or whose gradient cannot be compared."""
