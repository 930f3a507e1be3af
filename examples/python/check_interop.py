#!/usr/bin/env python3
"""Checks that NumPy, torch and CuPy take the library's arrays by DLPack without a copy, from host and device.

    python3 examples/python/check_interop.py --library build/src/libfwdmeta.so.1

One line a check: ok, FAILED or skipped, with the reason. Exits with 1 where one failed, or where what --require names
(numpy, torch, cupy, cuda; separated by commas) is missing.
"""

from __future__ import annotations

import argparse
import functools
import gc
import importlib
import sys
import threading
import time
import traceback
from typing import Any, Callable, Dict, List, Optional, Tuple

import fwdmeta

CONFIG: Dict[str, Any] = {
    "max_batch_size": 16, "max_num_tokens": 64, "max_model_len": 1024, "num_q_heads": 64,
    "num_kv_heads": 8, "num_sms": 132, "cp_size": 2,
}
ENCODER, DECODER, THIS_TIME = [0, 7, 20, 0], [10, 50, 118, 200], [3, 0, 20, 1]
TABLE = [[8 * slot + column for column in range(8)] for slot in range(4)]
PADDED = 32
FIELDS = list(fwdmeta.Field)
CPU_FIELDS = [field for field in FIELDS if field.name.endswith("_CPU")]
DEVICE_FIELDS = [field for field in FIELDS if field not in CPU_FIELDS]


class Skip(Exception):
    pass


class Checks:
    """Runs the checks and keeps how they ended."""

    def __init__(self, required: List[str]) -> None:
        self.required = required
        self.failed = 0

    def say(self, outcome: str, name: str, text: str = "") -> None:
        print(f"{outcome:8} {name}{': ' + text if text else ''}", flush=True)

    def run(self, name: str, check: Callable[[], Optional[str]]) -> None:
        try:
            self.say("ok", name, check() or "")
        except Skip as reason:
            self.say("skipped", name, str(reason))
        except Exception as error:  # a check that fails leaves the others to run
            self.failed += 1
            self.say("FAILED", name, f"{type(error).__name__}: {error}")
            traceback.print_exc(limit=3)

    def missing(self, name: str, reason: str) -> None:
        if name in self.required:
            self.failed += 1
            self.say("FAILED", name, f"required, and {reason}")
        else:
            self.say("skipped", name, reason)


def expect(holds: bool, what: str) -> None:
    if not holds:
        raise AssertionError(what)


def module(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except Exception as error:  # also a module that is there and cannot load
        print(f"         {name} cannot be imported: {error}")
        return None


def host_step() -> Tuple[fwdmeta.Builder, fwdmeta.ForwardMeta]:
    builder = fwdmeta.Builder(backend=fwdmeta.Backend.HOST, **CONFIG)
    batch = fwdmeta.Batch(ENCODER, DECODER, THIS_TIME, memory_kind=fwdmeta.MemoryKind.HOST, num_padded_tokens=PADDED,
                          block_tables=TABLE)
    return builder, builder.build(batch)


def expected_values() -> Dict[Tuple[fwdmeta.Field, bool], List[int]]:
    """By field and live: what the host backend gives, which is what CUDA has to give too."""
    builder, meta = host_step()
    values = {(field, live): meta.array(field, live=live).tolist() for field in FIELDS for live in (False, True)}
    meta.close()
    builder.close()
    return values


class Taker:
    """A library that takes tensors: its from_dlpack, and what can be asked of its arrays."""

    def __init__(self, name: str, lib: Any) -> None:
        self.name = name
        self.lib = lib

    def take(self, array: fwdmeta.Array) -> Any:
        return self.lib.from_dlpack(array)

    def pointer(self, taken: Any) -> int:
        if self.name == "torch":
            return int(taken.data_ptr())
        return int(taken.data.ptr if self.name == "cupy" else taken.ctypes.data)

    def knows_bool(self) -> bool:
        version = tuple(int(part) for part in self.lib.__version__.split(".")[:2])
        return {"torch": version >= (2, 1), "numpy": version >= (1, 25)}.get(self.name, True)

    def check(self, meta: fwdmeta.ForwardMeta, fields: List[fwdmeta.Field], values: Dict[Any, List[int]],
              as_cpu: bool = False) -> str:
        taken_fields = 0
        for field in fields:
            if field == fwdmeta.Field.IS_PADDING and not self.knows_bool():
                continue
            taken_fields += 1
            for live in (False, True):
                array = meta.array(field, live=live)
                array = array.as_cpu() if as_cpu else array
                taken = self.take(array)
                want = values[field, live]
                what = f"{field.name.lower()}{' live' if live else ''}"
                expect(taken.tolist() == want, f"{what} is {taken.tolist()[:8]}..., expected {want[:8]}...")
                expect(str(taken.dtype).replace("torch.", "") == array.dtype, f"{what} is of {taken.dtype}")
                if want:
                    expect(self.pointer(taken) == array.address, f"{what} is a copy")
        left_out = "" if taken_fields == len(fields) else f"; {self.name} {self.lib.__version__} takes no bool"
        return f"{taken_fields} arrays, whole and live, at their own addresses{left_out}"


def check_host(checks: Checks, takers: Dict[str, Taker], values: Dict[Any, List[int]]) -> None:
    builder, meta = host_step()
    for name in ("numpy", "torch"):
        if name not in takers:
            continue
        taker = takers[name]
        checks.run(f"{name}, host backend", functools.partial(taker.check, meta, FIELDS, values))

        def empty(taker: Taker = taker) -> str:
            nothing = fwdmeta.Batch([], [], [], memory_kind=fwdmeta.MemoryKind.HOST)
            with fwdmeta.Builder(backend=fwdmeta.Backend.HOST, **CONFIG) as other, other.build(nothing) as step:
                taken = taker.take(step.array("decoder_batch_ids", live=True))
                expect(tuple(taken.shape) == (0,), f"the shape is {tuple(taken.shape)}")
                return "shape (0,)"

        checks.run(f"{name}, an array without elements", empty)

        def outlive(taker: Taker = taker) -> None:
            other, step = host_step()
            taken = taker.take(step["position_ids"])
            step.close()
            other.close()
            gc.collect()
            expect(taken.tolist() == values[fwdmeta.Field.POSITION_IDS, False], "the content is gone")

        checks.run(f"{name}, a tensor outlives its builder", outlive)

    def writing() -> str:
        says: List[str] = []
        if "numpy" in takers:
            expect(not takers["numpy"].take(meta["position_ids"]).flags.writeable, "NumPy would write")
            says.append("numpy refuses to write")
        if "torch" in takers:
            takers["torch"].take(meta["position_ids"])
            says.append("torch has no such flag and takes it")
        if not says:
            raise Skip("neither NumPy nor torch")
        return "; ".join(says)

    checks.run("the read-only flag", writing)
    meta.close()
    builder.close()


class Cuda:
    """Steps on CUDA, with torch for the inputs, the streams and the graph."""

    def __init__(self, torch: Any) -> None:
        self.torch = torch

    def ints(self, values: List[Any]) -> Any:
        return self.torch.tensor(values, dtype=self.torch.int32, device="cuda")

    def builder(self, **values: Any) -> fwdmeta.Builder:
        return fwdmeta.Builder(backend=fwdmeta.Backend.CUDA, **{**CONFIG, **values})

    def batch(self, decoder: List[int] = DECODER, **values: Any) -> fwdmeta.Batch:
        lengths = [self.ints(v) for v in (ENCODER, decoder, THIS_TIME)]
        tables = self.ints(TABLE)
        self.torch.cuda.synchronize()  # the inputs are there on every stream
        return fwdmeta.Batch(*lengths, memory_kind=fwdmeta.MemoryKind.DEVICE, num_padded_tokens=PADDED,
                             block_tables=tables, **values)

    def check_streams(self, taker: Taker) -> str:
        """A taker on another stream waits for a build that is held up; one that asks for no order does not."""
        torch, seen = self.torch, {}
        for synchronise in (True, False):
            builder = self.builder()
            build, other = torch.cuda.Stream(), torch.cuda.Stream()
            with builder.build(self.batch([1, 50, 118, 200], stream=build)) as before:
                self.copy_on(taker, before["position_ids"], other)  # memory and kernels are there from now on
            torch.cuda.synchronize()
            batch = self.batch(stream=build)
            with torch.cuda.stream(build):
                torch.cuda._sleep(400_000_000)  # clock cycles: some tenths of a second
            meta = builder.build(batch)
            array = meta.array("position_ids", synchronise=synchronise)
            seen[synchronise] = self.copy_on(taker, array, other)
            torch.cuda.synchronize()
            meta.close()
            builder.close()
        expect(seen[True][:3] == [10, 11, 12], f"the consumer's stream saw {seen[True][:3]} instead of 10, 11, 12")
        expect(seen[False][:3] == [1, 2, 3], f"without order it saw {seen[False][:3]}: the build was not held up")
        return "waits on the device; without synchronise it would have seen the step before"

    def copy_on(self, taker: Taker, array: fwdmeta.Array, stream: Any) -> List[int]:
        if taker.name == "torch":
            with self.torch.cuda.stream(stream):
                copy = taker.take(array).clone()
            stream.synchronize()
            return list(copy.tolist())
        cupy = taker.lib
        with cupy.cuda.ExternalStream(stream.cuda_stream) as external:
            copy = taker.take(array).copy()
            external.synchronize()
            return list(copy.tolist())

    def check_stream_numbers(self) -> None:
        with self.builder() as builder, builder.build(self.batch()) as meta:
            positions = meta["position_ids"]
            for number in (None, 1, 2, -1, self.torch.cuda.Stream().cuda_stream):
                positions.__dlpack__(stream=number)
            for number in (0, -2):
                try:
                    positions.__dlpack__(stream=number)
                except fwdmeta.Error as error:
                    expect(error.status == fwdmeta.Status.INVALID_ARGUMENT, str(error))
                else:
                    raise AssertionError(f"stream {number} was taken")

    def check_memory(self, taker: Taker) -> str:
        """The builder's memory stays while a tensor lives, and is freed after it, on another thread too."""
        torch = self.torch
        gc.collect()
        torch.cuda.synchronize()
        builder = self.builder(max_num_tokens=4 << 20)
        size = builder.info().device_bytes
        with_builder = torch.cuda.mem_get_info()[0]
        meta = builder.build(self.batch())
        taken = [taker.take(meta["position_ids"])]
        first = taken[0][:3].tolist()
        meta.close()
        builder.close()
        del meta, builder
        gc.collect()
        time.sleep(0.2)
        held = torch.cuda.mem_get_info()[0]
        expect(held < with_builder + size // 2, "the memory was freed while a tensor lives")
        expect(taken[0][:3].tolist() == first == [10, 11, 12], "the content is gone")
        thread = threading.Thread(target=taken.clear)
        thread.start()
        thread.join()
        gc.collect()
        deadline = time.monotonic() + 10
        while torch.cuda.mem_get_info()[0] < with_builder + size // 2:
            expect(time.monotonic() < deadline, f"{size >> 20} MiB were not freed after the last tensor")
            time.sleep(0.01)
        return f"{size >> 20} MiB"

    def check_graph(self) -> str:
        """A build and its consumer captured by torch: every replay follows the lengths."""
        torch = self.torch
        builder = self.builder()
        lengths = [self.ints(v) for v in (ENCODER, DECODER, THIS_TIME)]
        torch.ones(64, dtype=torch.int64, device="cuda") * 2  # the kernel is loaded before the capture
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            stream = torch.cuda.current_stream()
            batch = fwdmeta.Batch(*lengths, memory_kind=fwdmeta.MemoryKind.DEVICE, num_padded_tokens=PADDED,
                                  stream=stream)
            meta = builder.build(batch)
            doubled = torch.from_dlpack(meta["position_ids"]) * 2
        for first in (10, 33):
            lengths[1][0] = first
            graph.replay()
            torch.cuda.synchronize()
            got = doubled[:3].tolist()
            expect(got == [2 * first, 2 * first + 2, 2 * first + 4], f"a replay gave {got} for position {first}")
        try:
            meta["position_ids"].__dlpack__(stream=torch.cuda.Stream().cuda_stream)
        except fwdmeta.Error as error:
            expect(error.status == fwdmeta.Status.UNAVAILABLE, str(error))
        else:
            raise AssertionError("a captured build's array was ordered behind replays that nobody knows")
        torch.from_dlpack(meta.array("position_ids", synchronise=False))
        meta.close()
        del graph
        builder.close()
        return "two replays"


def check_cuda(checks: Checks, takers: Dict[str, Taker], values: Dict[Any, List[int]]) -> None:
    torch = takers["torch"].lib if "torch" in takers else None
    if torch is None or not torch.cuda.is_available():
        checks.missing("cuda", "these checks need a torch that has a CUDA device")
        return
    torch.cuda.init()
    torch.zeros(1, device="cuda")
    cuda = Cuda(torch)
    try:
        builder = cuda.builder()
    except fwdmeta.Error as error:
        checks.missing("cuda", str(error))
        return
    meta = builder.build(cuda.batch())
    for name in ("torch", "cupy"):
        if name in takers:
            taker = takers[name]
            checks.run(f"{name}, CUDA", functools.partial(taker.check, meta, DEVICE_FIELDS, values))
    if "numpy" in takers:
        numpy = takers["numpy"]
        checks.run("numpy, pinned memory", lambda: numpy.check(meta, CPU_FIELDS, values))

        def refused() -> str:
            try:
                numpy.take(meta["position_ids"])
            except (RuntimeError, BufferError) as error:
                expect("NULL without" not in str(error), str(error))
                return f"{type(error).__name__}: {error}"
            raise AssertionError("NumPy took device memory")

        checks.run("numpy refuses device memory in its own words", refused)
    checks.run("torch, pinned memory as plain", lambda: takers["torch"].check(meta, CPU_FIELDS, values, as_cpu=True))
    meta.close()
    builder.close()
    checks.run("the numbers of streams", cuda.check_stream_numbers)
    for name in ("torch", "cupy"):
        if name in takers:
            taker = takers[name]
            checks.run(f"{name}, its stream waits for the build", functools.partial(cuda.check_streams, taker))
            checks.run(f"{name}, a tensor outlives its builder", functools.partial(cuda.check_memory, taker))
    checks.run("torch, a captured build", cuda.check_graph)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--library", help="libfwdmeta.so.1; else FWDMETA_LIBRARY, else by the loader")
    parser.add_argument("--require", default="", help="what may not be missing, separated by commas")
    args = parser.parse_args()
    library = fwdmeta.load(args.library)
    print(f"libfwdmeta {library.version} of {library.path}, Python {sys.version.split()[0]}")
    checks = Checks([name for name in args.require.split(",") if name])
    takers = {}
    for name in ("numpy", "torch", "cupy"):
        lib = module(name)
        if lib is None:
            checks.missing(name, "it cannot be imported")
        else:
            takers[name] = Taker(name, lib)
            print(f"         {name} {lib.__version__}")
    values = expected_values()
    check_host(checks, takers, values)
    check_cuda(checks, takers, values)
    print(f"{checks.failed} failed" if checks.failed else "all good")
    return 1 if checks.failed else 0


if __name__ == "__main__":
    sys.exit(main())
