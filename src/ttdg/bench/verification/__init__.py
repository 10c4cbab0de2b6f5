"""Verification of published records: sampled scorings are run again and compared.

* `rerun`: runs the scorings again (`ttdg verify`).
* `outcome`: the result, and the file that stores it beside the records.
"""
