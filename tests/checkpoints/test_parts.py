import hashlib
import json
from dataclasses import replace

import pytest
import torch
from safetensors.torch import save_file

from ttdg.adaptation import METHODS, required_parts
from ttdg.adaptation.adapter import Fixed, Method
from ttdg.checkpoints import content_hash, fit_description, load_parts, save_part
from ttdg.errors import UserError
from ttdg.networks import NetworkSpec, Segmenter
from ttdg.types import Part

A_PART = Part({"universe": torch.eye(3), "index": torch.arange(2)}, {"classes": [0, 1], "tau": 0.1})


def test_a_part_is_read_back_as_it_was_written(tmp_path):
    save_part(tmp_path, "prior", A_PART, "hash")
    (found,) = load_parts(tmp_path, "hash").values()
    assert found.settings == A_PART.settings
    assert all(torch.equal(found.tensors[name], value) for name, value in A_PART.tensors.items())


def test_a_part_fitted_for_other_weights_is_refused(tmp_path):
    save_part(tmp_path, "prior", A_PART, "hash")
    with pytest.raises(
        UserError, match=r"fitted for other weights.*remove the file, then fit the part 'prior'"
    ):
        load_parts(tmp_path, "another")


def test_a_file_that_is_no_part_is_refused_by_name(tmp_path):
    (tmp_path / "judge.safetensors").write_bytes(b"no")
    with pytest.raises(UserError, match=r"judge\.safetensors is not a part"):
        load_parts(tmp_path, "hash")


@pytest.mark.parametrize("where", [0.0, 0.5, 1.0])
def test_one_changed_byte_of_the_tensors_is_detected(tmp_path, where):
    path = save_part(tmp_path, "deynet", A_PART, "hash")
    raw = bytearray(path.read_bytes())
    start = 8 + int.from_bytes(raw[:8], "little")
    raw[start + int(where * (len(raw) - start - 1))] ^= 1
    path.write_bytes(raw)
    with pytest.raises(
        UserError,
        match=r"deynet\.safetensors is damaged.*copy the file again, or remove it, then fit the part",
    ):
        load_parts(tmp_path, "hash")


def test_a_changed_setting_is_detected(tmp_path):
    path = save_part(tmp_path, "prior", A_PART, "hash")
    raw = path.read_bytes()
    assert raw.count(b"0.1") == 1
    path.write_bytes(raw.replace(b"0.1", b"0.2"))
    with pytest.raises(UserError, match=r"prior\.safetensors is damaged"):
        load_parts(tmp_path, "hash")


def test_the_hash_depends_on_names_dtypes_and_shapes():
    ones = torch.ones(2, 3)
    others = [{"b": ones}, {"a": ones.view(torch.int32)}, {"a": ones.view(3, 2)}, {"a": ones, "b": ones[0]}]
    assert len({content_hash({"a": ones}), *map(content_hash, others)}) == 5
    assert content_hash({"a": ones, "b": ones}) == content_hash(
        {"b": ones.clone(), "a": ones.mT.contiguous().mT}
    )
    odd = {"half": ones.bfloat16(), "scalar": torch.tensor(1.0), "none": torch.zeros(0, 3), "flag": ones > 0}
    assert content_hash(odd) != content_hash(odd | {"scalar": torch.tensor(2.0)})


def test_a_part_without_a_hash_from_an_older_version_still_loads(tmp_path):
    about = {"settings": json.dumps(A_PART.settings), "network": "hash"}
    save_file(dict(A_PART.tensors), tmp_path / "prior.safetensors", metadata=about)
    (found,) = load_parts(tmp_path, "hash").values()
    assert found.settings == A_PART.settings
    assert fit_description(found) == ""


def test_the_digest_that_stored_judges_contain_does_not_change():
    plain = hashlib.sha256()
    for name, value in sorted(A_PART.tensors.items()):
        plain.update(name.encode() + value.numpy().tobytes())
    assert A_PART.digest == plain.hexdigest()


def test_how_a_part_was_fitted_is_stored_with_it(tmp_path):
    save_part(tmp_path, "deynet", replace(A_PART, fitted={"steps": 60, "seed": 0}), "hash")
    assert fit_description(load_parts(tmp_path, "hash")["deynet"]) == "steps 60, seed 0"


def test_the_networks_own_weights_are_not_a_part(tmp_path):
    (tmp_path / "model.safetensors").write_bytes(b"anything")
    assert load_parts(tmp_path, "hash") == {}


def test_the_message_for_a_missing_part_tells_how_to_fit_it():
    with pytest.raises(
        UserError,
        match=r"'universe-choice' needs the part 'prior'.*fit the part 'prior' with `ttdg fit-prior`",
    ):
        required_parts("universe-choice", ("prior",), {})
    with pytest.raises(UserError, match=r"fit the part 'deynet'$"):
        required_parts("deynet", ("deynet",), {})


def test_a_method_receives_the_parts_of_the_checkpoint(tmp_path, monkeypatch):
    import ttdg
    from ttdg.checkpoints import ModelCard, load, save
    from ttdg.data import load_benchmark

    network = Segmenter(NetworkSpec(2, "light"))
    card = save(tmp_path / "m", network, ModelCard(network.spec, load_benchmark("polyp")))
    save_part(tmp_path / "m", "prior", A_PART, card.sha256)
    received = []

    def build(network, part, *, lr: float = 1.0):
        received.append((part, lr))
        return Fixed(network)

    monkeypatch.setitem(
        METHODS,
        "x",
        Method(
            build, "", "nothing", "EVAL", False, 1, 0, "before", "source labels", "", "", parts=("prior",)
        ),
    )
    ttdg.adapt(load(tmp_path / "m"), "x", lr=2.0)
    assert received[0][0].settings == A_PART.settings
    assert received[0][1] == 2.0
    with pytest.raises(UserError, match="needs the part 'prior'"):
        ttdg.adapt(network, "x")
