"""The examples of the source texts, each by its name: five short texts on multi-head attention."""

from typing import Any

import httpx
import numpy as np
import pytest
import torch
from torch import Tensor

from model.attention.attention import MultiHeadAttention
from model.kernels import Affine
from service.pipeline.replica import Replica
from tests.conftest import posted
from tests.multi_head import MultiHead, attend, head_weights

D_MODEL, HEADS, D_K = 512, 8, 64
TOKENS = 7
LAYER = 3  # of the six, any but the first, which is looked at by itself
DOG = "A dog ate the food because it was hungry"
CLOSE = 1e-5  # absolute, in float32, of numbers around 1


def numbers(*shape: int, seed: int) -> Tensor:
    """Normally distributed numbers, the same in every run."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def close(expected: Any, actual: Any, most: float = CLOSE) -> None:
    """Nothing differs by more than so much."""
    np.testing.assert_allclose(actual, expected, rtol=0, atol=most)


# One head: which word dominates


async def test_z_well_is_60_percent_of_v_all_and_40_percent_of_v_well(
    client: httpx.AsyncClient,
) -> None:
    """Z_well = 0.6 V_All + 0.4 V_well, equal to the last bit; V_is has no part in it."""
    v_all, v_is, v_well = [10.0, 0.0, -2.5, 3.0], [7.0, 7.0, 7.0, 7.0], [0.0, 10.0, 5.0, -1.0]
    body = {"scores": [[0.6, 0, 0.4]], "probabilities": True, "value": [v_all, v_is, v_well]}

    answer = await posted(client, "/v1/attend", body)

    z_well = 0.6 * np.array(v_all) + 0.4 * np.array(v_well)
    assert answer["concat"] == [z_well.tolist()]
    assert answer["probabilities"] == [[[0.6, 0.0, 0.4]]]


async def test_z_it_is_just_v_dog(client: httpx.AsyncClient) -> None:
    """A row of one 1.0 gives that word's value, bit for bit, whatever the others hold."""
    words = DOG.lower().split()
    value = np.random.default_rng(0).standard_normal((len(words), 5))
    row = [float(word == "dog") for word in words]

    body = {"scores": [row], "probabilities": True, "value": value.tolist()}
    answer = await posted(client, "/v1/attend", body)

    z_it = np.array(answer["concat"][0])
    assert z_it.tobytes() == value[words.index("dog")].tobytes()


# Several heads


def affine(outputs: int, inputs: int, seed: int) -> Affine:
    """A projection without bias that keeps the size of what it projects."""
    return numbers(outputs, inputs, seed=seed) / inputs**0.5, None


def layer(heads: int, d_k: int, d_v: int, d_model: int = D_MODEL) -> MultiHead:
    """Self-attention of random weights."""
    query, key = affine(heads * d_k, d_model, 1), affine(heads * d_k, d_model, 2)
    value, output = affine(heads * d_v, d_model, 3), affine(d_model, heads * d_v, 4)
    return MultiHead(query, key, value, output, heads)


def each_head(attention: MultiHead, x: Tensor) -> list[Tensor]:
    """Z_0 .. Z_(h-1), each from its own three matrices."""
    weights = [attention.head(i) for i in range(attention.heads)]
    return [attend(x @ w.query, x @ w.key, x @ w.value).mixed for w in weights]


@pytest.mark.parametrize("d_v", [64, 48], ids=["d_v = d_k", "d_v < d_k"])
async def test_eight_heads_give_eight_matrices_that_w_o_makes_one(d_v: int) -> None:
    """W_i^Q, W_i^K in R^(d_model x d_k), W_i^V in R^(d_model x d_v), W^O in R^(h d_v x d_model)."""
    attention, x = layer(HEADS, D_K, d_v), numbers(TOKENS, D_MODEL, seed=0)

    shapes = [tuple(part.shape for part in attention.head(i)[:3]) for i in range(HEADS)]
    z = each_head(attention, x)
    w_o = torch.cat([attention.head(i).output for i in range(HEADS)])
    final = torch.cat(z, dim=1) @ w_o

    assert shapes == [((D_MODEL, D_K), (D_MODEL, D_K), (D_MODEL, d_v))] * 8
    assert [one.shape for one in z] == [(TOKENS, d_v)] * 8
    assert w_o.shape == (HEADS * d_v, D_MODEL)
    close(final, attention(x)[0])
    assert all((one - other).abs().max() > 0.1 for one in z for other in z if one is not other)


async def test_the_joined_heads_times_w_o_are_the_sum_of_what_each_head_adds() -> None:
    """Concat(Z_0, .., Z_7) W_O = Z_0 W_0^O + .. + Z_7 W_7^O."""
    attention, x = layer(HEADS, D_K, D_K), numbers(TOKENS, D_MODEL, seed=5)

    added = [z @ attention.head(i).output for i, z in enumerate(each_head(attention, x))]

    close(torch.stack(added).sum(0), attention(x)[0], 2.5e-6)


@pytest.mark.parametrize("heads", [1, 2, 4, 8, 12, 16])
@pytest.mark.parametrize("d_v", [5, 7])
async def test_more_heads_make_w_o_longer(heads: int, d_v: int) -> None:
    """Its rows are h * d_v, its columns stay d_model: it is (h d_v x d_model)."""
    attention, x = layer(heads, 3, d_v, d_model=11), numbers(TOKENS, 11, seed=6)

    weights = [attention.head(i) for i in range(heads)]
    w_o = torch.cat([head.output for head in weights])

    assert w_o.shape == (heads * d_v, 11)
    assert torch.equal(w_o, attention.output[0].T)
    close(torch.cat(each_head(attention, x), 1) @ w_o, attention(x)[0])


async def test_dividing_by_the_root_of_d_makes_no_probabilities(client: httpx.AsyncClient) -> None:
    """The scores do not sum to 1 after it; the softmax makes them."""
    q, k, v = (numbers(TOKENS, D_K, seed=seed).tolist() for seed in (7, 8, 9))

    answer = await posted(client, "/v1/attend", {"query": q, "key": k, "value": v})

    scaled = np.array(q) @ np.array(k).T / D_K**0.5
    assert np.abs(scaled.sum(1) - 1).min() > 0.1 and scaled.min() < 0
    close(np.exp(scaled) / np.exp(scaled).sum(1, keepdims=True), answer["probabilities"][0], 1e-12)


# The encoder of the source texts, step by step


async def explained(client: httpx.AsyncClient, layer: int) -> dict[str, Any]:
    """The steps of one layer as arrays, and what stands next to them."""
    told: dict[str, Any] = await posted(client, "/v1/explain", {"text": DOG, "layer": layer})
    return told | {name: np.array(told[name], np.float32) for name in told["shapes"]}


def positions(tokens: int) -> Any:
    """PE(pos, 2i) = sin(pos / 10000^(2i/d)), PE(pos, 2i+1) = cos of the same."""
    angles = np.arange(tokens)[:, None] / 10_000 ** (np.arange(0, D_MODEL, 2) / D_MODEL)
    return np.stack([np.sin(angles), np.cos(angles)], axis=-1).reshape(tokens, D_MODEL)


async def test_step_1_is_the_embedding_plus_the_position(
    base_client: httpx.AsyncClient, base: Replica
) -> None:
    """X' = PE(X) + X in R^(n x 512), and PE(0) = [0, 1, 0, 1, ..]."""
    told = await explained(base_client, 0)

    embedded = base.lanes.model.encoder.embeddings.word[told["token_ids"]].numpy()
    assert told["x"].shape == (len(told["tokens"]), 512)
    assert positions(1).tolist() == [[0.0, 1.0] * 256]
    close(positions(len(embedded)) + embedded, told["x"])


async def test_step_2_is_layer_norm_of_x_plus_z(
    base_client: httpx.AsyncClient, base: Replica
) -> None:
    """Q_i, K_i, V_i, Z_i for i = 1 .. 8, Concat, W_O, then LayerNorm(X' + Z)."""
    told = await explained(base_client, LAYER)
    attention, x = base.lanes.model.encoder.layers[LAYER].attention, told["x"]

    z = []
    for i in range(HEADS):
        w_q, w_k, w_v, _ = (part.numpy() for part in head_weights(attention, i))
        close(x @ w_q, told["q"][i])
        close(x @ w_k, told["k"][i])
        close(x @ w_v, told["v"][i])
        scores = told["q"][i] @ told["k"][i].T / np.sqrt(D_K)
        shares = np.exp(scores) / np.exp(scores).sum(1, keepdims=True)
        close(scores, told["scores"][i])
        close(shares, told["probabilities"][i])
        z.append(shares @ told["v"][i])
        close(z[i], told["z"][i])
    close(np.concatenate(z, axis=1), told["concat"])
    close(told["concat"] @ w_o(attention), told["projected"])
    close(layer_norm(x + told["projected"]), told["normed"])
    assert told["shapes"]["z"] == [8, len(x), 64] and told["normed"].shape == (len(x), 512)


async def test_step_3_is_layer_norm_of_the_feed_forward_and_what_it_read(
    base_client: httpx.AsyncClient, base: Replica
) -> None:
    """out_enc = LayerNorm(FFN(step 2) + step 2), FFN(x) = max(0, x W_1) W_2."""
    told = await explained(base_client, LAYER)
    read = base.lanes.model.encoder.layers[LAYER]

    inner = np.maximum(told["normed"] @ read.up.weight().numpy().T, 0)
    assert inner.shape[1] == 2048
    close(inner @ read.down.weight().numpy().T, told["feed_forward"])
    close(layer_norm(told["normed"] + told["feed_forward"]), told["output"])


async def test_what_leaves_one_layer_enters_the_next(base_client: httpx.AsyncClient) -> None:
    """Six times the same three steps."""
    for index in range(5):
        before, after = await explained(base_client, index), await explained(base_client, index + 1)
        close(before["output"], after["x"])


def w_o(attention: MultiHeadAttention) -> Any:
    """W_O, (h * d_v, d_model), of the parts that belong to the heads."""
    return torch.cat([head_weights(attention, i).output for i in range(HEADS)]).numpy()


def layer_norm(x: Any) -> Any:
    """With the weights a layer begins with: 1 and 0."""
    return (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5)
