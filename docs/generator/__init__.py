"""The generated parts of the documentation: reference pages, results tables, and README's blocks."""
