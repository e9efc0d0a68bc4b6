"""The atlas: real facts about places and elements, as passages and multi-hop questions for a real small model.

Facts come from packages that carry their data, so nothing is downloaded at run time. Whether a model knows a fact
is not built in, as it is in the mini world; it is measured.
"""
