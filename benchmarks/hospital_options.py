"""Compare options of a method that learns a site at simulated hospitals; no target site is read.

    python benchmarks/hospital_options.py MODEL --data DATA [--judge FOLDER] --options '{"moves": false}'

Each hospital of held-out source images is learned as a folder, with the default options and with the given ones.
Printed for each hospital: the Dice of the unadapted network, and the gains over it of both learned networks, without
sizes, mirror images and the judge's choice. The hospitals differ from those at which the judge was fitted.
"""

import json
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from hospital_trial import hospitals, load_model, trial_parser
from ttdg.adaptation import build_adapter, seed_all
from ttdg.adaptation.site_learning.learner import SelfTraining
from ttdg.adaptation.universe.fit import BATCH
from ttdg.adaptation.universe.learner import UniverseLearner
from ttdg.checkpoints import Model
from ttdg.metrics import dice, region_masks, region_probabilities
from ttdg.types import Regions


def learned(model: Model, method: str, options: Mapping[str, Any], images: Tensor) -> nn.Module:
    """The network after it has learned the images."""
    seed_all(0)
    adapter = build_adapter(model, method, dict(options))
    assert isinstance(adapter, SelfTraining)
    # A hospital of source images may look like home, where `universe` would not learn.
    learn = adapter.learn_always if isinstance(adapter, UniverseLearner) else adapter.learn
    learn(images.split(BATCH))
    return adapter.learned_network()


@torch.no_grad()
def score(network: nn.Module, images: Tensor, labels: Tensor, regions: Regions) -> float:
    """Mean Dice of a network, in percent."""
    found = [
        dice(region_probabilities(network(x), regions), region_masks(y, regions)).mean(1)
        for x, y in zip(images.split(BATCH), labels.split(BATCH), strict=True)
    ]
    return 100 * float(torch.cat(found).mean())


def main() -> None:
    parser = trial_parser(__doc__, hospitals=4)
    parser.add_argument("--method", default="universe")
    parser.add_argument("--options", type=json.loads, required=True, help="as JSON")
    arguments = parser.parse_args()
    model, gains = load_model(arguments), []
    regions = model.card.benchmark.regions
    print(f"images | source | {arguments.method} | with the options")
    for images, labels in hospitals(model, arguments):
        source = score(model.network.eval(), images, labels, regions)
        networks = (
            learned(model, arguments.method, x, images) for x in (dict[str, Any](), arguments.options)
        )
        gains.append([score(network, images, labels, regions) - source for network in networks])
        print(f"{len(images)} | {source:.1f} | {gains[-1][0]:+.2f} | {gains[-1][1]:+.2f}", flush=True)
    print(f"mean | | {' | '.join(f'{sum(x) / len(x):+.2f}' for x in zip(*gains, strict=True))}")


if __name__ == "__main__":
    main()
