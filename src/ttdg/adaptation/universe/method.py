"""The method "universe": learns a site by self-training with labels that the judge and the universe correct.

After Lv et al., Test-Time Domain Generalization via Universe Learning, CVPR 2025: the unlabelled images of a site train
the network, and the matching of all images to one universe contributes labels. In contrast to the paper, the loss is
that of a weak–strong mean teacher (`self-training`), because the descent on the matching alone gains no more with the
learned universe than with a random one (`universe-gradient`, docs/decisions.md). The universe and the judge act on the
labels of this teacher:

1. A site that looks like a source site is not learned, nor are thin structures; the judge answers
   (`ttdg.adaptation.site_learning.home`, `ttdg.adaptation.universe.treatment`).
2. The judge's predictions are the labels of the first steps. Later labels are the teacher's.
3. Images count in proportion to the square of the Dice that the judge expects (`weigh`; controls in
   `ttdg.adaptation.universe.image_weights`). With the option `places`, pixels count as far as the universe agrees.
4. Unsure images take labels that sure images of the site carry to them along the matching
   (`ttdg.adaptation.universe.carried_labels`; controls in `ttdg.adaptation.universe.carrier_controls`). With the option
   `agreeing`, they do so only as far as these labels agree with the network's (`ttdg.adaptation.universe.belief`).
5. Sharpening keeps the area of each structure in each image. Where sizes vary, or some images show no structure, point
   4 is left out. There, an image in which the teacher and the judge agree is learned from labels of both
   (`ttdg.adaptation.universe.treatment`).
6. The adapted prediction is the mean over three sizes of the image and its mirror image. A network that loses by other
   sizes on source images is averaged over mirror images alone (`ttdg.adaptation.size_tolerance`).
7. The answer is the mean of the adapted prediction and the judge's where both show the same structures, and the
   adapted prediction elsewhere. Structures of steady size are always answered by the adapted prediction
   (`ttdg.adaptation.universe.answer_rule`). A second judge, that of the site, expects the Dice of all three
   (`ttdg.adaptation.universe.site_judge`). It chooses where images may show no structure. If it expects the whole site
   to lose, the first judge answers. In the first steps of the online stream, all answers are the first judge's.
"""

from typing import Any, Literal, get_args

from torch import nn

from ttdg.adaptation.adapter import Method
from ttdg.adaptation.judge.method import EvidenceKind
from ttdg.adaptation.options import SHARE, WEIGHT, Option, Range
from ttdg.adaptation.site_learning.self_training import OPTIONS
from ttdg.adaptation.universe.anatomy import Anatomy
from ttdg.adaptation.universe.answer_rule import AnswerRule
from ttdg.adaptation.universe.carrier_controls import CarrierName
from ttdg.adaptation.universe.guided_learner import Places
from ttdg.adaptation.universe.image_weights import ImageWeights
from ttdg.adaptation.universe.learner import UniverseLearner
from ttdg.adaptation.universe.treatment import ANCHORED, CARRIED, TREATMENTS
from ttdg.checkpoints import reading_part
from ttdg.errors import UserError
from ttdg.types import Part

LearnerVariant = Literal["full", "no-universe", "random-universe"]


def universe(
    network: nn.Module,
    prior: Part,
    part: Part,
    *,
    rate: float = 1.0,
    steps: int = 4,
    folder_steps: int = 0,
    draw: int = 0,
    capacity: int = 512,
    momentum: float = 0.99,
    sharpness: float = 2.0,
    keep_areas: bool = True,
    dice: bool = True,
    moves: bool = True,
    first: float = 0.25,
    carried: float = CARRIED,
    anchored: float = ANCHORED,
    anatomy: Literal["measured", Anatomy] = "measured",
    carrier: CarrierName = "universe",
    agreeing: bool = False,
    weigh: ImageWeights = "expected",
    places: Places = "equal",
    choice: Literal["measured", AnswerRule] = "measured",
    scales: bool = True,
    variant: LearnerVariant = "full",
    seed: int = 0,
) -> UniverseLearner:
    """Build the learner from the parts "prior" and "judge"."""
    if "site_signals" not in part.settings:
        raise UserError("the judge was fitted without learned hospitals; fit the part 'judge' again")
    with reading_part("judge"):
        fitted = dict(part.settings["learning"])
        if not all(type(fitted[name]) in (int, float) for name in ("lr", "folder_steps", "draw", "steps")):
            raise UserError("the judge does not say how it was fitted; fit the part 'judge' again")
        kind: Anatomy | None = fitted.get("anatomy") if anatomy == "measured" else anatomy
        if kind is None or kind not in get_args(Anatomy):
            raise UserError(
                "the judge was fitted before the anatomy of the source was measured; fit the part 'judge' again, or "
                "set `anatomy` to steady, as it was fitted"
            )
    learning: dict[str, Any] = {
        "lr": rate * fitted["lr"],
        "folder_steps": folder_steps or fitted["folder_steps"],
        "draw": draw or fitted["draw"],
    }
    treatment = TREATMENTS[kind]
    if not treatment.carries or variant == "no-universe":
        carried = 0.0
    if not treatment.anchors:
        anchored = 0.0
    evidence: EvidenceKind = "all" if variant == "full" else "no-universe"
    return UniverseLearner(
        network, prior, part, evidence=evidence, random_universe=variant == "random-universe", first=first,
        carried=carried, anchored=anchored, weigh=weigh, warm_up=fitted["steps"],
        site_judge=choice != "adapted", rule=treatment.rule if choice == "measured" else choice, carrier=carrier,
        agreeing=agreeing, places=places,
        steps=steps, capacity=capacity, momentum=momentum, sharpness=sharpness,
        keep_areas=keep_areas, dice=dice, moves=moves, learnable=treatment.learned,
        scales=scales and bool(fitted.get("sizes", True)), head="softmax", seed=seed, **learning,
    )  # fmt: skip


CHOSEN = "this project: a pilot at seven transfers, with their scores in sight (docs/measurements)"
FITTED = "the judge: the value with which it was fitted at simulated hospitals"
METHOD = Method(
    build=universe,
    summary="learns the site by self-training; the judge and the universe correct the labels",
    adapts="all weights",
    norm="EVAL",
    memory=True,
    forwards=61,  # 4 steps as self-training; judge, adapted answer in six views, and the first refresh
    backwards=16,
    predict="after",
    access="source labels",
    single_precision=True,
    flips=True,
    paper="after Lv et al., CVPR 2025",
    origin="a pilot at seven transfers, with their scores in sight; at simulated hospitals it beat self-training",
    published=None,
    options={
        **{name: option for name, option in OPTIONS.items() if name not in ("head", "lr")},
        "rate": Option(
            "learning rate of AdamW, as a factor of the rate with which the judge was fitted", FITTED, WEIGHT
        ),
        "folder_steps": Option(
            "gradient steps on a whole site; 0 takes the judge's number", FITTED, Range(0.0)
        ),
        "draw": Option("images of each gradient step; 0 takes the judge's number", FITTED, Range(0.0)),
        "keep_areas": OPTIONS["keep_areas"].with_origin(CHOSEN),
        "first": Option("share of the folder steps in which the judge's labels are learned", CHOSEN, SHARE),
        "carried": Option("share of the carried labels in the labels of the least sure image", CHOSEN, SHARE),
        "anchored": Option(
            "share of the judge's labels in the labels of images in which both agree; not for steady structures",
            "this project: better at simulated hospitals of small networks (docs/measurements/learning-trials.md)",
            SHARE,
        ),
        "carrier": Option(
            "what carries labels from sure images to others: the universe, or a control, which is the nearest cells of "
            "sure images (neighbours) or matching to single sure images (pairwise)",
            "this project",
        ),
        "agreeing": Option(
            "believe the carried labels of an image only as far as they agree with the network's labels",
            "this project: false; it changed nothing with a second seed (docs/measurements/learning-trials.md)",
        ),
        "anatomy": Option(
            "kind of structures: as measured on the source labels (measured), steady, varied (no carried labels), "
            "absent from some images (no carried labels, the site's judge chooses answers) or thin (not learned)",
            "this project: sites of four kinds of images, with their scores in sight (docs/measurements)",
        ),
        "weigh": Option(
            "weigh images by the square of their expected Dice, or a control: all alike (uniform), or by the square of "
            "the confidence of the labels or of the agreement with the mirror image (consistency)",
            CHOSEN,
        ),
        "places": Option(
            "weigh pixels by the agreement of the labels with the carried labels (universe), by the confidence of the "
            "labels as a control, or all alike (equal)",
            "this project: equal; in the pilot the universe's weights gained 0.3 on fundus and lost 0.2 on polyps",
        ),
        "choice": Option(
            "which prediction answers: that of the kind of anatomy (measured), the mean of the adapted prediction and "
            "the judge's where both agree, otherwise the adapted one (agreement), the one that the site's judge "
            "expects to be best (judge), or always the adapted one, without expected Dice (adapted)",
            "this project: ten polyp and five fundus transfers, with their scores in sight (docs/measurements)",
        ),
        "scales": Option(
            "average the adapted prediction over three sizes of the image, unless the judge was fitted to a network "
            "that loses by it (`ttdg.adaptation.size_tolerance`); it is averaged over the mirror image in any case",
            "this project: 16 polyp and 9 fundus transfers, the target always left out (docs/measurements)",
        ),
        "variant": Option(
            "full, or a control: neither universe signals nor carried labels, or a random universe",
            "this project",
        ),
    },
    needs=("segmentation",),
    parts=("prior", "judge"),
    grid={"rate": (0.3, 1.0, 3.0), "steps": (2, 4)},
    folder_grid={"rate": (0.3, 1.0, 3.0), "folder_steps": (0, 600)},
)
