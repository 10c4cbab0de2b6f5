"""Checks that the data of a file cover its whole frame.

Pillow fills rows that a file does not hold with black (PNG, TIFF) or grey (JPEG) and reports nothing. Each check
returns the reason why a picture is incomplete, or None. `ttdg.data.raster` asks for a check of a PNG or a JPEG only if
its last pixels look as such rows would, because the check reads the file a second time.
"""
