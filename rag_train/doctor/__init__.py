"""What this machine has, what that is enough for, and what is missing (``rag-train doctor``)."""
