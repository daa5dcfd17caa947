"""A fine-tuning job in plain PyTorch, with nothing of ours in it: what a person would write by hand.

    python tests/gpu/bare.py --checkpointing every-block
    python tests/gpu/bare.py --scope layer --mode reduce-overhead --activation-memory-budget 0.9
    python tests/gpu/bare.py --shape llama-1b --adapter full --precision bf16-true --optimizer adamw-8bit

Prints one JSON object: tokens per second, seconds of each step, peaks of the allocator.
"""

import argparse
import itertools
import json
import math
import os
import statistics
import sys
import time

SHAPES = {
    "llama-7b": {
        "vocab_size": 32000, "hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32,
        "num_attention_heads": 32, "num_key_value_heads": 32, "max_position_embeddings": 4096,
    },
    "llama-1b": {
        "vocab_size": 128256, "hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16,
        "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 64, "max_position_embeddings": 131072,
        "tie_word_embeddings": True,
    },
    "tiny": {
        "vocab_size": 1024, "hidden_size": 64, "intermediate_size": 176, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 4, "max_position_embeddings": 2048,
    },
}  # fmt: skip

parser = argparse.ArgumentParser()
parser.add_argument("--shape", default="llama-7b", choices=list(SHAPES))
parser.add_argument("--adapter", default="lora", choices=["full", "lora"])
parser.add_argument("--precision", default="bf16-mixed", choices=["bf16-mixed", "bf16-true", "32-true"])
parser.add_argument("--optimizer", default="adamw", choices=["adamw", "adamw-8bit"])
parser.add_argument("--mode", default="off")
parser.add_argument("--scope", default="whole", choices=["whole", "layer"])
parser.add_argument("--checkpointing", default="off", choices=["off", "every-block", "every-second-block"])
parser.add_argument("--activation-memory-budget", type=float, default=1.0)
parser.add_argument("--micro-batch", type=int, default=1)
parser.add_argument("--batch-size", type=int, default=8)
parser.add_argument("--seq-len", type=int, default=2048)
parser.add_argument("--layers", type=int, help="instead of the shape's")
parser.add_argument("--device", default="cuda")
parser.add_argument("--expandable-segments", action="store_true")
parser.add_argument("--dynamic", action="store_true")
parser.add_argument("--cap-bytes", type=int)
parser.add_argument("--steps", type=int, default=5, help="timed, at least")
parser.add_argument("--seconds", type=float, default=0.0, help="timed, at least")
parser.add_argument("--warm", type=int, default=3)
parser.add_argument("--wait", action="store_true", help="after the imports, for a line on stdin")
args = parser.parse_args()

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:2:16:8")
if args.expandable_segments:
    os.environ["PYTORCH_ALLOC_CONF"] = "expandable_segments:True"

import torch  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402
from transformers import LlamaConfig, LlamaForCausalLM  # noqa: E402

if args.adapter == "lora":
    from peft import LoraConfig, get_peft_model
if args.wait and not sys.stdin.readline():
    sys.exit("whoever was to ask for the measurement is gone")
cuda = args.device == "cuda"
if cuda and args.cap_bytes:
    torch.cuda.set_per_process_memory_fraction(args.cap_bytes / torch.cuda.mem_get_info()[1], 0)
torch.manual_seed(0)
shape = SHAPES[args.shape] | ({"num_hidden_layers": args.layers} if args.layers else {})
config = LlamaConfig(**shape, use_cache=False)
# Mixed: what is trained is in 32 bits, what is frozen in 16.
whole = args.precision == "32-true" or (args.precision == "bf16-mixed" and args.adapter == "full")
dtype = torch.float32 if whole else torch.bfloat16
mixed = args.precision == "bf16-mixed"
with torch.device(args.device):
    base = LlamaForCausalLM._from_config(config, dtype=dtype, attn_implementation="sdpa")
model = base
if args.adapter == "lora":
    lora = LoraConfig(r=16, lora_alpha=32, target_modules="all-linear", task_type="CAUSAL_LM", init_lora_weights=False)
    model = get_peft_model(base, lora, autocast_adapter_dtype=mixed)
model.train()
layers = base.model.layers


def checkpointed(forward):
    def run(*inputs, **named):
        return checkpoint(forward, *inputs, use_reentrant=False, **named)

    return run


if args.checkpointing != "off":
    for layer in layers[:: 2 if args.checkpointing == "every-second-block" else 1]:
        layer.forward = checkpointed(layer.forward)
if args.mode != "off":
    import torch._functorch.config

    torch._functorch.config.activation_memory_budget = args.activation_memory_budget
    for module in layers if args.scope == "layer" else [model]:
        module.compile(mode=args.mode, dynamic=args.dynamic, fullgraph=False)

trained = [p for p in model.parameters() if p.requires_grad]
if args.optimizer == "adamw-8bit":
    from bitsandbytes.optim import AdamW8bit  # its import touches the card, hence not before the line came

    optimizer = AdamW8bit(trained)
else:
    optimizer = torch.optim.AdamW(trained, fused=True)
accumulation = args.batch_size // args.micro_batch
graphs = args.mode in ("reduce-overhead", "max-autotune") and cuda
keep = graphs and accumulation > 1
if keep:
    for p in trained:
        p.grad = torch.zeros_like(p)
tokens = torch.randint(0, config.vocab_size, (args.batch_size, args.seq_len), device=args.device)
total = torch.tensor(float(args.batch_size * (args.seq_len - 1)), device=args.device)


def step():
    for rows in tokens.split(args.micro_batch):
        if graphs:
            torch.compiler.cudagraph_mark_step_begin()
        with torch.autocast(args.device, dtype=torch.bfloat16, enabled=mixed):
            loss = model(input_ids=rows, labels=rows, num_items_in_batch=total).loss
        loss.backward()
        del loss
    optimizer.step()
    optimizer.zero_grad(set_to_none=not keep)


def wait():
    if cuda:
        torch.cuda.synchronize()


started = time.perf_counter()
step()
wait()
first = time.perf_counter() - started
for _ in range(args.warm - 1):
    began = time.perf_counter()
    step()
    wait()
count = max(args.steps, math.ceil(args.seconds / (time.perf_counter() - began)) if args.warm > 1 else 0)
marks = [time.perf_counter()]
if cuda:
    events = [torch.cuda.Event(enable_timing=True) for _ in range(count + 1)]
    events[0].record()
    for event in events[1:]:
        step()
        event.record()
    wait()
    seconds = [a.elapsed_time(b) / 1000 for a, b in itertools.pairwise(events)]
else:
    for _ in range(count):
        step()
        marks.append(time.perf_counter())
    seconds = [b - a for a, b in itertools.pairwise(marks)]
print(
    json.dumps(
        {
            "tokens_per_s": args.batch_size * args.seq_len * count / sum(seconds),
            "step_seconds": statistics.median(seconds),
            "steps": seconds,
            "first_step_seconds": first,
            "peak_allocated_bytes": torch.cuda.max_memory_allocated() if cuda else None,
            "peak_reserved_bytes": torch.cuda.max_memory_reserved() if cuda else None,
            "arguments": vars(args),
            "torch": torch.__version__,
        }
    )
)
