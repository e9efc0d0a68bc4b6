"""rag-train: train the controller of a retrieval-augmented language model."""
