"""The folder stream: the adapter learns all images of the folder before the first is answered."""

from collections import deque
from collections.abc import Callable, Collection, Iterator
from pathlib import Path

from ttdg.adaptation import Adapter, SiteLearner
from ttdg.adaptation.adapter import Images, Progress
from ttdg.adaptation.whole_site import learn_site
from ttdg.checkpoints import Model
from ttdg.data.unlabelled import NewBatch, read_new_images
from ttdg.newsite.inputs import PIXELS, find_files
from ttdg.newsite.journal import Journal, answer_key
from ttdg.newsite.run_state import RunState
from ttdg.newsite.site_check import SourceKind


def learn_folder(
    adapter: Adapter,
    site: Callable[[], Iterator[NewBatch]],
    run_key: str,
    *,
    files: Collection[str],
    batches: int,
    journal: Journal,
    saved: RunState | None,
    progress: Progress,
) -> str:
    """Bring the adapter into the state that answers the images, by learning or from the saved state.

    Nothing is learned or loaded if the journal already holds all answers. Constant frames, noise and images of another
    kind are not learned.

    Args:
        adapter: The adapter, in the state of the source model.
        site: Reads all images; called once to learn, and once before if an earlier call left answers or a state.
        run_key: Hash of everything but the images that answers depend on.
        files: Those that will be answered.
        batches: The largest possible number of batches.
        journal: The answers of earlier calls.
        saved: Where the learned state is kept until the run is complete; None if the method cannot save it.
        progress: Called with the number of finished steps and of all steps. The steps of a method that does not learn a
            site are its batches.

    Returns:
        The key of the answers: a hash of all that they depend on, the images included.
    """
    digests: dict[str, str] = {}  # file → digest

    def images() -> Iterator[Images]:
        for batch in site():
            if batch.unusual:
                continue
            digests.update((image.file, image.sha256) for image in batch.files)
            yield batch.images

    def key() -> str:
        return answer_key(run_key, "folder", *digests.values())

    if journal.kept or (saved is not None and saved.exists()):
        deque(images(), maxlen=0)
        wanted = digests.keys() & set(files)
        if dict.fromkeys(wanted, key()).items() <= journal.kept.items():
            return key()
        if saved is not None and saved.load(key()):
            return key()
        digests.clear()
    to_learn = images() if isinstance(adapter, SiteLearner) else _reported(images(), batches, progress)
    learn_site(adapter, to_learn, progress)
    if saved is not None:
        saved.save(key())
    return key()


def read_site(model: Model, images: Path, out: Path, batch: int = 4) -> Iterator[Images]:
    """Yield the images of a folder as a method learns them: without unreadable files and unusual images."""
    found, device = find_files([images], out), next(model.network.parameters()).device
    batches = read_new_images(
        [found.images],
        model.card.benchmark,
        batch,
        device,
        pictures=False,
        most_pixels=PIXELS,
        foreign=SourceKind(model),
        on_error=lambda _: None,
    )
    yield from (batch.images for batch in batches if not batch.unusual)


def _reported(site: Iterator[Images], batches: int, progress: Progress) -> Iterator[Images]:
    """Yield the batches, and report each when the next is asked for."""
    for number, images in enumerate(site, 1):
        yield images
        progress(number, batches)
