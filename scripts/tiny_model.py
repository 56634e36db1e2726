"""Write a tiny random language model and a data set of sums for it: enough to see training work, in a second.

    python scripts/tiny_model.py FOLDER

FOLDER then holds ``model/`` (a two-layer Qwen2 in bf16, its tokenizer and chat template) and ``train.parquet``
(64 conversations, column ``messages``). The same bytes each time: the weights come from seed 0.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pandas as pd
import torch
from tokenizers import Tokenizer
from tokenizers import decoders
from tokenizers import models
from tokenizers import pre_tokenizers
from tokenizers import trainers
from transformers import PreTrainedTokenizerFast
from transformers import Qwen2Config
from transformers import Qwen2ForCausalLM

END, START, STOP = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
TEMPLATE = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>' + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def conversation(a: int, b: int) -> dict[str, object]:
    question, answer = f"what is {a} plus {b}", f"the answer is {a + b}"
    return {"messages": [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]}


def make_tokenizer() -> PreTrainedTokenizerFast:
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=500,
        special_tokens=[END, START, STOP],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    bpe.train_from_iterator(["what is one plus two", "the answer is three"] * 5, trainer)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=bpe, eos_token=STOP, pad_token=END, additional_special_tokens=[START]
    )
    tokenizer.chat_template = TEMPLATE
    return tokenizer


def make_model(tokenizer: PreTrainedTokenizerFast) -> Qwen2ForCausalLM:
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=len(tokenizer),
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=2,  # heads of 32: the smallest that vLLM's attention on a CPU takes
        num_key_value_heads=2,
        max_position_embeddings=512,
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    return Qwen2ForCausalLM(config).to(torch.bfloat16)


def main(folder: Path) -> None:
    tokenizer = make_tokenizer()
    tokenizer.save_pretrained(folder / "model")
    make_model(tokenizer).save_pretrained(folder / "model")
    rows = [conversation(a, b) for a in range(8) for b in range(8)]
    pd.DataFrame(rows).to_parquet(folder / "train.parquet")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
