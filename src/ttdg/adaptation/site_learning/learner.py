"""The adapter of self-training: a student, its slow average as the teacher, and a memory of images."""

import copy
from collections.abc import Iterable
from functools import partial

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from ttdg.adaptation import losses
from ttdg.adaptation.adapter import GradientAdapter, Images, Logits, Progress
from ttdg.adaptation.site_learning.image_memory import ImageMemory
from ttdg.adaptation.site_learning.saved_state import SavesState, adam_tensors
from ttdg.adaptation.site_learning.soft_labels import guided, mirror_mean, sharpen, soft_label_loss
from ttdg.adaptation.site_learning.strong_views import draw_views, strong_view
from ttdg.networks import batchnorm
from ttdg.networks.averaging import ema_update
from ttdg.networks.capture import CaptureGuard
from ttdg.networks.cuda_graph import GraphRunner
from ttdg.networks.weights import network_tensors

POWER = 0.9  # exponent of the polynomial decay of the learning rate in the folder stream


class SelfTraining(GradientAdapter, SavesState):
    """The adapter of self-training.

    State: the weights of the student (`network`) and of the `teacher`, AdamW, the memory of images and two random
    generators. One call stores the batch, takes `steps` steps on draws from the memory and returns the logits of the
    teacher.

    A step has two parts. `_learn` draws images and their strong views. `_step` takes tensors only and is recorded as a
    CUDA graph on a GPU, where both networks run in bfloat16 with weights in float32. Subclasses may correct the
    teacher's labels by overriding `_guide`.
    """

    def __init__(
        self, network: nn.Module, *, lr: float, steps: int, folder_steps: int, draw: int, capacity: int,
        momentum: float, sharpness: float, keep_areas: bool, dice: bool, head: losses.Head, seed: int,
        moves: bool = True,
    ) -> None:  # fmt: skip
        self.folder_steps, self.draw, self.momentum = folder_steps, draw, momentum
        self.sharpness, self.keep_areas, self.head, self.seed = sharpness, keep_areas, head, seed
        self.moves = moves
        self.device = next(network.parameters()).device
        batchnorm.use_if_any(network, batchnorm.FIXED)
        if self.device.type == "cuda":
            network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.teacher = copy.deepcopy(network).eval().requires_grad_(False)
        self.capacity, self.memory = capacity, ImageMemory(capacity, seed)
        self.generator = torch.Generator()  # of the strong views
        # A recorded step reads the learning rate from this tensor.
        self._lr = torch.tensor(lr, device=self.device) if self.device.type == "cuda" else None
        self._rate = torch.tensor(1 - momentum, device=self.device)
        self._average = list(self.teacher.parameters())
        self._answer = GraphRunner(CaptureGuard(self.teacher))
        super().__init__(
            network, partial(soft_label_loss, head=head, dice=dice), list(network.parameters()), lr=lr,
            steps=steps, optimiser=partial(torch.optim.AdamW, fused=True),
        )  # fmt: skip

    def __call__(self, images: Images) -> Logits:
        """Store the batch, learn from the memory, and return the teacher's logits."""
        self._remember(images)
        for _ in range(self.steps):
            self._learn()
        return self.predict_frozen(images)

    def _remember(self, images: Images) -> None:
        self.memory.add(images)

    @torch.no_grad()
    def predict_frozen(self, images: Images) -> Logits:
        """Return the teacher's logits without an update."""
        return self._answer(self.teacher, images)

    def learned_network(self) -> nn.Module:
        """The teacher."""
        return self.teacher

    def learn(self, site: Iterable[Images], progress: Progress = lambda done, total: None) -> None:
        """Learn a whole site: `folder_steps` steps on draws from all its images, at a falling learning rate."""
        self._store_site(site)
        if len(self.memory):
            self._take_folder_steps(progress)

    def _store_site(self, site: Iterable[Float[Tensor, "_b c h w"]]) -> None:
        self.memory = ImageMemory(None, self.seed)
        for images in site:
            self._remember(images)

    def _take_folder_steps(self, progress: Progress = lambda done, total: None) -> None:
        for step in range(self.folder_steps):
            self._set_rate(self.lr * (1 - step / self.folder_steps) ** POWER)
            self._learn()
            progress(step + 1, self.folder_steps)
        self._set_rate(self.lr)

    def _set_rate(self, rate: float) -> None:
        for group in self.optimiser.param_groups:
            group["lr"] = rate if self._lr is None else self._lr.fill_(rate)

    def _learn(self) -> None:
        """Take one step on images drawn from the memory."""
        rows = self.memory.draw(self.draw)
        raw = self.memory.unit_images(rows)
        strong, grid = strong_view(raw, draw_views(len(raw), self.generator, moves=self.moves))
        views = (self.memory.network_input(images, rows) for images in (raw, strong))
        self.loss = self._replay(self._step, *views, grid, *self._guide(rows))

    def _guide(self, rows: Int[Tensor, " n"]) -> tuple[Tensor, ...]:
        """Return what `_guided` needs of the drawn images: a `Guide`, and what a subclass adds; nothing here."""
        return ()

    def _step(self, weak: Images, strong: Images, grid: Float[Tensor, "b h w 2"], *guide: Tensor) -> Tensor:
        """Update the student on strong views, let the teacher follow, and return the loss.

        A loss that is not finite changes neither student nor teacher.
        """
        self.optimiser.zero_grad(set_to_none=True)  # a failed recording may have left gradients
        with torch.no_grad():
            batches = [weak, weak.flip(3)]
            if self.device.type == "cuda":  # on a CPU, two batches of n are faster than one of 2n
                batches = [torch.cat(batches)]
            logits = torch.cat([self._logits(self.teacher, images) for images in batches])
            labels = self._sharpen(mirror_mean(logits, self.head))
            moved, weights = self._guided(labels, grid, *guide)
        with torch.enable_grad():
            loss = self.objective(self._logits(self.network, strong), moved, weights=weights)
        self._update(loss)
        ema_update(self._average, self.parameters, self._rate * self.loss.isfinite())
        return self.loss

    def _guided(
        self, labels: Float[Tensor, "b l h w"], grid: Float[Tensor, "b h w 2"], *guide: Tensor
    ) -> tuple[Tensor, Tensor | None]:
        """The labels in the student's view, blended with those of the guide, and the weights of the pixels."""
        return guided(labels, grid, *guide)

    def _sharpen(self, probabilities: Float[Tensor, "b l h w"]) -> Float[Tensor, "b l h w"]:
        return sharpen(probabilities, self.sharpness, self.head, self.keep_areas)

    def _logits(self, network: nn.Module, images: Images) -> Logits:
        """Return logits in float32; the network computes in bfloat16 on a GPU."""
        images = images.contiguous(memory_format=torch.channels_last)
        enabled = self.device.type == "cuda"
        # A recorded graph must not read weights that autocast converted before the recording.
        with torch.autocast(self.device.type, torch.bfloat16, enabled, cache_enabled=False):
            return network(images).float()

    @torch.no_grad()
    def reset(self) -> None:
        """Return student and teacher to the source, and forget all images."""
        super().reset()
        self._set_rate(self.lr)
        self.teacher.load_state_dict(self.network.state_dict())
        self.memory = ImageMemory(self.capacity, self.seed)
        self.generator.manual_seed(self.seed)

    def _tensors(self) -> dict[str, Tensor]:
        """The tensors that learning changes in place, and the state of the generator of views."""
        names = [name for name, _ in self.network.named_parameters()]
        return {
            **{f"student.{name}": value for name, value in network_tensors(self.network).items()},
            **{f"teacher.{name}": value for name, value in network_tensors(self.teacher).items()},
            **adam_tensors(self.optimiser, names, self.parameters),
            "views": self.generator.get_state(),
        }
