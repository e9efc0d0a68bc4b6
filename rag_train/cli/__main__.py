"""Runs the command line under a launcher: ``accelerate launch -m rag_train.cli ...``."""

from rag_train.cli.app import main

main()
