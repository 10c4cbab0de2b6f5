"""Reports: tables, pages and figures, computed from the records of a run.

Import from the modules; this package re-exports nothing, so that a command loads only what it needs.

- `aggregate`: means of scores, and Dice differences to the baseline.
- `tables`, `comparison`, `tuned_tables`: report tables as values; `comparison.report_tables` returns all of a run.
- `access`, `controls`: what a row may use of the source; comparison with the best control.
- `gap`: the share of the gap to the ceiling that a method closes.
- `formats`: tables as Markdown, LaTeX and CSV.
- `terminal`: tables for the terminal.
- `write`, `html`, `leaderboard`, `rendering`: the files of a report, and HTML pages.
- `verified`: which records were run again.
- `worst_cases`: the images that lose the most Dice.
- `demo`: the demonstration on synthetic hospitals.
- `figures`: plots and images.
"""
