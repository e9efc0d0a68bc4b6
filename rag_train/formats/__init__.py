"""One transcript grammar per method: renders to segments for training, parses model text back into steps."""
