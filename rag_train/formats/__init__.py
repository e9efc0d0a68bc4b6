"""The transcript grammar of each method: rendering to segments for training, and parsing of model output."""
