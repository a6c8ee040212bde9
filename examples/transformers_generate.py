"""Drafts from a package inside transformers' generate: the model stays yours, its text stays the same.

mxconv quantize examples/models/pylib-1.5m -o package --codec bsfp --draft checkpoint:examples/models/pylib-0.2m
python examples/transformers_generate.py examples/models/pylib-1.5m package "def main("
"""

import sys

from transformers import AutoModelForCausalLM, AutoTokenizer

from mxconv.interop.transformers import drafts


def main(model_id: str, package: str, prompt: str) -> None:
    tokenizer = AutoTokenizer.from_pretrained(model_id)
    model = AutoModelForCausalLM.from_pretrained(model_id, dtype="float32")
    inputs = tokenizer(prompt, return_tensors="pt")

    custom_generate = drafts(package)
    output = model.generate(**inputs, custom_generate=custom_generate, max_new_tokens=64)

    print(tokenizer.decode(output[0], skip_special_tokens=True))
    run = custom_generate.last
    print(f"\n{run.num_tokens} tokens in {run.num_rounds} passes of {model_id}")
    for level in run.levels:
        print(f"{level.name}: {level.num_accepted} of {level.num_proposed} proposed tokens accepted")
    same = output.equal(model.generate(**inputs, max_new_tokens=64))
    print("the same text as without drafts" if same else "another text: decode with drafts(package, check=True)")


if __name__ == "__main__":
    main(*sys.argv[1:])
