"""Where onnxruntime-training has ORTPipelineModule, which is not here."""

raise ImportError(
    "there is no ORTPipelineModule\n"
    "  give deepspeed.pipe.PipelineModule layers that are wrapped: [ORTModule(layer), ...]"
)
