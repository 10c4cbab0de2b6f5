"""Fits of parts to a trained, frozen network: losses fall, results repeat, and the network does not change."""

import copy

import pytest
import torch
import torch.nn.functional as F
from typer.testing import CliRunner

import ttdg
from ttdg.adaptation import METHODS
from ttdg.checkpoints import Model, load
from ttdg.cli import app
from ttdg.data import Arrays, find_sites, load_benchmark, load_sources, normalise
from ttdg.data.synthetic.write import write_benchmark
from ttdg.errors import UserError
from ttdg.networks import pyramid
from ttdg.networks.heads.consistency import MixStyle
from ttdg.networks.heads.noise import SIGMAS, NoiseDiscriminator
from ttdg.networks.heads.shapes import GRID, ShapeHead, centred_shapes, sparse_code
from ttdg.training.parts import EXTRAS, PartFit, fit_part, fitting, tasd_r
from ttdg.training.parts.itta import gradient_alignment_loss
from ttdg.training.parts.tasd_r import largest_component, shape_targets, source_shapes
from ttdg.types import Part


@pytest.fixture(scope="module")
def sources(discs):
    return load_sources(find_sites(discs, ["east", "south"]), load_benchmark(None, discs)).train


def fit(name: str, model: Model, sources, steps: int = 2, seed: int = 0) -> Part:
    return fit_part(
        name, model.network, sources, model.card.benchmark, torch.device("cpu"), steps=steps, seed=seed
    )


@pytest.mark.parametrize("name", EXTRAS)
def test_a_part_repeats_and_leaves_the_network_as_it_is(name, disc_model, sources):
    before = copy.deepcopy(disc_model.network.state_dict())
    hooks = sum(len(m._forward_hooks) for m in disc_model.network.modules())
    a, b, c = (
        fit(name, disc_model, sources),
        fit(name, disc_model, sources),
        fit(name, disc_model, sources, seed=1),
    )
    assert all(torch.equal(a.tensors[key], b.tensors[key]) for key in a.tensors)
    assert any(not torch.equal(a.tensors[key], c.tensors[key]) for key in a.tensors)
    assert all(torch.equal(value, before[key]) for key, value in disc_model.network.state_dict().items())
    assert sum(len(m._forward_hooks) for m in disc_model.network.modules()) == hooks


@pytest.mark.parametrize("name", EXTRAS)
def test_the_method_of_a_part_runs_with_it(name, disc_model, sources):
    (method,) = [key for key, value in METHODS.items() if value.parts == (name,)]
    model = Model(disc_model.network, disc_model.card, {name: fit(name, disc_model, sources)})
    answer = ttdg.adapt(model, method)(torch.rand(2, 3, 40, 40))
    assert answer.shape == (2, 2, 40, 40)
    assert answer.isfinite().all()


@pytest.fixture(scope="module")
def demo_sources(tmp_path_factory):
    """The demo model and a few images, at half their size, of its four source sites."""
    root = write_benchmark(tmp_path_factory.mktemp("clinics") / "data", "fundus", 8, seed=0)
    model, benchmark = load("demo"), load_benchmark(None, root)
    loaded = load_sources(find_sites(root, list(model.card.sources)), benchmark)
    return model, *({k: half(v) for k, v in part.items()} for part in (loaded.train, loaded.held_out))


def half(site: Arrays) -> Arrays:
    return Arrays(site.images[..., ::2, ::2].contiguous(), site.masks[..., ::2, ::2].contiguous(), site.cases)


@pytest.mark.parametrize(("name", "steps"), [("deynet", 12), ("nc-ttt", 80), ("tasd-r", 20), ("itta", 8)])
def test_a_fit_goes_down_on_a_fixed_batch(name, steps, demo_sources, monkeypatch):
    model, sources, _ = demo_sources
    seen, fit_whole, batches, twice = [], PartFit.fit, PartFit.batches, MixStyle.encode_both

    def watched(self, module, loss, *rate):
        def noted(images, labels):
            seen.append(loss(images, labels))
            return seen[-1]

        fit_whole(self, module, noted, *rate)

    def one_style(self, network, images):
        self.reset()
        return twice(self, network, images)

    monkeypatch.setattr(fitting, "BATCH", 4)
    monkeypatch.setattr(PartFit, "fit", watched)
    monkeypatch.setattr(PartFit, "batches", lambda self: [next(batches(self))] * self.steps)
    monkeypatch.setattr(MixStyle, "encode_both", one_style)
    fit(name, model, sources, steps)
    losses = torch.stack(seen).detach()
    assert losses[-3:].mean() < 0.98 * losses[0]


@pytest.mark.slow
def test_the_discriminator_detects_noise_in_held_out_source_features(tmp_path):
    root = write_benchmark(tmp_path / "data", "fundus", 20, seed=0)
    model, benchmark = load("demo"), load_benchmark(None, root)
    loaded = load_sources(find_sites(root, list(model.card.sources)), benchmark)
    part = fit("nc-ttt", model, loaded.train, steps=400)
    judge = NoiseDiscriminator.from_part(part, torch.device("cpu"))
    images = torch.cat([normalise(site.images.float() / 255, "minmax") for site in loaded.held_out.values()])
    producer, _ = pyramid.level_modules(model.network)[part.settings["level"]]
    with torch.no_grad():
        h = judge.project(pyramid.encode_to(model.network, producer, images))
        torch.manual_seed(0)
        lots, little = (judge.judge(h + s * torch.randn_like(h)).flatten()[:5000] for s in SIGMAS)
    assert (lots[:, None] > little).float().mean() > 0.8


def test_the_dictionary_reconstructs_source_shapes(disc_model, sources):
    part = fit("tasd-r", disc_model, sources, steps=1)
    atoms = ShapeHead.from_part(part, torch.device("cpu")).atoms[0]
    shapes = source_shapes(sources, 1, 0)
    found = (sparse_code(shapes, atoms) @ atoms > 0.5).float()
    assert (2 * (found * shapes).sum(1) / (found + shapes).sum(1)).min() > 0.9


def test_the_largest_component_of_a_mask_is_kept():
    masks = torch.zeros(3, 2, 2 * GRID, 2 * GRID)
    masks[0, 1, 4:10, 4:10] = 1
    masks[0, 1, 40:80, 40:80] = 1
    masks[1, 0, 4:10, 4:10] = 1
    expected = F.avg_pool2d(masks, 2)
    expected[0, 1, :10] = 0
    assert torch.equal(largest_component(masks), expected)


def test_shape_targets_describe_the_largest_component():
    masks, atoms = torch.zeros(2, 2, 128, 128), torch.rand(2, 4, GRID * GRID).softmax(-1)
    masks[0, 0, 30:60, 40:70] = 1
    masks[1, 1, 50:80, 10:40] = 1
    more = masks.clone()
    more[..., 4:12, 4:12] = 1
    more[0, 1] = more[1, 0] = 0
    codes, centres = shape_targets(more, atoms)
    shapes, expected = centred_shapes(masks)
    assert torch.allclose(centres, expected, atol=1e-5)
    for n in range(2):
        assert torch.allclose(codes[:, n], sparse_code(shapes[:, n].flatten(1), atoms[n]), rtol=1e-4)


def test_coefficients_are_learnt_by_their_mean_absolute_error(disc_model, sources, monkeypatch):
    """An error of 1 in every coefficient adds 1 to the loss, whatever the number of coefficients."""
    losses, plain = [], tasd_r.shape_targets

    def noted(self, module, loss, *rate):
        module.to(self.device)
        losses.append(loss(*next(iter(self.batches()))).item())

    def asked(masks, atoms, more):
        codes, centres = plain(masks, atoms)
        return codes - more, centres  # negative targets, which no prediction reaches

    monkeypatch.setattr(PartFit, "fit", noted)
    for more in (100.0, 101.0):
        monkeypatch.setattr(
            tasd_r, "shape_targets", lambda masks, atoms, more=more: asked(masks, atoms, more)
        )
        fit("tasd-r", disc_model, sources)
    assert losses[1] - losses[0] == pytest.approx(1, rel=1e-3)


def test_gradients_are_aligned_where_one_is_a_positive_multiple_of_the_other():
    g = (torch.randn(5, 3), torch.randn(7))
    assert gradient_alignment_loss(tuple(3 * x for x in g), g) < 1e-9
    assert gradient_alignment_loss(tuple(-x for x in g), g) > 0.1
    assert gradient_alignment_loss((torch.randn(5, 3), torch.randn(7)), g) > 0


def test_an_unknown_part_raises_with_the_known_names(disc_model, sources):
    with pytest.raises(UserError, match="did you mean 'deynet'"):
        fit("deynett", disc_model, sources)


def test_the_command_fits_missing_parts_once(discs, tmp_path):
    out = tmp_path / "m"
    common = [
        "train", "-d", str(discs), "--leave-out", "west", "-o", str(out), "--encoder", "light", "--steps", "1",
        "--batch", "2", "--accelerator", "cpu", "--workers", "1", "--with-steps", "1", "--with",
    ]  # fmt: skip

    def run(parts: str, *more: str):
        return CliRunner().invoke(app, [*common, parts, *more], env={"COLUMNS": "200"})

    assert isinstance(run("deynett").exception, UserError)
    assert not out.exists()
    assert run("nc-ttt").exit_code == 0
    written = (out / "nc-ttt.safetensors").stat().st_mtime_ns
    again = run("nc-ttt,itta", "--with-steps", "2")
    assert "has the part nc-ttt already (steps 1, seed 0); to fit it again, remove " in again.output
    assert str(out / "nc-ttt.safetensors") in again.output
    assert (out / "nc-ttt.safetensors").stat().st_mtime_ns == written
    assert {"nc-ttt", "itta"} <= load(out).parts.keys()
    told = CliRunner().invoke(app, ["info", str(out)], env={"COLUMNS": "200"}).output
    assert "itta (steps 2, seed 0), nc-ttt (steps 1, seed 0), prior" in told
    assert ttdg.adapt(load(out), "itta")(torch.rand(1, 3, 32, 32)).isfinite().all()
