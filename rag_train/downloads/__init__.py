"""Public question sets and corpora, downloaded from the Hugging Face Hub (``rag-train data get``)."""
