"""Turning original downloads of public data sets into benchmark folders.

`datasets/NAME.yaml` describes where a download keeps its images and masks, and what mask values mean.
"""
