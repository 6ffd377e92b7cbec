"""The Trainer of transformers: accumulation, checkpoints, evaluation between steps."""

import tempfile

import torch
from helper import finish
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainerCallback, TrainingArguments, set_seed

set_seed(0)
config = LlamaConfig(
    vocab_size=32,
    hidden_size=16,
    intermediate_size=32,
    num_hidden_layers=2,
    num_attention_heads=2,
    num_key_value_heads=1,
    attention_dropout=0.1,
)
model = LlamaForCausalLM(config)
tokens = torch.randint(0, 32, (16, 8))
losses = []


class Rows(torch.utils.data.Dataset):
    def __len__(self):
        return len(tokens)

    def __getitem__(self, index):
        return {"input_ids": tokens[index], "labels": tokens[index]}


class Keep(TrainerCallback):
    def on_log(self, args, state, control, logs=None, **kwargs):
        if "loss" in logs:
            losses.append(logs["loss"])


with tempfile.TemporaryDirectory() as folder:
    arguments = TrainingArguments(
        folder,
        per_device_train_batch_size=2,
        gradient_accumulation_steps=2,
        max_steps=3,
        logging_steps=1,
        use_cpu=True,
        report_to=[],
        save_strategy="no",
        eval_strategy="steps",
        eval_steps=2,
        disable_tqdm=True,
        gradient_checkpointing=True,
    )
    Trainer(model, arguments, train_dataset=Rows(), eval_dataset=Rows(), callbacks=[Keep()]).train()
finish(losses, model)
