"""The stages of a prediction of a folder, each with the values that the next one needs.

- `request`: checks what a caller asks for, before anything is written.
- `answering`: learns and answers the images.
- `reporting`: writes the manifest and the report.
"""
