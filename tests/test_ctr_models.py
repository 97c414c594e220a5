"""Models over categories are the formulas of their papers, by loops over plain numbers that know no tensors."""

import copy
import math
from itertools import combinations

import pytest
import torch
from helpers import equal, seeded
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from bidwise import InputError
from bidwise.models import DCNv2, DeepFM, SparseLogisticRegression
from bidwise.models.embeddings import Embeddings
from bidwise.models.layers import Perceptron, glorot
from paper.dcn import DCN, embedding_width

CARDINALITIES = [3, 20, 5, 16, 81, 2]  # vectors of 6, 12, 6, 12, 18 and 6 numbers in DCN
SMALL = {
    "deepfm": lambda **options: DeepFM(CARDINALITIES, **({"embedding": 4, "hidden": (7, 5)} | options)),
    "dcn": lambda **options: DCN(CARDINALITIES, **({"cross": 3, "hidden": (7, 5)} | options)),
    "dcnv2": lambda **options: DCNv2(CARDINALITIES, **({"embedding": 5, "cross": 3, "hidden": (7, 5)} | options)),
    "logistic_regression": lambda **options: SparseLogisticRegression(CARDINALITIES, **options),
}
every_model = pytest.mark.parametrize("name", SMALL)


def test_products_of_hidden_layers_work_under_autocast():
    from bidwise.kernels.embedding_kernels import product  # what a GPU uses; it needs none itself

    inputs, *weights = (draw(*shape).float().requires_grad_() for shape in ((9, 6), (6, 5), (5, 4)))
    twins = [x.detach().clone().requires_grad_() for x in (inputs, *weights)]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = product(product(inputs, weights[0]), weights[1])
        expected = twins[0] @ twins[1] @ twins[2]
    assert found.dtype == torch.bfloat16
    found.float().sum().backward()
    expected.float().sum().backward()
    for ours, theirs in zip((inputs, *weights), twins, strict=True):
        assert ours.grad.dtype == torch.float32
        torch.testing.assert_close(ours.grad, theirs.grad, rtol=2e-2, atol=2e-2)


def draw(*shape, seed=0):
    return torch.randn(shape, generator=seeded(seed), dtype=torch.float64)


def some_ids(ads, cardinalities=CARDINALITIES, seed=0):
    """Random ids; the first two ads have the lowest and the highest of every field."""
    random = seeded(seed)
    ids = torch.stack([torch.randint(0, values, (ads,), generator=random) for values in cardinalities], dim=1)
    ids[0] = 0
    ids[1] = torch.tensor(cardinalities) - 1
    return ids


def stirred(model, size=0.5):
    """In double precision, every weight and running mean away from where it starts, so that no term is lost."""
    model = model.double()
    with torch.no_grad():
        for number, tensor in enumerate([*model.parameters(), *model.buffers()]):
            if tensor.is_floating_point():
                tensor.copy_(size * draw(*tensor.shape, seed=number))
        for part in model.modules():
            if isinstance(part, nn.BatchNorm1d):
                part.running_var.abs_().add_(0.1)
    return model


# loops over lists


def inner(left, right):
    return math.fsum(a * b for a, b in zip(left, right, strict=True))


def columns_of(matrix):
    return list(zip(*matrix, strict=True))


def affine(x, weight, bias):
    """x W + b with W as rows of inputs."""
    return [inner(x, column) + b for column, b in zip(columns_of(weight), bias, strict=True)]


def rectified(x):
    return [max(number, 0.0) for number in x]


def normed(x, mean, variance, scale, shift, eps=1e-5):
    rows = zip(x, mean, variance, scale, shift, strict=True)
    return [(n - m) / math.sqrt(v + eps) * a + b for n, m, v, a, b in rows]


def rows_of(ids, cardinalities):
    """Where the vectors of an ad are: field after field, one row for each value."""
    return [sum(cardinalities[:field]) + number for field, number in enumerate(ids)]


def pair_sum(vectors):
    return math.fsum(inner(u, v) for u, v in combinations(vectors, 2))


def crossed(x, weights, biases, matrix):
    """x_{l+1} = x_0 x_l^T w_l + b_l + x_l, or x_0 ⊙ (W_l x_l + b_l) + x_l."""
    found = x
    for weight, bias in zip(weights, biases, strict=True):
        if matrix:
            found = [a * g + c for a, g, c in zip(x, affine(found, weight, bias), found, strict=True)]
        else:
            outer = [[a * c for c in found] for a in x]  # the matrix x_0 x_l^T, as the paper has it
            product = [inner(row, [w for (w,) in weight]) for row in outer]
            found = [p + b + c for p, b, c in zip(product, bias, found, strict=True)]
    return found


def perceptron(x, state, prefix, layers):
    """The last hidden layer, as evaluated: no dropout, batch norm by what was seen."""
    for k in range(layers):
        weight = state[f"{prefix}weights.{k}"]
        x = affine(x, weight, state.get(f"{prefix}biases.{k}", [0.0] * len(weight[0])))
        if f"{prefix}norms.{k}.weight" in state:
            names = ("running_mean", "running_var", "weight", "bias")
            x = normed(x, *(state[f"{prefix}norms.{k}.{name}"] for name in names))
        x = rectified(x)
    return x


def deepfm_logit(ids, state, cardinalities, layers=2):
    rows = [state["table.weight"][row] for row in rows_of(ids, cardinalities)]
    first, vectors = [row[0] for row in rows], [row[1:] for row in rows]
    deep = perceptron([number for vector in vectors for number in vector], state, "deep.", layers)
    last = [weight for (weight,) in state["last"]]
    return state["bias"] + math.fsum(first) + pair_sum(vectors) + inner(deep, last)


def dcn_vector(ids, state, cardinalities, prefix="tables."):
    """Vectors of one width after the other, fields in order inside of each."""
    widths = [6 * max(n for n in range(1, 200) if n**4 <= values) for values in cardinalities]
    found = []
    for number, width in enumerate(sorted(set(widths))):
        fields = [field for field, w in enumerate(widths) if w == width]
        table = state[f"{prefix}tables.{number}.weight"]
        for row in rows_of([ids[field] for field in fields], [cardinalities[field] for field in fields]):
            found += table[row]
    return found


def dcn_logit(ids, state, cardinalities):
    return crossed_logit(dcn_vector(ids, state, cardinalities), state, matrix=False)


def dcnv2_logit(ids, state, cardinalities):
    rows = [state["table.weight"][row] for row in rows_of(ids, cardinalities)]
    vectors = [number for row in rows for number in row[1:]]
    return math.fsum(row[0] for row in rows) + crossed_logit(vectors, state, matrix=True)


def crossed_logit(x, state, matrix, layers=2, cross=3):
    weights, biases = ([state[f"cross.{kind}.{k}"] for k in range(cross)] for kind in ("weights", "biases"))
    both = crossed(x, weights, biases, matrix) + perceptron(x, state, "deep.", layers)
    return inner(both, [weight for (weight,) in state["last"]]) + state["bias"]


def logistic_regression_logit(ids, state, cardinalities):
    return state["bias"] + math.fsum(state["table.weight"][row][0] for row in rows_of(ids, cardinalities))


LOGITS = {
    "deepfm": deepfm_logit,
    "dcn": dcn_logit,
    "dcnv2": dcnv2_logit,
    "logistic_regression": logistic_regression_logit,
}


def lists(model):
    return {name: tensor.tolist() for name, tensor in model.state_dict().items()}


# embeddings


@given(
    cardinalities=st.lists(st.integers(1, 9), min_size=1, max_size=5),
    width=st.integers(1, 3),
    dtype=st.sampled_from([torch.uint8, torch.int16, torch.int32, torch.int64]),
    seed=st.integers(0, 1000),
)
@settings(deadline=None, max_examples=50)
def test_every_value_of_every_field_has_a_row_of_its_own(cardinalities, width, dtype, seed):
    table = Embeddings(cardinalities, width, std=1.0, random=seeded(seed))
    assert table.weight.shape == (sum(cardinalities), width)
    ids = some_ids(7, cardinalities, seed)
    found = table(ids.to(dtype))
    weights = table.weight.tolist()
    assert found.tolist() == [[weights[row] for row in rows_of(ad, cardinalities)] for ad in ids.tolist()]


def test_initial_embeddings_are_normal_around_0():
    weights = Embeddings([5000, 5000], 4, std=0.02, random=seeded()).weight.detach()
    assert weights.mean().item() == pytest.approx(0, abs=5 * 0.02 / math.sqrt(weights.numel()))
    assert weights.std().item() == pytest.approx(0.02, rel=0.02)
    assert (weights.abs() < 2 * 0.02).double().mean().item() == pytest.approx(math.erf(2 / math.sqrt(2)), abs=0.01)


BAD_IDS = [
    (torch.tensor([[0, 0], [1, 4]]), r"features must be ids below 4 in field 1, found 4 at \[1, 1\]"),
    (torch.tensor([[0, 0], [3, 0]]), r"features must be ids below 3 in field 0, found 3 at \[1, 0\]"),
    (torch.tensor([[-1, 2]]), r"features must be ids below 3 in field 0, found -1 at \[0, 0\]"),
    (torch.tensor([[0, -2]]), r"features must be ids below 4 in field 1, found -2 at \[0, 1\]"),  # a row of field 0
    (torch.tensor([[0, 2**31 - 1]], dtype=torch.int32), "below 4 in field 1, found 2147483647"),
    (torch.tensor([[0, 2**40]]), "below 4 in field 1, found 1099511627776"),
    (torch.zeros(2, 2), "features must be ids of categories, whole numbers, found torch.float32"),
    (torch.zeros(2, 3, dtype=torch.int64), r"features must have shape \(ads, 2\), found \(2, 3\)"),
    (torch.zeros(2, dtype=torch.int64), r"features must have shape \(ads, 2\), found \(2,\)"),
    (torch.zeros(1, 2, 2, dtype=torch.int64), r"features must have shape \(ads, 2\), found \(1, 2, 2\)"),
]


@pytest.mark.parametrize(("ids", "message"), BAD_IDS)
@pytest.mark.parametrize("model", [DeepFM, DCN, DCNv2, SparseLogisticRegression])
def test_ids_that_no_field_has_are_refused(model, ids, message):
    with pytest.raises(InputError, match=message):
        model([3, 4])(ids)


@pytest.mark.parametrize("field", range(len(CARDINALITIES)))
@every_model
def test_errors_name_the_field_of_the_data_wherever_its_table_is(name, field):
    model, ids = SMALL[name](), some_ids(5)
    ids[3, field] = CARDINALITIES[field]
    found = rf"below {CARDINALITIES[field]} in field {field}, found {CARDINALITIES[field]} at \[3, {field}\]"
    with pytest.raises(InputError, match=found):
        model(ids)


ANY = [
    ({"cardinalities": []}, "cardinalities must have one number for each field, found none"),
    ({"cardinalities": [3, 0]}, "cardinalities must be at least 1, found 0"),
    ({"cardinalities": [3, 2.5]}, "cardinalities must be a whole number, found 2.5"),
    ({"std": -1.0}, "std must be finite and no less than 0, found -1.0"),
]
DEEP = [
    ({"hidden": (4, 0)}, "hidden must be at least 1, found 0"),
    ({"dropout": 1.0}, r"dropout must be in \[0, 1\), found 1.0"),
]
CROSS = [({"cross": 0}, "cross must be at least 1, found 0")]


@pytest.mark.parametrize(
    ("model", "options", "message"),
    [
        *((model, *case) for model in (SparseLogisticRegression, DeepFM, DCN, DCNv2) for case in ANY),
        *((model, *case) for model in (DeepFM, DCN, DCNv2) for case in DEEP),
        *((model, *case) for model in (DCN, DCNv2) for case in CROSS),
        (DeepFM, {"embedding": 0}, "embedding must be at least 1, found 0"),
    ],
)
def test_impossible_models_are_refused(model, options, message):
    with pytest.raises(InputError, match=message):
        model(**({"cardinalities": [3, 4]} | options))


def test_widths_of_vectors_are_6_fourth_roots_rounded_down():
    for root in (*range(1, 200), 10**5, 10**9):
        assert embedding_width(root**4) == 6 * root
        assert embedding_width((root + 1) ** 4 - 1) == 6 * root
    assert [embedding_width(values) for values in range(1, 17)] == [6] * 15 + [12]


# perceptrons


def ones(units=(1000, 500), dropout=0.3, seed=1):
    """A perceptron whose units are all 1: what comes out is the mask of the last layer."""
    model = Perceptron(2, units, dropout=dropout, seed=seed, random=seeded())
    with torch.no_grad():
        for weight, bias in zip(model.weights, model.biases, strict=True):
            weight.zero_()
            bias.fill_(1)
    return model


@pytest.mark.parametrize("dropout", [0.1, 0.5, 0.9])
def test_dropout_leaves_out_its_share_and_keeps_the_mean(dropout):
    mask = ones(dropout=dropout)(torch.zeros(200, 2))
    assert mask.unique().tolist() == pytest.approx([0, 1 / (1 - dropout)])
    sd = math.sqrt(dropout * (1 - dropout) / mask.numel())
    assert (mask == 0).double().mean().item() == pytest.approx(dropout, abs=5 * sd)
    assert mask.double().mean().item() == pytest.approx(1, abs=5 * sd / (1 - dropout))
    for share in ((mask == 0).double().mean(0), (mask == 0).double().mean(1)):  # no unit and no ad is favoured
        assert share.std().item() == pytest.approx(
            math.sqrt(dropout * (1 - dropout) * len(share) / mask.numel()), rel=0.3
        )


def test_every_layer_drops_for_itself():
    model = ones(units=(400, 400))
    with torch.no_grad():  # the second layer passes on the first, to which it adds 1 / 4
        model.weights[1].copy_(torch.eye(400))
        model.biases[1].fill_(0.25)
    found = model(torch.zeros(50, 2))
    kept = 1 / 0.7
    assert found.unique().tolist() == pytest.approx([0, 0.25 * kept, (kept + 0.25) * kept])
    shares = [float(((found - x).abs() < 1e-5).double().mean()) for x in (0, 0.25 * kept, (kept + 0.25) * kept)]
    assert shares == pytest.approx([0.3, 0.7 * 0.3, 0.7 * 0.7], abs=0.02)


def test_which_units_are_dropped_depends_on_seed_and_step_alone():
    inputs = torch.zeros(5, 2)
    model, twin, other = ones(), ones(), ones(seed=2)
    steps = [model(inputs) for _ in range(3)]
    with torch.random.fork_rng():
        torch.manual_seed(7)
        assert all(torch.equal(step, twin(inputs)) for step in steps)
    assert not torch.equal(steps[0], steps[1])
    assert not torch.equal(steps[0], other(inputs))


def test_dropout_goes_on_where_it_stopped():
    inputs = torch.zeros(5, 2)
    model, resumed = ones(), ones()
    for _ in range(3):
        model(inputs)
    state = copy.deepcopy(model.state_dict())
    assert state["steps"].item() == 3
    expected = [model(inputs) for _ in range(2)]
    resumed.load_state_dict(state)
    assert state["steps"].item() == 3  # loading takes nothing out of it
    for step in expected:
        assert torch.equal(resumed(inputs), step)


def test_evaluation_drops_nothing_and_is_no_step():
    inputs = torch.zeros(5, 2)
    model, expected = ones(), ones()(inputs)
    assert bool((model.eval()(inputs) == 1).all())
    assert torch.equal(model.train()(inputs), expected)
    without = ones(dropout=0.0)
    assert bool((without(inputs) == 1).all())


def test_a_batch_of_one_ad_is_normed_by_what_was_seen_before():
    model = stirred(Perceptron(3, (4,), batch_norm=True, seed=0, random=seeded()))
    inputs, before = draw(1, 3, seed=50), copy.deepcopy(model.state_dict())
    found = model.train()(inputs)
    assert equal(model.state_dict(), before)
    torch.testing.assert_close(found, model.eval()(inputs))
    assert found.requires_grad


# models


@every_model
def test_a_model_is_the_formula_of_its_paper(name):
    model, ids = stirred(SMALL[name](seed=3)).eval(), some_ids(11)
    state = lists(model)
    expected = [LOGITS[name](ad, state, CARDINALITIES) for ad in ids.tolist()]
    torch.testing.assert_close(model(ids), torch.tensor(expected, dtype=torch.float64), rtol=1e-10, atol=1e-10)


def test_a_deepfm_without_hidden_layers_is_linear_in_its_embeddings():
    model, ids = stirred(DeepFM(CARDINALITIES, embedding=3, hidden=())), some_ids(5)
    state = lists(model)
    expected = [deepfm_logit(ad, state, CARDINALITIES, layers=0) for ad in ids.tolist()]
    torch.testing.assert_close(model(ids), torch.tensor(expected, dtype=torch.float64))


def test_weights_start_with_glorots_variance():
    weights = glorot(300, 200, seeded()).detach()
    assert weights.std().item() == pytest.approx(math.sqrt(2 / 500), rel=0.02)
    assert weights.mean().item() == pytest.approx(0, abs=5 * math.sqrt(2 / 500 / weights.numel()))


@every_model
def test_seeds_decide_the_start(name):
    first, same, other = (SMALL[name](seed=seed).state_dict() for seed in (1, 1, 2))
    assert equal(first, same)
    drawn = [key for key, tensor in first.items() if tensor.dim() == 2]
    assert drawn
    assert not any(torch.equal(first[key], other[key]) for key in drawn)


@every_model
def test_models_read_and_leave_no_global_state(name):
    before, default = torch.get_rng_state(), torch.get_default_dtype()
    options = {} if name == "logistic_regression" else {"dropout": 0.5}
    model, ids = SMALL[name](seed=1, **options), some_ids(8)
    expected = SMALL[name](seed=1, **options).state_dict()
    model(ids).sum().backward()
    assert torch.equal(torch.get_rng_state(), before)
    try:
        torch.set_default_dtype(torch.float64)
        found = SMALL[name](seed=1, **options).state_dict()
    finally:
        torch.set_default_dtype(default)
    for key, tensor in expected.items():
        assert not tensor.is_floating_point() or found[key].dtype == torch.float64
        assert torch.equal(found[key].to(tensor.dtype), tensor)
    with torch.device("meta"):
        model = SMALL[name]()
        assert all(tensor.device.type == "meta" for tensor in [*model.parameters(), *model.buffers()])


@every_model
def test_ads_do_not_interact_when_evaluated(name):
    model, ids = stirred(SMALL[name]()).eval(), some_ids(6)
    together = model(ids)
    torch.testing.assert_close(torch.cat([model(ad[None]) for ad in ids]), together)
    assert model(ids[:0]).shape == (0,)


@every_model
def test_models_that_start_otherwise_print_otherwise(name):
    """Runs are resumed by how their models print."""
    alike = {repr(SMALL[name](seed=1)), repr(SMALL[name](seed=1))}
    assert len(alike) == 1
    others = {repr(SMALL[name](seed=2)), repr(SMALL[name](seed=1, std=0.1))}
    if name != "logistic_regression":
        others |= {repr(SMALL[name](seed=1, dropout=0.25)), repr(SMALL[name](seed=1, hidden=(7, 6)))}
    if name.startswith("dcn"):
        others |= {repr(SMALL[name](seed=1, cross=4)), repr(SMALL["dcnv2" if name == "dcn" else "dcn"](seed=1))}
    assert len(alike | others) == 1 + len(others) == 1 + {"logistic_regression": 2, "deepfm": 4}.get(name, 6)
