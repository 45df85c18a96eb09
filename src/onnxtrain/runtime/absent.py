"""Names of onnxruntime that are not here, and what to do instead; read when somebody asks."""

from __future__ import annotations

_DEVICES = "devices are torch's, see torch.cuda"
_CUSTOM = "operators of your own are written in Python, see docs/operator.md"
_SPARSE = "sparse initializers of a model are read as dense tensors; give dense tensors"
_VECTOR = "lists of OrtValue are used, see run_with_ort_values and io_binding"
_ADAPTERS = "a session runs one model; adapters are merged or trained with LoraConfig"
_EP_CONTEXT = "there are no models compiled for one provider"

ABSENT: dict[str, dict[str, str]] = {
    "InferenceSession": {
        "get_input_memory_infos": "inputs may lie anywhere, run takes them to the device",
        "get_output_memory_infos": "run_torch gives outputs on the session's device",
        "get_input_epdevices": _DEVICES,
        "get_provider_graph_assignment_info": "all nodes run on get_providers()[0], see plan",
        "set_ep_dynamic_options": "providers have no options but device_id",
        "run_with_ortvaluevector": _VECTOR,
    },
    "IOBinding": {"get_outputs_as_ortvaluevector": _VECTOR},
    "OrtValue": {
        "as_sparse_tensor": _SPARSE,
        "ort_value_from_sparse_tensor": _SPARSE,
    },
    "SessionOptions": {
        "register_custom_ops_library": _CUSTOM,
        "add_provider_for_devices": "use add_provider with a device_id",
        "set_provider_selection_policy": "name the providers when the session is made",
        "set_provider_selection_policy_delegate": "name the providers when the session is made",
        "set_load_cancellation_flag": "loading cannot be cancelled",
        "set_ep_context_data_read_func": _EP_CONTEXT,
        "clear_ep_context_data_read_func": _EP_CONTEXT,
    },
    "RunOptions": {"add_active_adapter": _ADAPTERS},
    "onnxtrain": {
        "AdapterFormat": "adapters are written by Trainer, see docs/lora.md",
        "LoraAdapter": _ADAPTERS,
        "ModelCompiler": _EP_CONTEXT,
        "OrtCompileApiFlags": _EP_CONTEXT,
        "OrtEpContextData": _EP_CONTEXT,
        "OrtEpContextDataBuffer": _EP_CONTEXT,
        "OrtAllocatorType": "memory is torch's",
        "OrtArenaCfg": "memory is torch's",
        "OrtMemType": "memory is torch's",
        "OrtMemoryInfo": "memory is torch's",
        "OrtMemoryInfoDeviceType": "memory is torch's",
        "OrtDeviceMemoryType": "memory is torch's",
        "create_and_register_allocator": "memory is torch's",
        "create_and_register_allocator_v2": "memory is torch's",
        "OrtDevice": _DEVICES,
        "OrtDeviceVendorId": _DEVICES,
        "OrtEpDevice": _DEVICES,
        "OrtHardwareDevice": _DEVICES,
        "OrtHardwareDeviceType": _DEVICES,
        "OrtSyncStream": "streams are torch's, see torch.cuda.stream",
        "get_ep_devices": _DEVICES,
        "OrtEpAssignedNode": "InferenceSession.plan shows where nodes run",
        "OrtEpAssignedSubgraph": "InferenceSession.plan shows where nodes run",
        "OrtExecutionProviderDevicePolicy": "name the providers when the session is made",
        "OrtExternalInitializerInfo": "see SessionOptions.add_external_initializers",
        "OrtSparseFormat": _SPARSE,
        "SparseTensor": _SPARSE,
        "SessionIOBinding": "use IOBinding",
        "TrainingParameters": "training is set up by the arguments of Trainer",
        "register_execution_provider_library": "there are CPU and CUDA, see docs/operator.md",
        "unregister_execution_provider_library": "there are CPU and CUDA, see docs/operator.md",
    },
}  # fmt: skip
"""What to do instead, by class (or module) and name."""


def absent(owner: str, name: str) -> AttributeError:
    """The error for a name that is not here."""
    what = "module 'onnxtrain'" if owner == "onnxtrain" else f"'{owner}' object"
    cure = ABSENT[owner].get(name)
    note = "" if cure is None else f"\n  onnxruntime has; here {cure}"
    return AttributeError(f"{what} has no attribute {name!r}{note}")
