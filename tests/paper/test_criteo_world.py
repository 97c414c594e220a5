"""The simulated Criteo world: its files read as the challenge's do, its clicks are what the true CTR says."""

import gzip
import math
from collections import Counter
from types import SimpleNamespace

import numpy as np
import pytest
from paper_helpers import chunks
from sklearn.linear_model import Ridge
from sklearn.metrics import roc_auc_score
from sklearn.preprocessing import OneHotEncoder

from paper import criteo_text, criteo_world
from paper.criteo_text import hex_names, lines, simulate
from paper.criteo_world import CHUNK, COUNTS, NAMES

SHORT, LONG = 5000, CHUNK + 3000  # LONG goes over the border of a chunk
HEX = set("0123456789abcdef")


def simulated(path, rows):
    """A file of seed 1 as text, with its true CTR and click rate."""
    click_rate = simulate(path, rows, seed=1)
    beside = path.with_name(path.name + ".ctr.npy")
    return SimpleNamespace(
        text=path.read_bytes(), truth=beside.read_bytes(), ctr=np.load(beside), click_rate=click_rate
    )


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    return simulated(tmp_path_factory.mktemp("world") / "new" / "ads.tsv", LONG)


@pytest.fixture(scope="module")
def parsed(written):
    """Its lines, split at tabs by hand."""
    text = written.text.decode("ascii")
    assert text.endswith("\n")
    return [line.split("\t") for line in text.split("\n")[:-1]]


def together(rows, seed):
    """All chunks as one: clicks, integers, categories, missing, ctr."""
    found = list(chunks(rows, seed))
    names = ("clicks", "integers", "categories", "missing", "ctr")
    return [np.concatenate([getattr(chunk, name) for chunk in found]) for name in names]


@pytest.fixture(scope="module")
def ads():
    return together(LONG, 1)


# layout


def test_every_line_has_the_layout_of_the_challenge(parsed):
    assert len(parsed) == LONG
    for line in parsed:
        assert len(line) == 40
        assert line[0] in ("0", "1")
        for word in line[1:14]:
            assert word == "" or word == str(int(word))
        for word in line[14:]:
            assert word == "" or (len(word) == 8 and set(word) <= HEX)


def test_the_text_tells_what_the_chunks_hold(parsed, ads):
    clicks, integers, categories, missing, _ = ads
    names = [hex_names(column, categories[:, column]) for column in range(26)]
    for row in [*range(0, LONG, 17), LONG - 1]:
        expected = [str(clicks[row])]
        expected += ["" if missing[row, c] else str(integers[row, c]) for c in range(13)]
        expected += ["" if missing[row, 13 + c] else format(names[c][row], "08x") for c in range(26)]
        assert parsed[row] == expected


def test_integers_of_every_length_are_written_in_full():
    numbers = [0, 9, 10, 9999, 10_000, 10_001, 100_070, 1_000_000, 23_159_456, 99_999_999, -1, -2, 5]
    text = lines(np.zeros(1, int), np.array([numbers + [0] * 26]).T, np.zeros((39, 1), bool))
    assert [int(word) for word in text.decode().split("\t")[1:14]] == numbers


def test_the_true_ctr_lies_beside_the_file(written, ads):
    assert written.ctr.dtype == np.float32
    assert np.array_equal(written.ctr, ads[4])
    assert written.click_rate == ads[0].mean()


def test_gzip_holds_the_same_text(written, tmp_path):
    packed = simulated(tmp_path / "ads.tsv.gz", LONG)
    assert (gzip.decompress(packed.text), packed.truth) == (written.text, written.truth)


def test_hex_names_are_all_different():
    numbers = np.arange(200_000)
    names = np.concatenate([hex_names(column, numbers) for column in (0, 1, 2, 25)])
    assert len(np.unique(names)) == len(names)
    # the mixing undone step by step, without bidwise
    for column, number in ((0, 0), (2, 10_131_226), (25, 142_571)):
        mixed = int(hex_names(column, np.array([number]))[0])
        mixed ^= mixed >> 16
        mixed = mixed * pow(0xC2B2AE35, -1, 2**32) % 2**32
        mixed ^= (mixed >> 13) ^ (mixed >> 26)
        mixed = mixed * pow(0x85EBCA6B, -1, 2**32) % 2**32
        mixed ^= mixed >> 16
        assert divmod(mixed, 2**24) == (column + 1, number)


# seeds


@pytest.mark.parametrize("rows", [1, SHORT, CHUNK, CHUNK + 1])
def test_a_shorter_file_is_the_beginning_of_a_longer_one(written, tmp_path, rows):
    short = simulated(tmp_path / "short.tsv", rows)
    assert written.text.startswith(short.text)
    assert np.array_equal(short.ctr, written.ctr[:rows])


def test_a_seed_gives_the_same_bytes_however_many_workers(written, tmp_path, monkeypatch):
    monkeypatch.setattr(criteo_text, "WORKERS", 1)
    again = simulated(tmp_path / "again.tsv", LONG)
    assert (again.text, again.truth) == (written.text, written.truth)


def test_seeds_differ_in_every_column_and_chunks_do_too(ads):
    other = together(CHUNK, 2)
    for mine, theirs in zip(ads, other, strict=True):
        assert (mine[:CHUNK] != theirs).any()
        assert (mine[CHUNK:] != mine[: LONG - CHUNK]).any()


# columns


def test_missing_values_come_at_the_stated_rates_and_in_groups(ads):
    missing = ads[3]
    for index, field in enumerate((*COUNTS, *NAMES)):
        spread = math.sqrt(field.missing * (1 - field.missing) / LONG)
        assert missing[:, index].mean() == pytest.approx(field.missing, abs=4.5 * spread)
    assert missing.mean(0).max() > 0.7
    assert (missing.mean(0) == 0).sum() > 10
    assert np.array_equal(missing[:, 0], missing[:, 9])  # I1 and I10


def test_integers_have_heavy_tails_and_the_second_is_negative_at_times(ads):
    integers, missing = ads[1], ads[3]
    assert integers[:, 1].min() == -2
    assert 0.05 < (integers[:, 1] < 0).mean() < 0.3
    assert np.delete(integers, 1, axis=1).min() == 0
    for column, field in enumerate(COUNTS):
        there = integers[~missing[:, column], column]
        assert there.max() <= field.most
        for count in (1, 2, 5, 50):
            share = float(field.below(np.array(count)))
            assert (there < count).mean() == pytest.approx(share, abs=5 * 0.5 / math.sqrt(len(there)))
    assert integers[:, 4].max() > 1000 * np.median(integers[:, 4])


@pytest.mark.parametrize("column", range(26))
def test_values_are_as_frequent_as_a_power_law_says(ads, column):
    field, there = NAMES[column], ~ads[3][:, 13 + column]
    ranks = ads[2][there, column]
    assert ranks.max() < field.values
    counts = Counter(ranks.tolist())
    for rank in (0, 1, 2, 5, 20):
        if rank >= field.values:
            continue
        share = (((rank + 1) ** (1 - field.power)) - (rank + 2) ** (1 - field.power)) / (
            1 - (field.values + 1) ** (1 - field.power)
        )
        found = counts[rank] / len(ranks)
        assert found == pytest.approx(share, abs=5 * math.sqrt(share / len(ranks)))
    if field.values < 30:
        assert len(counts) == field.values
    if field.values > 2000 and field.power < 1.3:  # straight on logarithmic axes, ranks 4 to 7 against 32 to 63
        near, far = (sum(counts[rank] for rank in range(first, 2 * first)) for first in (4, 32))
        assert math.log2(near / far) / 3 == pytest.approx(field.power - 1, abs=0.12)


def test_columns_are_correlated(ads):
    ranks = np.log1p(ads[2].astype(float))
    assert np.corrcoef(ranks[:, 11], ranks[:, 20])[0, 1] > 0.08  # C12 and C21 share a hidden variable
    assert abs(np.corrcoef(ranks[:, 1], ranks[:, 4])[0, 1]) < 0.02  # C2 and C5 do not


# clicks


def test_clicks_are_drawn_from_the_true_ctr(ads):
    clicks, ctr = ads[0].astype(float), ads[4].astype(float)
    order = np.argsort(ctr)
    for part in np.array_split(order, 10):
        z = (clicks[part] - ctr[part]).sum() / math.sqrt((ctr[part] * (1 - ctr[part])).sum())
        assert abs(z) < 4
    assert 0.81 < roc_auc_score(clicks, ctr) < 0.84


def test_effects_are_fixed_numbers():
    """Another machine or version of numpy has the same world."""
    effects = criteo_world.world_effects()
    assert effects[0, 0, :3] == pytest.approx([-0.269763764801, 0.550805478836, 0.183263235005], rel=1e-9)
    assert effects[13, 1:, 1] == pytest.approx([0.245153142035, 0.206097124834], rel=1e-9)


def test_no_sum_over_columns_is_the_ctr(ads):
    """The best sum of one number per column and value, fitted to the true logit itself, ranks clicks clearly worse."""
    _, integers, categories, missing, ctr = ads
    tokens = np.concatenate([np.clip(integers, -2, 40), np.minimum(categories, 300)], axis=1).astype(int)
    tokens[missing] = -9
    logit = np.log(ctr.astype(float) / (1 - ctr.astype(float)))
    train, test = slice(0, 55_000), slice(55_000, None)
    encoder = OneHotEncoder(handle_unknown="ignore").fit(tokens[train])
    fit = Ridge(alpha=3.0, solver="sparse_cg").fit(encoder.transform(tokens[train]), logit[train])
    sums = fit.predict(encoder.transform(tokens[test]))
    best, true = (roc_auc_score(ads[0][test], score) for score in (sums, ctr[test]))
    assert 0.74 < best < true - 0.02
    other = together(20_000, 7)  # another sample of the same world
    tokens = np.concatenate([np.clip(other[1], -2, 40), np.minimum(other[2], 300)], axis=1).astype(int)
    tokens[other[3]] = -9
    assert roc_auc_score(other[0], fit.predict(encoder.transform(tokens))) > 0.74
