"""The published methods, one file each. Each file declares a `METHOD`; `adaptation/registry.py` lists them all."""
