"""Volumes: series of slices that are scored as one case.

The network sees slices, as it sees images. Only their order, their files and their scores differ.
"""
