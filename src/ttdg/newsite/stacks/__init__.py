"""Stacks of frames: the slices of DICOM and NIfTI files, and the masks that hold all of them.

- `frames`: finds the frames of files from headers alone.
- `masks`: writes the mask of a stack when all its frames were answered.
- `segmentation_object`: writes a DICOM segmentation.
"""
