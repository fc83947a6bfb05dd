"""The paper's networks: their sizes, their first weights, and batch norm's statistics."""

import numpy as np
import pytest
import torch
from torch import nn

from fltrust.errors import InputError
from fltrust.models import CNN, GRU, MLP, Dropout, LogisticRegression, Model, ResNet20, initialise, seed_dropout


def test_sizes() -> None:
    assert Model(CNN((1, 28, 28), 10)).d == 139_960
    assert Model(LogisticRegression((561,), 6)).d == 561 * 6 + 6
    assert Model(MLP((4, 4), 26)).d == 16 * 128 + 128 + 128 * 26 + 26
    assert Model(GRU((40,), 65)).d == 65 * 8 + 3 * 128 * (8 + 128 + 2) + 128 * 65 + 65
    # He et al. report 0.27 M for ResNet-20: 19 convolutions, their batch norms, one linear layer
    assert Model(ResNet20((3, 32, 32), 10)).d == 269_722


@pytest.mark.parametrize("network", [CNN, ResNet20])
def test_a_network_for_images_refuses_features(network: type[CNN] | type[ResNet20]) -> None:
    with pytest.raises(InputError, match=r"cannot take examples of shape \(561,\): models 'logistic' and 'mlp' can"):
        network((561,), 6)


def test_it_is_a_gru() -> None:
    ours = initialise(GRU((7,), 11), np.random.default_rng(0), "torch")
    assert isinstance(ours, GRU)
    theirs = nn.GRU(8, 128, batch_first=True)
    with torch.no_grad():
        for name, layer in (("ih", ours.into), ("hh", ours.again)):
            getattr(theirs, f"weight_{name}_l0").copy_(layer.weight)
            getattr(theirs, f"bias_{name}_l0").copy_(layer.bias)
    tokens = torch.randint(0, 11, (5, 7), generator=torch.Generator().manual_seed(0))
    expected = ours.output(theirs(ours.embedding.weight.T[tokens])[0])
    assert expected.shape == (5, 7, 11)
    torch.testing.assert_close(ours(tokens), expected)


def test_a_network_for_tokens_refuses_images() -> None:
    with pytest.raises(InputError, match=r"token sequences cannot take examples of shape \(1, 28, 28\)"):
        GRU((1, 28, 28), 10)


def test_resnet_halves_the_image_twice() -> None:
    hidden = ResNet20((1, 64, 64), 8).blocks(torch.rand(2, 16, 64, 64))
    assert hidden.shape == (2, 64, 16, 16)


def test_first_weights_are_xavier_of_magnitude_2_24_with_zero_bias() -> None:
    cnn = initialise(CNN((1, 28, 28), 10), np.random.default_rng(0))
    assert isinstance(cnn, CNN)
    bound = np.sqrt(2.24 / ((1250 + 100) / 2))
    drawn = cnn.hidden.weight.detach().numpy()
    assert 0.999 * bound < np.abs(drawn).max() <= bound
    assert drawn.std() == pytest.approx(bound / np.sqrt(3), rel=0.01)
    bound = np.sqrt(2.24 / ((30 * 9 + 50 * 9) / 2))
    assert 0.99 * bound < cnn.conv2.weight.abs().max().item() <= bound
    assert not cnn.hidden.bias.any()
    assert cnn.conv1.bias is not None
    assert not cnn.conv1.bias.any()


def test_the_same_stream_gives_the_same_weights() -> None:
    def drawn(seed: int) -> torch.Tensor:
        return Model(initialise(ResNet20((3, 32, 32), 10), np.random.default_rng(seed))).initial_weights

    assert torch.equal(drawn(1), drawn(1))
    assert not torch.equal(drawn(1), drawn(2))


def test_weights_are_split_in_the_order_of_the_parameters() -> None:
    module = CNN((1, 28, 28), 10)
    model = Model(module)
    for part, parameter in zip(model.split(model.initial_weights), module.parameters(), strict=True):
        assert torch.equal(part, parameter)
    images = torch.rand(3, 1, 28, 28)
    torch.testing.assert_close(model.outputs(model.initial_weights, images), module(images))


@pytest.mark.parametrize("shape", [(1, 28, 28), (3, 26, 31), (1, 24, 25), (2, 27, 10)])
def test_it_is_the_papers_network_written_plainly(shape: tuple[int, int, int]) -> None:
    module = CNN(shape, 10)
    images = torch.rand(4, *shape) - 0.5
    hidden = nn.functional.max_pool2d(module.conv1(images).relu(), 2)
    hidden = nn.functional.max_pool2d(module.conv2(hidden).relu(), 2)
    torch.testing.assert_close(module(images), module.output(module.hidden(hidden.flatten(1)).relu()))


def test_batch_norm_is_measured_with_the_root_sets_statistics() -> None:
    model = Model(nn.Sequential(nn.Conv2d(1, 2, 1), nn.BatchNorm2d(2), nn.Flatten(), nn.Linear(8, 3)))
    weights, root = model.initial_weights, 5 + torch.randn(50, 1, 2, 2)
    predict = model.frozen(weights, root)
    one = 5 + torch.randn(1, 1, 2, 2)
    # With the root set's statistics an example's logits do not depend on its company ...
    torch.testing.assert_close(predict(torch.cat([one, root]))[:1], predict(one))
    # ... and the root set itself has nearly the logits of training (which takes the biased variance).
    torch.testing.assert_close(predict(root), model.outputs(weights, root), rtol=0.02, atol=0.02)
    # The next root set's statistics replace them.
    before = predict(one)
    assert not torch.allclose(model.frozen(weights, 3 * root)(one), before, atol=1e-3)
    torch.testing.assert_close(model.frozen(weights, root)(one), before)


def test_batch_norm_is_measured_with_the_mean_statistics_of_several_batches() -> None:
    module = nn.Sequential(nn.BatchNorm2d(1, affine=False), nn.Flatten(), nn.Linear(4, 2))
    model = Model(module)
    batches = [torch.randn(count, 1, 2, 2) * scale + scale for count, scale in ((10, 1), (20, 3), (5, 8))]
    trained = model.trained(model.initial_weights, *batches)
    assert isinstance(trained, nn.Sequential)
    norm = trained[0]
    assert isinstance(norm, nn.BatchNorm2d)
    # Each batch counts alike, however many examples are in it.
    torch.testing.assert_close(norm.running_mean, torch.stack([batch.mean() for batch in batches]).mean().view(1))
    torch.testing.assert_close(norm.running_var, torch.stack([batch.var() for batch in batches]).mean().view(1))
    torch.testing.assert_close(model.frozen(model.initial_weights, *batches)(batches[0]), trained(batches[0]))


def test_training_leaves_no_trace_in_the_module() -> None:
    model = Model(ResNet20((3, 8, 8), 4))
    before = model.initial_weights.clone()
    model.outputs(before, torch.rand(4, 3, 8, 8))
    assert not list(model.module.buffers())
    assert torch.equal(torch.cat([parameter.reshape(-1) for parameter in model.module.parameters()]), before)


def test_a_module_without_parameters_is_refused() -> None:
    with pytest.raises(InputError, match="no parameters"):
        Model(nn.Flatten())


def test_dropout_follows_from_seeds_alone() -> None:
    layer, hidden = Dropout(0.25, 1), torch.ones(2000, 32, 2, 2)
    assert layer(hidden) is hidden  # without seeds nothing is dropped
    seeds = torch.arange(2000) * 12345
    seed_dropout(layer, seeds)
    once, twice = layer(hidden), layer(hidden)
    seed_dropout(layer, seeds)
    assert torch.equal(layer(hidden), once)
    assert not torch.equal(once, twice)  # used twice in a network, it drops other units
    assert once.unique().tolist() == pytest.approx([0.0, 4 / 3])
    assert (once == 0).float().mean().item() == pytest.approx(0.25, abs=0.01)
    assert torch.equal(once[:, :, 0, 0], once[:, :, 1, 1])  # whole channels
    single = Dropout(0.25, 1, channels=False)
    seed_dropout(single, seeds)
    dropped = single(hidden) == 0
    assert dropped.float().mean().item() == pytest.approx(0.25, abs=0.01)
    assert (dropped[:, :, 0, 0] & dropped[:, :, 1, 1]).float().mean().item() == pytest.approx(0.0625, abs=0.01)
    other = Dropout(0.25, 2)
    seed_dropout(other, seeds)
    both = (once == 0) & (other(hidden) == 0)
    assert both.float().mean().item() == pytest.approx(0.0625, abs=0.01)  # another place, other masks


class Twice(nn.Module):
    """A layer of dropout that is used in two places, as many networks do."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.drop = nn.Linear(4, 6), nn.Linear(6, 3), nn.Dropout(0.5)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        outputs: torch.Tensor = self.second(self.drop(self.first(self.drop(inputs)).relu()))
        return outputs


@pytest.mark.parametrize(
    "module",
    [nn.Sequential(nn.Flatten(), nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 3)), Twice()],
    ids=["sequential", "used twice"],
)
def test_torch_dropout_follows_the_seeds_too(module: nn.Module) -> None:
    model = Model(module)
    assert model.has_dropout
    assert any(isinstance(layer, nn.Dropout) for layer in module.modules())  # the caller's module stays as it is
    inputs, seeds = torch.randn(5, 4), torch.arange(5) * 999

    def outputs(seeds: torch.Tensor | None) -> torch.Tensor:
        seed_dropout(model.module, seeds)
        return model.outputs(model.initial_weights, inputs)

    before = torch.get_rng_state()
    assert torch.equal(outputs(seeds), outputs(seeds))
    assert not torch.equal(outputs(seeds), outputs(seeds + 1))
    torch.testing.assert_close(outputs(None), module.eval()(inputs))
    torch.testing.assert_close(model.frozen(model.initial_weights, inputs)(inputs), module(inputs))
    assert torch.equal(torch.get_rng_state(), before)


def test_alpha_dropout_is_refused() -> None:
    with pytest.raises(InputError, match="AlphaDropout draws from outside"):
        Model(nn.Sequential(nn.Linear(2, 2), nn.AlphaDropout(0.5)))


def test_a_trained_module_is_the_callers_own_with_other_weights() -> None:
    module = nn.Sequential(nn.Conv2d(1, 2, 1), nn.BatchNorm2d(2, momentum=0.3), nn.Dropout(0.5), nn.Flatten(), nn.Linear(8, 3))
    model = Model(module)
    weights, root = model.initial_weights + 1, 5 + torch.randn(50, 1, 2, 2)
    trained = model.trained(weights, root)
    assert isinstance(trained, nn.Sequential)
    assert not trained.training
    assert type(trained[2]) is nn.Dropout
    norm = trained[1]
    assert isinstance(norm, nn.BatchNorm2d)
    assert norm.running_mean is not None
    assert norm.momentum == 0.3
    assert torch.equal(torch.cat([part.flatten() for part in trained.parameters()]), weights)
    torch.testing.assert_close(trained(root), model.frozen(weights, root)(root))
    assert not torch.allclose(norm.running_mean, torch.zeros(2))
    model.frozen(model.initial_weights, root)  # what is measured later leaves it alone
    assert torch.equal(torch.cat([part.flatten() for part in trained.parameters()]), weights)
