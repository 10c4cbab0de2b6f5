import pytest
import torch

from ttdg.metrics import score_regions, surface_scores

cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


@cuda
@pytest.mark.parametrize("precision", ["highest", "high"])
def test_a_gpu_scores_as_a_cpu_does(draw_maps, precision):
    usual = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(precision)
    try:
        for seed in range(20):
            probabilities, truth = draw_maps(seed)
            here = score_regions(probabilities, truth)
            there = score_regions(probabilities.cuda(), truth.cuda())
            for name in ("dice", "alignment", "structure"):
                value = getattr(there, name)
                assert value.is_cuda
                torch.testing.assert_close(value.cpu(), getattr(here, name), rtol=0, atol=2e-6)
    finally:
        torch.set_float32_matmul_precision(usual)


@cuda
def test_a_gpu_measures_surfaces_as_a_cpu_does(draw_maps):
    for seed in range(20):
        probabilities, truth = draw_maps(seed)
        spacing = torch.rand(len(truth), 2, generator=torch.Generator().manual_seed(seed)) + 0.5
        here = surface_scores(probabilities >= 0.5, truth, spacing)
        there = surface_scores((probabilities >= 0.5).cuda(), truth.cuda(), spacing.cuda())
        for name in ("hd95", "hd95_pooled", "assd", "missed"):
            torch.testing.assert_close(getattr(there, name).cpu(), getattr(here, name))
