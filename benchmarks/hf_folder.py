"""A Hugging Face folder in bfloat16 from a GGUF file, for peers that read no GGUF.

    python benchmarks/hf_folder.py MODEL.gguf FOLDER

transformers reads the weights. The tokenizer is Holdover's reading of the file: the one that
transformers 5.5 makes of SmolLM2's is of another class, and cuts English into twice the tokens and
more, so that a peer would be measured with other work.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, GgufConfig, PreTrainedTokenizerFast

from holdover.text._from_gguf import build_backend
from holdover.weights.gguf import open_gguf


def main(gguf: Path, folder: Path) -> None:
    metadata = open_gguf(gguf).metadata
    tokens = metadata["tokenizer.ggml.tokens"]
    bos, eos = (tokens[metadata[f"tokenizer.ggml.{name}_token_id"]] for name in ("bos", "eos"))
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=build_backend(gguf, metadata),
        bos_token=bos,
        eos_token=eos,
        clean_up_tokenization_spaces=False,
    )
    tokenizer.chat_template = metadata["tokenizer.chat_template"]
    model = AutoModelForCausalLM.from_pretrained(
        str(gguf.parent),
        gguf_file=gguf.name,
        dtype=torch.bfloat16,
        quantization_config=GgufConfig(dequantize=True),
    )
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
