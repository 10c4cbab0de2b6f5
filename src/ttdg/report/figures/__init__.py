"""Figures, drawn by matplotlib without a display.

- `plots`, `curves`: plots of records, and curves along one setting.
- `panels`: grids of images with predicted outlines; the page of the demo.
- `carried`: labels of unsure images before and after labels of sure images were carried to them.
- `answers`: predictions of a scoring, made again for chosen images.
- `explanations`, `model_figures`: Grad-CAM and matched graphs.
- `atlas`: universe points in images of several sites.
- `site_answers`, `paper`: answers of several methods at a site, and the figures of the paper for one model.
- `write`: the figure files of a report.
"""
