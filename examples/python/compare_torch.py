#!/usr/bin/env python3
"""Compares a step's metadata with the eager PyTorch way: the cumsum, repeat_interleave and gather that an engine writes
by hand. The values have to be the same; the times stand side by side.

    python3 examples/python/compare_torch.py --library build/src/libfwdmeta.so.1 [--device cpu]

Both are timed from Python, with all that Python costs. "call" is until the last call has returned, "done" until the
device has finished too. On CUDA the eager way waits in between for numbers that shapes depend on; the library does not.
Exits with 1 where a value differs, and with 77 where torch is missing.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
import time
from typing import Any, Callable, Dict, List, Tuple

import fwdmeta

try:
    import torch
except ImportError as error:
    print(f"compare_torch.py needs PyTorch, which this Python ({sys.executable}) does not have: {error}")
    sys.exit(77)

Q_HEADS, KV_HEADS, BLOCK, MAX_LEN = 64, 8, 64, 8192
ENCODER_ROWS, DECODER_ROWS = 64, 16
GROUP = Q_HEADS // KV_HEADS

Slots = List[Tuple[int, int, int]]  # E, D, N


def cases(rng: random.Random) -> Dict[str, Slots]:
    def decode(count: int, tokens: int = 1) -> Slots:
        return [(0, rng.randrange(1, MAX_LEN - tokens), tokens) for _ in range(count)]

    def prefill(count: int, tokens: int) -> Slots:
        return [(tokens, rng.randrange(0, MAX_LEN - tokens), tokens) for _ in range(count)]

    mixed = decode(200) + prefill(8, 512) + [(9, 100, 0)] * 48
    rng.shuffle(mixed)
    return {
        "decode, 32 slots": decode(32),
        "decode, 256 slots": decode(256),
        "256 slots, 3 drafts": decode(256, 4),
        "prefill, 8 x 1024": prefill(8, 1024),
        "mixed, 256 slots": mixed,
    }


def eager_step(e: torch.Tensor, d: torch.Tensor, n: torch.Tensor, table: torch.Tensor) -> Dict[str, torch.Tensor]:
    """The arrays of a step, op by op, by the names of the library's."""
    device, int32 = e.device, torch.int32
    slots = torch.arange(len(n), dtype=int32, device=device)
    zero = torch.zeros(1, dtype=int32, device=device)

    def cu(lengths: torch.Tensor) -> torch.Tensor:
        return torch.cat([zero, torch.cumsum(lengths, 0, dtype=int32)])

    def spread(counts: torch.Tensor, starts: torch.Tensor) -> Tuple[torch.Tensor, torch.Tensor]:
        owner = torch.repeat_interleave(slots, counts)
        return owner, torch.arange(len(owner), dtype=int32, device=device) - starts[owner.long()]

    def ceil_div(a: torch.Tensor, b: int) -> torch.Tensor:
        return torch.div(a + (b - 1), b, rounding_mode="floor")

    none = torch.zeros_like(n)
    live = n > 0
    prefill, decode = live & (e > 0), live & (e == 0)
    kv = torch.where(live, d + n, none)
    out: Dict[str, torch.Tensor] = {}

    cu_q = cu(n)
    token_slot, index = spread(n, cu_q)
    position = d[token_slot.long()].long() + index.long()
    page = table[token_slot.long(), torch.div(position, BLOCK, rounding_mode="floor")].long()
    out["cu_seqlens_q"] = cu_q
    out["cu_seqlens_k"] = cu(kv)
    out["attn_cu_seqlens_k"] = cu(torch.where(prefill, d + n, torch.where(live, n, none)))
    out["seq_lens_kv"] = kv
    out["batch_id_per_token"] = token_slot
    out["position_ids"] = position
    out["slot_mapping"] = page * BLOCK + position % BLOCK
    out["mask_encoder_batch"] = prefill[token_slot.long()].to(int32)

    tiles = {
        "decoder": torch.where(decode, ceil_div(n * GROUP, DECODER_ROWS), none),
        "encoder": torch.where(prefill, ceil_div(e * GROUP, ENCODER_ROWS), none),
        "kv": torch.where(prefill, ceil_div(e + d % BLOCK, BLOCK), none),
        "pre_cache": torch.where(prefill, ceil_div(d, BLOCK), none),
    }
    for name, counts in tiles.items():
        starts = cu(counts)
        out[name + "_cu_tiles"] = starts
        out[name + "_batch_ids"], out[name + "_tile_ids_per_batch"] = spread(counts, starts)

    rows = torch.where(decode, n, prefill.to(int32))
    row_starts = cu(rows)
    row_slot, row = spread(rows, row_starts)
    out["seq_lens_output"] = rows
    out["cu_seqlens_q_output"] = row_starts
    out["batch_id_per_token_output"] = row_slot
    out["logits_indices"] = cu_q[1:][row_slot.long()] - rows[row_slot.long()] + row
    out["last_token_index"] = torch.where(live, cu_q[1:] - 1, torch.full_like(n, -1))
    out["max_len_tensor"] = torch.cat([
        torch.stack([
            n.max(),
            torch.where(live, e, none).max(),
            d.clamp(min=0).max(),
            kv.max(),
            torch.where(decode, d, none).max(),
            torch.where(live & (d > 0), kv, none).max(),
        ]),
        torch.zeros(3, dtype=int32, device=device),
    ])
    return out


def measure(step: Callable[[], Any], synchronise: Callable[[], None], repeats: int) -> Tuple[float, float]:
    """Medians in microseconds: until the call returns, and until the work is done."""
    for _ in range(5):
        step()
    synchronise()
    calls, done = [], []
    for _ in range(repeats):
        begin = time.perf_counter()
        step()
        calls.append(time.perf_counter() - begin)
        synchronise()
        done.append(time.perf_counter() - begin)
    return statistics.median(calls) * 1e6, statistics.median(done) * 1e6


def differences(meta: fwdmeta.ForwardMeta, want: Dict[str, torch.Tensor]) -> List[str]:
    """The arrays that are not the same, type included."""
    wrong = []
    for name, values in want.items():
        got = torch.from_dlpack(meta.array(name, live=True))
        if got.dtype != values.dtype or not torch.equal(got, values):
            wrong.append(name)
    return wrong


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--library", help="libfwdmeta.so.1; else FWDMETA_LIBRARY, else by the loader")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--repeats", type=int, default=200, help="steps that a median is of")
    parser.add_argument("--seed", type=int, default=7)
    args = parser.parse_args()
    if args.repeats < 1:
        parser.error("--repeats is at least 1")
    library = fwdmeta.load(args.library)
    on_cuda = args.device == "cuda"
    synchronise = torch.cuda.synchronize if on_cuda else lambda: None
    where = torch.cuda.get_device_name() if on_cuda else "CPU"
    print(f"libfwdmeta {library.version}, torch {torch.__version__}, {where}; median of {args.repeats}, microseconds\n")
    print(f"{'step':22}{'torch':>18}{'libfwdmeta':>18}{'torch / libfwdmeta':>20}   values")
    print(f"{'':22}{'call':>9}{'done':>9}{'call':>9}{'done':>9}{'done':>20}")
    rng = random.Random(args.seed)
    all_right = True
    for name, slots in cases(rng).items():
        e, d, n = (torch.tensor(v, dtype=torch.int32, device=args.device) for v in zip(*slots))
        pages = [[rng.randrange(1 << 20) for _ in range(MAX_LEN // BLOCK)] for _ in slots]
        table = torch.tensor(pages, dtype=torch.int32, device=args.device)
        synchronise()
        builder = fwdmeta.Builder(
            backend=fwdmeta.Backend.CUDA if on_cuda else fwdmeta.Backend.HOST, max_batch_size=len(slots),
            max_num_tokens=sum(slot[2] for slot in slots), max_model_len=MAX_LEN, num_q_heads=Q_HEADS,
            num_kv_heads=KV_HEADS, block_size=BLOCK, encoder_block_shape_q=ENCODER_ROWS,
            decoder_block_shape_q=DECODER_ROWS,
        )
        batch = fwdmeta.Batch(e, d, n, memory_kind=fwdmeta.MemoryKind.DEVICE, block_tables=table,
                              stream=torch.cuda.current_stream() if on_cuda else None)
        with builder.build(batch) as meta:
            wrong = differences(meta, eager_step(e, d, n, table))
        by_torch = measure(lambda: eager_step(e, d, n, table), synchronise, args.repeats)
        by_library = measure(lambda: builder.enqueue(batch), synchronise, args.repeats)
        builder.close()
        all_right = all_right and not wrong
        print(f"{name:22}{by_torch[0]:9.1f}{by_torch[1]:9.1f}{by_library[0]:9.1f}{by_library[1]:9.1f}"
              f"{by_torch[1] / by_library[1]:19.1f}x   {'differ: ' + ', '.join(wrong) if wrong else 'the same'}")
    return 0 if all_right else 1


if __name__ == "__main__":
    sys.exit(main())
