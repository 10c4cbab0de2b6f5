"""Tables that hand-written pages show from one run of `docs/records`, by the name of their mark."""

from collections.abc import Callable, Mapping
from functools import partial

from record_tables import (
    batches,
    by_target,
    differences,
    grid,
    methods,
    named_with_settings,
    orders,
    split_targets,
)
from wrapper_tables import side_by_side, with_and_without_flips, with_and_without_gate

SLICES = {
    "neighbouring slices": "one source (the paper's table)",
    "any slices of one volume": "shuffled slices of one volume",
    "slices of all volumes": "slices of all volumes mixed",
}
VOLUMES = ("Dice per volume", "HD95 per volume, voxels")
CENTRE, SITE = "the whole centre first", "the whole site first"
prostate = partial(methods, "prostate", split=("Dice, slices with gland", "slices without"))
prostate_folder = partial(by_target, "prostate", split=("Dice, slices with gland", "slices without"))
ablation = partial(methods, "literal", digits=2, cost=["ms/image"])
FOLDER, ONLINE = "folder, several sources", "online, several sources"
ONE, ONE_IMAGE = "folder, one source", "one image at a time, several sources"
RIVALS = "rivals at small rates, several sources"
PARTS = "parts left out"
STRONG = ("batch 4", "batch 16", "batch 1")
BASES = [("own", ""), ("mixed", ", mix statistics"), ("source's", ", eval statistics")]
OTHER_STATISTICS = [
    (f"batch {batch}, {name}", f"batch {batch}, other BatchNorm statistics", end)
    for batch in (4, 1)
    for name, end in BASES
]
PUBLISHED = [
    column
    for batch in (4, 1)
    for column in (
        (f"batch {batch}, default", f"batch {batch}", ""),
        (f"batch {batch}, as published", f"batch {batch}, as published", ", as published"),
    )
]
TUNED = [("default options", "batch 4", ""), ("tuned", "batch 4, tuned", "")]
MEASURED: Mapping[str, Callable[[], str]] = {
    "strong-polyp": partial(with_and_without_flips, "strong-polyp", STRONG),
    "strong-fundus": partial(with_and_without_flips, "strong-fundus", STRONG),
    "parts-polyp": partial(differences, "learn-polyp", (PARTS,), "universe", "universe"),
    "parts-fundus": partial(differences, "learn-fundus", (PARTS,), "universe", "universe"),
    "learn-polyp-one-image": partial(by_target, "learn-polyp", (ONE_IMAGE,), "Dice"),
    "learn-fundus-one-image": partial(by_target, "learn-fundus", (ONE_IMAGE,), "Dice"),
    "learn-polyp-folder": partial(by_target, "learn-polyp", (FOLDER,), "Dice"),
    "learn-polyp-one": partial(by_target, "learn-polyp", (ONE,), "Dice"),
    "learn-polyp-online": partial(by_target, "learn-polyp", (ONLINE,), "Dice"),
    "learn-polyp-online-one": partial(by_target, "learn-polyp", ("online, one source",), "Dice"),
    "learn-fundus-folder": partial(by_target, "learn-fundus", (FOLDER,), "Dice"),
    "learn-fundus-one": partial(by_target, "learn-fundus", (ONE,), "Dice"),
    "learn-fundus-online": partial(by_target, "learn-fundus", (ONLINE,), "Dice"),
    "longer-polyp-folder": partial(by_target, "longer-polyp", (FOLDER,), "Dice"),
    "longer-polyp-online": partial(by_target, "longer-polyp", (ONLINE,), "Dice"),
    "longer-fundus-folder": partial(by_target, "longer-fundus", (FOLDER,), "Dice"),
    "longer-fundus-one": partial(by_target, "longer-fundus", (ONE,), "Dice"),
    "longer-polyp-methods": partial(with_and_without_flips, "longer-polyp", ("every published method, batch 4",)),
    "learn-polyp-scenes": partial(by_target, "learn-polyp", ("one frame a scene",), "Dice"),
    "learn-polyp-home": partial(by_target, "learn-polyp", ("at home",), "Dice"),
    "learn-fundus-home": partial(by_target, "learn-fundus", ("at home",), "Dice"),
    "gate-polyp": partial(by_target, "learn-polyp", ("behind the gate",), "Dice"),
    "gate-fundus": partial(by_target, "learn-fundus", ("behind the gate",), "Dice"),
    "rivals-small": partial(by_target, "rivals-cpu", ("every setting",), "Dice", name=named_with_settings),
    "rivals-polyp": partial(by_target, "learn-polyp", (RIVALS,), "Dice"),
    "rivals-fundus": partial(by_target, "learn-fundus", (RIVALS,), "Dice"),
    "methods-small": partial(with_and_without_flips, "methods-cpu", ("batch 4", "batch 16", "batch 1")),
    "methods-small-continual": partial(with_and_without_flips, "methods-cpu", ("continual",)),
    "methods-small-statistics": partial(side_by_side, "methods-cpu", OTHER_STATISTICS),
    "methods-small-published": partial(side_by_side, "methods-cpu", PUBLISHED),
    "methods-small-tuned": partial(side_by_side, "methods-cpu", TUNED),
    "gate-small": partial(with_and_without_gate, "gate-cpu", "behind the gate"),
    "prostate-one-source": partial(prostate, SLICES["neighbouring slices"], "Dice", *VOLUMES),
    "prostate-multi-source": partial(prostate, "multi-source", "Dice", *VOLUMES),
    "prostate-folder": partial(prostate_folder, (CENTRE, f"parts, {CENTRE}"), "Dice", VOLUMES[0]),
    "prostate-folder-one-source": partial(
        prostate_folder, (f"{CENTRE}, one source", f"parts, {CENTRE}, one source"), "Dice", VOLUMES[0]
    ),
    "prostate-forms": partial(differences, "prostate", (CENTRE, f"parts, {CENTRE}"), "universe", "universe"),
    "prostate-gland": partial(split_targets, "prostate", CENTRE),
    "prostate-orders": partial(orders, "prostate", SLICES),
    "vessels-methods": partial(methods, "vessels", "multi-source", "Dice", "HD95, pixels"),
    "vessels-folder": partial(by_target, "vessels", (SITE, f"parts, {SITE}"), "Dice", share=True),
    "vessels-folder-one-source": partial(by_target, "vessels", (f"{SITE}, one source",), "Dice", share=True),
    "pacs-methods": partial(by_target, "pacs", ("all methods that apply",), "accuracy"),
    "pacs-paper": partial(by_target, "pacs", ("the paper's table",), "accuracy"),
    "pacs-folder": partial(by_target, "pacs", (SITE,), "accuracy"),
    "shapes-methods": partial(by_target, "shapes", ("leave one site out",), "accuracy"),
    "shapes-judge": partial(differences, "shapes", ("the judge",), "source", score="accuracy"),
    "literal-real": partial(
        methods, "literal-cpu", "the universe and its ablations", "Dice", digits=2, cost=["ms/image"]
    ),
    "literal-real-ours": partial(
        differences, "literal-cpu", ("the universe and its ablations",), "ours, source"
    ),
    "literal-real-classes-source": partial(
        differences, "literal-cpu", ("class matrix W",), "source [recipe.class_matrix=none]", "source ["
    ),
    "literal-real-classes": partial(grid, "literal-cpu", "class matrix W", "W"),
    "literal-real-sizes": partial(grid, "literal-cpu", "universe size", "d", scale=3),
    "literal-real-batches": partial(batches, "literal-cpu", "batch size", (2, 4, 16, 32)),
    "literal-universe": partial(ablation, "the universe and its ablations", "Dice"),
    "literal-ours": partial(differences, "literal", ("the universe and its ablations",), "ours, source"),
    "literal-classes": partial(grid, "literal", "class matrix W", "W"),
    "literal-classes-source": partial(
        differences, "literal", ("class matrix W",), "source [recipe.class_matrix=none]", "source ["
    ),
    "literal-sizes": partial(grid, "literal", "universe size", "d", scale=3),
    "literal-batches": partial(batches, "literal", "batch size", (2, 4, 8, 16, 32)),
    "literal-pairwise": partial(ablation, "pairwise against multi-graph", "Dice"),
}


if __name__ == "__main__":
    for name, make in MEASURED.items():
        print(f"{name}\n\n{make()}\n")
