"""rag-train: train the controller of a retrieval-augmented language model."""

import os

# The telemetry of libraries, off unless the user has set its variable.
for _variable, _value in {
    "DO_NOT_TRACK": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "VLLM_NO_USAGE_STATS": "1",
}.items():
    os.environ.setdefault(_variable, _value)
