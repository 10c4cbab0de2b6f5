"""The base of the source-free methods: a memory of unlabelled images, and passes over it that train all weights."""

import itertools
import math
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.func import functional_call

from ttdg.adaptation import losses
from ttdg.adaptation.adapter import GradientAdapter, Images, Logits, Progress
from ttdg.adaptation.site_learning.image_memory import ImageMemory
from ttdg.adaptation.site_learning.saved_state import SavesState, adam_tensors
from ttdg.adaptation.source_free.structures import structures
from ttdg.adaptation.source_free.training_mode import Statistics, active_dropout, dropout_layers, use_mode
from ttdg.networks import batchnorm
from ttdg.networks.capture import CaptureGuard
from ttdg.networks.cuda_graph import GraphRunner
from ttdg.networks.weights import network_tensors

Rows = Int[Tensor, " n"]
CHUNK = 8  # images of a pass over the memory without gradients; they share batch statistics where a method uses them
DRIFT = 2.0  # factor of a structure's mean area beyond which learning raises an alarm


class SiteTrainer(GradientAdapter, SavesState):
    """Trains all weights on images of a memory, in both streams.

    `online` stores every batch and takes `steps` steps on random draws. `folder` (`learn`) stores the whole site and
    makes `epochs` passes over it in random order. Subclasses override `_learn` (one step on stored images), and where
    they need it `_survey` and `_notes` (what is stored beside each image), `_begin_pass` and `_respond`.

    Two guards, whose uses `counts` counts: weights that are not finite return to the source (`restored`), and answers
    that are not finite are replaced by the source's. After a folder, `area_alarms` counts the structures whose mean
    area is less than half or more than twice that of the source's predictions. Nothing is changed then.

    Args:
        network: adapted in place; in EVAL mode outside of training.
        statistics: "batch" trains with batch statistics and lets the running ones follow; "source" keeps the source's.
        decay: factor of the learning rate after each pass over a folder.
        optimiser: called with the parameters and `lr`; the published Adam by default.
        parameters: trained in addition to those of the network.
    """

    uses_dropout = True  # dropout layers of the network are active in training

    def __init__(
        self, network: nn.Module, objective: Callable[..., Tensor], *, lr: float, steps: int, epochs: int, draw: int,
        capacity: int, statistics: Statistics, head: losses.Head, seed: int, decay: float = 1.0,
        optimiser: Callable[..., torch.optim.Optimizer] | None = None, parameters: Sequence[nn.Parameter] = (),
    ) -> None:  # fmt: skip
        self.epochs, self.draw, self.capacity, self.decay = epochs, draw, capacity, decay
        self.statistics, self.head, self.seed = statistics, head, seed
        self.device = next(network.parameters()).device
        self.counts = {"restored": 0, "source answers": 0, "area alarms": 0}
        self.generator = torch.Generator()  # of strong views and dropout
        use_mode(self._networks(network).values(), batchnorm.EVAL)
        if self.device.type == "cuda":
            for each in self._networks(network).values():
                each.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        # A recorded step reads the learning rate from this tensor.
        self._lr = torch.tensor(lr, device=self.device) if self.device.type == "cuda" else None
        self._answer = GraphRunner(CaptureGuard(network))
        super().__init__(
            network, objective, [*network.parameters(), *parameters], lr=lr, steps=steps,
            optimiser=optimiser or partial(torch.optim.Adam, betas=(0.9, 0.99), fused=True),
        )  # fmt: skip

    def __call__(self, images: Images) -> Logits:
        """Store the batch, learn from the memory, and return the adapted logits."""
        self.memory.add(images, **self._notes(images.float(), new=True))
        self._learn_draws([self.memory.draw(self.draw) for _ in range(self.steps)])
        self._restore_if_broken()
        return self.predict_frozen(images)

    def learn(
        self, site: Iterable[Float[Tensor, "_b c h w"]], progress: Progress = lambda done, total: None
    ) -> None:
        """Learn a whole site in passes over all its images."""
        self.memory = ImageMemory(None, self.seed)
        for images in site:
            self.memory.add(images)
        if not len(self.memory):
            return
        steps, total = itertools.count(1), self._passes() * math.ceil(len(self.memory) / self.draw)
        before = self._areas()
        self._survey()
        for rows in self._chunks():
            self._write(rows, self._notes(self._stored(rows), new=False))
        self._learn_folder(lambda: progress(next(steps), total))
        self._restore_if_broken()
        ratio = (self._areas() + 1e-6) / (before + 1e-6)
        self.counts["area alarms"] += int(((ratio > DRIFT) | (ratio < 1 / DRIFT)).sum())

    def _passes(self) -> int:
        """Number of passes over a folder, for the report of progress."""
        return self.epochs

    def _learn_folder(self, report: Callable[[], None]) -> None:
        self._train(self._learn, self.epochs, report)
        self._set_rate(self.lr)

    def _learn_draws(self, draws: Sequence[Rows]) -> None:
        with self._training():
            self._begin_pass()
            for rows in draws:
                self._learn(rows)

    def _train(self, step: Callable[[Rows], None], passes: int, report: Callable[[], None]) -> None:
        """Call `step` on all images in random order, `passes` times; the last batch of a pass may be smaller."""
        with self._training():
            for number in range(passes):
                self._set_rate(self.lr * self.decay**number)
                self._begin_pass()
                for rows in self.memory.draw(len(self.memory)).split(self.draw):
                    step(rows)
                    report()

    @abstractmethod
    def _learn(self, rows: Rows) -> None:
        """Take one step on stored images."""

    def _begin_pass(self) -> None:
        """Prepare a pass over the memory, or the steps of one batch."""

    def _survey(self) -> None:
        """Look at the whole folder before its images get their notes."""

    def _notes(self, images: Images, new: bool) -> dict[str, Tensor]:
        """Return what is stored beside each image; `new` says that no survey has seen the images."""
        return {}

    def _networks(self, network: nn.Module) -> dict[str, nn.Module]:
        """The networks that training changes, by name."""
        return {"student": network}

    def _respond(self, images: Images) -> Logits:
        """Return the adapted logits."""
        return self.network(images)

    @torch.no_grad()
    def predict_frozen(self, images: Images) -> Logits:
        """Return the adapted logits without an update; the source's if they are not finite."""
        logits = self._answer(self._respond, images)
        if not logits.isfinite().all():
            self.counts["source answers"] += 1
            logits = functional_call(self.network, self._source, (images,))
        return logits

    @contextmanager
    def _training(self) -> Iterator[None]:
        """Context with the BatchNorm mode and the dropout of training; dropout draws from the adapter's generator."""
        networks = list(self._networks(self.network).values())
        dropouts = dropout_layers(networks) if self.uses_dropout else []
        with ExitStack() as stack:
            if dropouts:
                stack.enter_context(active_dropout(dropouts, self.generator, self.device))
            if self.statistics == "batch":
                use_mode(networks, batchnorm.TRAIN)
                stack.callback(use_mode, networks, batchnorm.EVAL)
            yield

    def _logits(self, network: Callable[[Tensor], Tensor], images: Images) -> Logits:
        """Return logits in float32; the network computes in bfloat16 on a GPU."""
        with self._precision():
            return network(images.contiguous(memory_format=torch.channels_last)).float()

    def _precision(self) -> torch.autocast:
        # A recorded graph must not read weights that autocast converted before the recording.
        enabled = self.device.type == "cuda"
        return torch.autocast(self.device.type, torch.bfloat16, enabled, cache_enabled=False)

    def _stored(self, rows: Rows) -> Images:
        return self.memory.network_input(self.memory.unit_images(rows), rows)

    def _chunks(self) -> tuple[Rows, ...]:
        return torch.arange(len(self.memory)).split(CHUNK)

    def _write(self, rows: Rows, notes: Mapping[str, Tensor]) -> None:
        """Write notes of stored images into the columns of the memory."""
        for name, values in notes.items():
            if name not in self.memory.columns:
                shape = len(self.memory.pixels), *values.shape[1:]
                self.memory.columns[name] = values.new_zeros(shape)
            self.memory.columns[name][rows.to(values.device)] = values

    @torch.no_grad()
    def _areas(self) -> Float[Tensor, " k"]:
        """Mean share of the image that each structure covers in the present answers to all stored images."""
        answers = (self.predict_frozen(self._stored(rows)) for rows in self._chunks())
        shares = [(structures(logits, self.head) > 0.5).float().mean((2, 3)) for logits in answers]
        return torch.cat(shares).mean(0)

    def _set_rate(self, rate: float) -> None:
        for group in self.optimiser.param_groups:
            group["lr"] = rate if self._lr is None else self._lr.fill_(rate)

    def _restore_if_broken(self) -> None:
        networks = self._networks(self.network).values()
        values = [v for n in networks for v in network_tensors(n).values() if v.is_floating_point()]
        if not torch.stack(torch._foreach_norm(values, 1)).isfinite().all():
            self.counts["restored"] += 1
            self._to_source()

    def _to_source(self) -> None:
        """Return all weights to the source, with a fresh optimiser."""
        super().reset()
        self._set_rate(self.lr)
        for network in self._networks(self.network).values():
            if network is not self.network:
                network.load_state_dict(self.network.state_dict())

    @torch.no_grad()
    def reset(self) -> None:
        """Return to the source, and forget all images."""
        self._to_source()
        self.memory = ImageMemory(self.capacity, self.seed)
        self.generator.manual_seed(self.seed)

    def _tensors(self) -> dict[str, Tensor]:
        """The tensors that learning changes in place, and the state of the generator of views."""
        found, seen = {}, set[int]()
        for part, network in self._networks(self.network).items():
            for name, value in network_tensors(network).items():
                if value.data_ptr() not in seen:  # networks may share weights
                    seen.add(value.data_ptr())
                    found[f"{part}.{name}"] = value
        names = [str(number) for number in range(len(self.parameters))]
        found |= adam_tensors(self.optimiser, names, self.parameters)
        return found | {"views": self.generator.get_state()}
