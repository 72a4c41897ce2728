"""Builds the tokenizer: byte-level BPE over the training stream, digits one by one.

    python tokenizer.py ..        writes tokenizer.json and tokenizer_config.json
"""

import json
import sys
from pathlib import Path

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, processors, trainers

import generate
import problems

VOCAB_SIZE = 1536
SEED, PROBLEMS = 11, 60_000
PAD, BEGIN, END, SYSTEM, USER, ASSISTANT = SPECIAL = [
    "<|pad|>", "<|begin|>", "<|end|>", "<|system|>", "<|user|>", "<|assistant|>"]
CHAT_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}"
    "{{ '<|' + message['role'] + '|>' + message['content'] | trim + eos_token }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)


def prompt(question):
    """What CHAT_TEMPLATE makes of one question."""
    return f"{BEGIN}{USER}{question.strip()}{END}{ASSISTANT}"


def build():
    tokenizer = Tokenizer(models.BPE())
    # A digit is a token of its own, with or without the blank before it.
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(r" ?[0-9]"), "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
    ])
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=VOCAB_SIZE, special_tokens=SPECIAL, show_progress=False,
                                  initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()))
    # Its text was drawn when the numbers were larger; this gives the same file again. No merge joins two digits.
    problems.LEVEL_WEIGHTS = (5, 4, 2)
    stream = generate.training(SEED)
    drawn = [next(stream) for _ in range(PROBLEMS)]
    tokenizer.train_from_iterator((text for p in drawn for text in (p.question, p.solution)), trainer)
    begin = tokenizer.token_to_id(BEGIN)
    tokenizer.post_processor = processors.TemplateProcessing(single=f"{BEGIN} $A", pair=f"{BEGIN} $A $B",
                                                             special_tokens=[(BEGIN, begin)])
    return tokenizer


def main(folder):
    tokenizer = build()
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": BEGIN, "eos_token": END, "pad_token": PAD,
              "add_bos_token": True, "clean_up_tokenization_spaces": False, "model_max_length": 1024,
              "chat_template": CHAT_TEMPLATE}
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    print("vocabulary:", tokenizer.get_vocab_size())


if __name__ == "__main__":
    main(Path(sys.argv[1]))
