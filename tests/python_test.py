#!/usr/bin/env python3
"""examples/python/fwdmeta.py over the library: its structs and numbers against the header, the vectors of tests/data in
every array, DLPack capsules with takers that behave and that do not, NumPy where it is, and errors.

    FWDMETA_LIBRARY=build/src/libfwdmeta.so.1 tests/python_test.py [TEST...]

Exits with 77 where every test was skipped; each says why.
"""
import array
import ctypes
import gc
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "examples" / "python"))
import fwdmeta  # noqa: E402

try:
    import numpy
except ImportError:
    numpy = None

HOST, DEVICE = fwdmeta.MemoryKind.HOST, fwdmeta.MemoryKind.DEVICE
HEADERS = [ROOT / "capi" / "fwdmeta.h", ROOT / "capi" / "fwdmeta_context.h"]
STRUCTS = {
    c._c_name_: c for c in vars(fwdmeta).values() if isinstance(c, type) and issubclass(c, fwdmeta.Struct) and c._c_name_
}


def small_builder(**values):
    defaults = {"max_batch_size": 8, "max_num_tokens": 64, "max_model_len": 4096, "num_q_heads": 64, "num_kv_heads": 8}
    return fwdmeta.Builder(backend=fwdmeta.Backend.HOST, **{**defaults, **values})


def small_batch(kind=HOST, **values):
    """A decode with drafts, an idle slot, a prompt behind cached tokens, a decode."""
    return fwdmeta.Batch([0, 7, 20, 0], [10, 50, 118, 200], [3, 0, 20, 1], memory_kind=kind, **values)


POSITIONS = [10, 11, 12, *range(118, 138), 200]


class Mirror(unittest.TestCase):
    """The module says what the header says."""

    def test_layout(self):
        golden = (ROOT / "tests" / "abi_golden.inc").read_text()
        sizes = dict(re.findall(r"^STRUCT\((\w+), (\d+)\)", golden, re.M))
        fields = {}
        for struct, name, offset, size in re.findall(r"^FIELD\((\w+), (\w+), (\d+), (\d+)\)", golden, re.M):
            fields.setdefault(struct, []).append((name, int(offset), int(size)))
        self.assertGreater(len(STRUCTS), 20)
        for name, struct in STRUCTS.items():
            mine = [(n, getattr(struct, n).offset, getattr(struct, n).size) for n, _ in struct._field_types()]
            self.assertEqual(fields[name], mine, name)
            self.assertEqual(int(sizes[name]), ctypes.sizeof(struct), name)

    def test_numbers(self):
        text = "".join(path.read_text() for path in HEADERS)
        numbers = {n: int(v, 0) for n, v in re.findall(r"\bFWDMETA_(\w+) = (\w+)", text) if re.match(r"\d", v)}
        statuses = re.search(r"typedef int32_t fwdmeta_status_t;\nenum \{(.*?)\}", text, re.S)[1]
        prefixes = [
            (fwdmeta.Backend, "BACKEND_"), (fwdmeta.Attention, "ATTENTION_"), (fwdmeta.MemoryKind, "MEMORY_"),
            (fwdmeta.Field, "FIELD_"), (fwdmeta.Attr, "ATTR_"), (fwdmeta.ForwardMode, "FORWARD_"),
            (fwdmeta.GraphMode, "GRAPH_"), (fwdmeta.GraphSupport, "SUPPORT_"),
            (fwdmeta.DispatchReason, "DISPATCH_"),
        ]
        for kind, prefix in prefixes:
            header = {n[len(prefix):]: v for n, v in numbers.items() if n.startswith(prefix)}
            header.pop("COUNT", None)
            self.assertEqual(header, {m.name: m.value for m in kind}, kind)
        header = dict(re.findall(r"FWDMETA_(\w+) = (\d+)", statuses))
        header.pop("STATUS_COUNT")
        self.assertEqual({n: int(v) for n, v in header.items()}, {m.name: m.value for m in fwdmeta.Status})
        devices = {m.name: numbers["DLPACK_" + m.name] for m in fwdmeta.DLDevice}
        self.assertEqual(devices, {m.name: m.value for m in fwdmeta.DLDevice})
        library = fwdmeta.load()
        self.assertEqual(fwdmeta.API_VERSION, library.version)
        for field in fwdmeta.Field:
            self.assertEqual(field.name.lower(), library.field_name(field))
        self.assertIsNone(library.field_name(len(fwdmeta.Field)))

    def test_defaults_are_the_initializers(self):
        compiler = os.environ.get("FWDMETA_CC") or shutil.which("cc")
        if compiler is None:
            self.skipTest("no C compiler to ask the header with")
        text = "".join(path.read_text() for path in HEADERS)
        names = [n for n in STRUCTS if n[:-2].upper() + "_INITIALIZER" in text]
        self.assertGreater(len(names), 15)
        lines = ["#include <stdio.h>", "#include <fwdmeta.h>"]
        lines += [f"static {n} v_{n} = {n[:-2].upper()}_INITIALIZER;" for n in names]
        lines += ["int main(void) {", *[f"fwrite(&v_{n}, sizeof v_{n}, 1, stdout);" for n in names], "return 0; }"]
        with tempfile.TemporaryDirectory() as folder:
            source, program = pathlib.Path(folder, "v.c"), pathlib.Path(folder, "v")
            source.write_text("\n".join(lines))
            subprocess.run([compiler, "-w", f"-I{ROOT / 'capi'}", str(source), "-o", str(program)], check=True)
            given = subprocess.run([str(program)], check=True, stdout=subprocess.PIPE).stdout
        for name in names:
            size = ctypes.sizeof(STRUCTS[name])
            self.assertEqual(given[:size], bytes(STRUCTS[name]()), name)
            given = given[size:]


class Vectors(unittest.TestCase):
    def test_every_array(self):
        folder = os.environ.get("FWDMETA_TEST_DATA", str(ROOT / "tests" / "data"))
        lines = pathlib.Path(folder, "batches.jsonl").read_text().splitlines()
        self.assertEqual(72, len(lines))
        for line in lines:
            vector = json.loads(line)
            with self.subTest(vector["name"]):
                self.run_vector(vector["input"], vector["expected"])

    def run_vector(self, given, expected):
        config, batch = dict(given["config"]), dict(given["batch"])
        groups = config.pop("groups", None)
        if groups is not None:
            groups = [fwdmeta.GroupConfig(**{k: int(v) for k, v in group.items()}) for group in groups]
        attention = fwdmeta.Attention[config.pop("attention", "append").upper()]
        builder = fwdmeta.Builder(fwdmeta.Config(backend=fwdmeta.Backend.HOST, attention=attention, groups=groups,
                                                 **config))
        lengths = [batch.pop("seq_lens_" + name) for name in ("encoder", "decoder", "this_time")]
        for kind in (HOST, DEVICE):
            step = fwdmeta.Batch(*lengths, memory_kind=kind, grouped=groups is not None and "block_tables" in batch,
                                 **batch)
            with builder.build(step) as meta:
                counts = meta.counts(final=True).as_dict()
                for name, value in expected["counts"].items():
                    self.assertEqual(value, counts[name], name)
                for name, want in expected["fields"].items():
                    per_group = bool(want) and isinstance(want[0], list)
                    for group, values in enumerate(want if per_group else [want]):
                        got = meta.array(name, group, live=True)
                        self.assertEqual(values, got.tolist(), name)
                        self.assertEqual((len(values),), got.shape, name)
        builder.close()


class Steps(unittest.TestCase):
    def test_capacities(self):
        config = fwdmeta.Config(backend=fwdmeta.Backend.HOST, max_batch_size=8, max_num_tokens=64, max_model_len=256,
                                num_q_heads=8, num_kv_heads=1)
        whole = fwdmeta.capacities(config)
        self.assertEqual((64 * 8) // 16 + 8 - 1, whole.decoder)
        self.assertEqual(4, whole.block_table_width[0])
        self.assertEqual(2 * 8 // 16 + 2 - 1, fwdmeta.capacities(config, slots=2, tokens=2).decoder)
        self.assertEqual(8, fwdmeta.capacities(config, block_table_alignment=8).block_table_width[0])
        with fwdmeta.Builder(config) as builder:
            self.assertEqual(whole.host_bytes, builder.info().host_bytes)

    def test_inputs_of_all_kinds(self):
        lists = [0, 7, 20, 0], [10, 50, 118, 200], [3, 0, 20, 1]
        held = [array.array("i", values) for values in lists]
        kinds = {
            "lists": lists,
            "buffers": held,
            "read-only buffers": [memoryview(bytes(values)).cast("i") for values in held],
            "addresses": [values.buffer_info()[0] for values in held],
        }
        with small_builder() as builder:
            for kind, lengths in kinds.items():
                count = 4 if kind == "addresses" else None
                with builder.build(fwdmeta.Batch(*lengths, memory_kind=HOST, batch_size=count)) as meta:
                    self.assertEqual(POSITIONS, meta.array("position_ids", live=True).tolist(), kind)
        self.assertRaises(TypeError, fwdmeta.Batch, *[array.array("q", v) for v in lists], memory_kind=HOST)
        self.assertRaises(TypeError, fwdmeta.Batch, *[array.array("f", v) for v in lists], memory_kind=HOST)
        self.assertRaises(OverflowError, fwdmeta.Batch, [2**31], [0], [1], memory_kind=HOST)
        self.assertRaises(ValueError, fwdmeta.Batch, [0], [0, 0], [1], memory_kind=HOST)
        self.assertRaises(ValueError, fwdmeta.Batch, 8, 8, 8, memory_kind=HOST)
        for name in ("block_tables", "input_ids", "draft_tokens"):
            for rows in ([[1]], [[1], [2]], [1, 2, 3]):
                with self.assertRaisesRegex(ValueError, name):
                    fwdmeta.Batch([0] * 3, [3] * 3, [1] * 3, memory_kind=HOST, **{name: rows})
        for helper in (fwdmeta.split_by_role, fwdmeta.reorder_by_role):
            with self.assertRaisesRegex(ValueError, "seq_lens_encoder has 8 entries, seq_lens_this_time 1"):
                helper([0] * 8, [1])
        self.assertRaises(TypeError, fwdmeta.Batch, *lists)  # the kind of memory is stated

    def test_outputs_and_groups(self):
        wanted = [fwdmeta.Field.SLOT_MAPPING, fwdmeta.Field.CU_SEQLENS_Q]
        groups = [fwdmeta.GroupConfig(block_size=16), fwdmeta.GroupConfig(block_size=32)]
        tables = [[[5, 6], [7]], [[1], [2]]]
        with small_builder(outputs=wanted, groups=groups) as builder:
            batch = fwdmeta.Batch([0, 0], [17, 3], [1, 1], memory_kind=HOST, block_tables=tables, grouped=True)
            with builder.build(batch) as meta:
                self.assertEqual([6 * 16 + 1, 7 * 16 + 3], meta.array("slot_mapping", live=True).tolist())
                self.assertEqual([1 * 32 + 17, 2 * 32 + 3], meta.array("slot_mapping[1]", live=True).tolist())
                self.assertEqual([0, 1, 2], meta.array("cu_seqlens_q", live=True).tolist())
                with self.assertRaises(fwdmeta.Error) as caught:
                    meta["position_ids"]
                self.assertEqual(fwdmeta.Status.NOT_FOUND, caught.exception.status)
                self.assertRaises(KeyError, meta.array, "no_such_array")
                self.assertRaises(KeyError, meta.array, "slot_mapping[9]")

    def test_meta(self):
        with small_builder() as builder, builder.build(small_batch()) as meta:
            self.assertEqual(1, meta.step)
            self.assertEqual(fwdmeta.ForwardMode.MIXED, meta.forward_mode)
            meta.set_attr(fwdmeta.Attr.MOE_NUM_CHUNK, 3)
            self.assertEqual(3, meta.attr(fwdmeta.Attr.MOE_NUM_CHUNK))
            self.assertEqual(24, builder.wait(1).num_tokens)
            dump = json.loads(meta.dump(json=True))
            self.assertIn("position_ids", json.dumps(dump))
            self.assertIn("position_ids", meta.dump())
            mine = (ctypes.c_int32 * 3)(1, 2, 3)
            tensor = fwdmeta.Tensor(data=ctypes.addressof(mine), memory_kind=HOST, ndim=1)
            tensor.shape[0], tensor.strides[0] = 3, 1
            meta.set_tensor("block_tables", tensor, keep=mine)
            self.assertEqual(ctypes.addressof(mine), meta.tensor("block_tables").data)
            meta.set_tensor("block_tables", None)
            self.assertRaises(fwdmeta.Error, meta.tensor, "block_tables")
            with meta.reader(None):
                self.assertRaises(fwdmeta.Error, meta.close)  # BUSY, and still open
            self.assertEqual(1, meta.step)
        self.assertEqual(0, meta.handle)
        meta.close()

    def test_advance(self):
        e, d, n = (array.array("i", v) for v in ([0, 0, 4], [10, 20, 0], [2, 2, 4]))
        with small_builder() as builder:
            builder.advance(e, d, n, num_rejected=[1, 0, 0], stop=[0, 1, 0], num_draft_tokens=1)
            self.assertEqual(([0, 0, 0], [11, 22, 4], [2, 0, 2]), (list(e), list(d), list(n)))
            self.assertEqual(1, builder.wait_advance().num_stopped)
            self.assertRaises(TypeError, builder.advance, [0], [1], [1])  # a copy would be advanced

    def test_errors(self):
        with self.assertRaises(fwdmeta.Error) as caught:
            small_builder(max_batch_size=0)
        self.assertEqual(fwdmeta.Status.INVALID_ARGUMENT, caught.exception.status)
        self.assertIn("INVALID_ARGUMENT: max_batch_size is 0", str(caught.exception))
        self.assertRaises(TypeError, fwdmeta.Config, max_batch=3)
        self.assertRaises(OverflowError, fwdmeta.Config, max_batch_size=2**64)
        self.assertRaises(OSError, fwdmeta.Library, "/nonexistent/libfwdmeta.so.1")
        bad = [0], [-5], [1]
        with small_builder() as builder:
            with self.assertRaises(fwdmeta.Error) as caught:
                builder.build(fwdmeta.Batch(*bad, memory_kind=HOST))
            self.assertEqual(fwdmeta.Status.INVALID_BATCH, caught.exception.status)
            self.assertIn("-5", caught.exception.message)
            with builder.build(fwdmeta.Batch(*bad, memory_kind=DEVICE)) as meta:
                self.assertRaises(fwdmeta.Error, meta.counts)
                self.assertRaises(fwdmeta.Error, meta.array, "cu_seqlens_q", live=True)
                self.assertEqual([0] * 9, meta["cu_seqlens_q"].tolist())
            array_of_closed = builder.build(small_batch())["cu_seqlens_q"]
            array_of_closed._meta.close()
            with self.assertRaises(fwdmeta.Error) as caught:
                array_of_closed.__dlpack__()
            self.assertEqual(fwdmeta.Status.INVALID_HANDLE, caught.exception.status)
            old = builder.build(small_batch())
            for _ in range(4):
                builder.enqueue(small_batch())
            with self.assertRaises(fwdmeta.Error) as caught:
                old["max_len_tensor_cpu"]
            self.assertEqual(fwdmeta.Status.EXPIRED, caught.exception.status)
            old.close()


class Memory:
    """Memory of a builder that the test sees come and go."""

    def __init__(self):
        self.blocks = {}
        self.alloc = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t, ctypes.c_void_p)(self.get)
        self.free = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p)(self.put)

    def get(self, size, alignment, _):
        raw = ctypes.create_string_buffer(size + alignment)
        address = (ctypes.addressof(raw) + alignment - 1) // alignment * alignment
        self.blocks[address] = raw
        return address

    def put(self, address, _size, _user):
        del self.blocks[address]

    def allocator(self):
        return fwdmeta.Allocator(alloc=ctypes.cast(self.alloc, ctypes.c_void_p).value,
                                 free=ctypes.cast(self.free, ctypes.c_void_p).value)


_api = ctypes.pythonapi
_is_valid = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.c_char_p)(("PyCapsule_IsValid", _api))
_get_pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(("PyCapsule_GetPointer", _api))
_set_name = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.c_char_p)(("PyCapsule_SetName", _api))
USED = {b"dltensor": b"used_dltensor", b"dltensor_versioned": b"used_dltensor_versioned"}


class HeldMemory(unittest.TestCase):
    """A step whose memory has to be free at the end."""

    def setUp(self):
        self.memory = Memory()
        self.builder = small_builder(host_allocator=self.memory.allocator())
        self.meta = self.builder.build(small_batch())

    def tearDown(self):
        self.meta.close()
        self.builder.close()
        gc.collect()
        self.assertEqual({}, self.memory.blocks, "memory is still held")

    def end_handles(self):
        self.meta.close()
        self.builder.close()


class Capsules(HeldMemory):
    """The protocol, with takers written here."""

    def take(self, capsule, name):
        """What from_dlpack does: the tensor's struct, whose deleter the caller owes."""
        self.assertTrue(_is_valid(capsule, name))
        address = _get_pointer(capsule, name)
        _set_name(capsule, USED[name])
        struct = fwdmeta._Managed if name == b"dltensor" else fwdmeta._ManagedVersioned
        return address, struct.from_address(address)

    def test_versions(self):
        positions = self.meta["position_ids"]
        for version, name in ((None, b"dltensor"), ((0, 8), b"dltensor"), ((1, 0), b"dltensor_versioned"),
                              ((1, 3), b"dltensor_versioned"), ((2, 0), b"dltensor_versioned")):
            address, managed = self.take(positions.__dlpack__(max_version=version), name)
            self.assertEqual(positions.address, managed.tensor.data)
            self.assertEqual((1, 0, 1, 64, 64), (managed.tensor.ndim, managed.tensor.code, managed.tensor.lanes,
                                                 managed.tensor.bits, managed.tensor.shape[0]))
            if name == b"dltensor_versioned":
                self.assertEqual((1, 0, 1), (managed.major, managed.minor, managed.flags))
            managed.deleter(address)
        padding = self.meta["is_padding"]
        address, managed = self.take(padding.__dlpack__(), b"dltensor")
        self.assertEqual((6, 8), (managed.tensor.code, managed.tensor.bits))
        managed.deleter(address)

    def test_taken_tensor_holds_the_memory(self):
        address, managed = self.take(self.meta["position_ids"].__dlpack__(), b"dltensor")
        self.end_handles()
        gc.collect()
        self.assertEqual(1, len(self.memory.blocks))
        values = (ctypes.c_int64 * 24).from_address(managed.tensor.data)
        self.assertEqual(POSITIONS, list(values))
        thread = threading.Thread(target=managed.deleter, args=(address,))
        thread.start()
        thread.join()
        self.assertEqual({}, self.memory.blocks)

    def test_capsule_that_nobody_takes(self):
        capsules = [self.meta["position_ids"].__dlpack__(max_version=v) for v in (None, (1, 0))]
        self.end_handles()
        self.assertEqual(1, len(self.memory.blocks))
        del capsules
        gc.collect()
        self.assertEqual({}, self.memory.blocks)

    def test_taken_twice(self):
        capsule = self.meta["position_ids"].__dlpack__()
        address, managed = self.take(capsule, b"dltensor")
        self.assertFalse(_is_valid(capsule, b"dltensor"))
        del capsule
        managed.deleter(address)
        first, second = (self.take(self.meta["position_ids"].__dlpack__(), b"dltensor") for _ in range(2))
        self.assertNotEqual(first[0], second[0])
        for address, managed in (first, second):
            managed.deleter(address)

    def test_arguments(self):
        positions = self.meta["position_ids"]
        self.assertEqual((1, 0), positions.__dlpack_device__())
        for good in ({"stream": -1}, {"copy": False}, {"dl_device": (1, 0)}, {"dl_device": (fwdmeta.DLDevice.CPU, 0)}):
            positions.__dlpack__(**good)
        for bad in ({"stream": 1}, {"copy": True}, {"dl_device": (2, 0)}, {"dl_device": (1, 1)}):
            self.assertRaises(BufferError, positions.__dlpack__, **bad)
        self.assertRaises(TypeError, positions.__dlpack__, None)


@unittest.skipIf(numpy is None, "this python3 has no NumPy")
class Numpy(HeldMemory):
    """numpy.from_dlpack."""

    def test_every_array_without_a_copy(self):
        for field in fwdmeta.Field:
            if field == fwdmeta.Field.SEQ_LENS_KV_LOCAL:
                continue  # not built without context parallelism
            for live in (False, True):
                source = self.meta.array(field, live=live)
                try:
                    got = numpy.from_dlpack(source)
                except RuntimeError as error:
                    self.assertEqual((fwdmeta.Field.IS_PADDING, "Unsupported dtype in DLTensor."), (field, str(error)))
                    self.assertLess(tuple(map(int, numpy.__version__.split(".")[:2])), (1, 25))
                    continue
                self.assertEqual(source.dtype, str(got.dtype), field)
                self.assertEqual(source.shape, got.shape, field)
                self.assertEqual(source.tolist(), got.tolist(), field)
                if got.size:
                    self.assertEqual(source.address, got.ctypes.data, field)
                self.assertFalse(got.flags.writeable, field)
        del got, source

    def test_array_outlives_its_builder(self):
        got = numpy.from_dlpack(self.meta["position_ids"])
        self.end_handles()
        gc.collect()
        self.assertEqual(POSITIONS, got[:24].tolist())
        del got

    def test_zero_size(self):
        with self.builder.build(fwdmeta.Batch([], [], [], memory_kind=HOST)) as meta:
            self.assertEqual((0,), numpy.from_dlpack(meta.array("decoder_batch_ids", live=True)).shape)

    # A taker in C that refuses a capsule: its own message arrives, and the tensor is given back.
    def test_refusal_keeps_its_message(self):
        source = self.meta["position_ids"]
        source_type = type(source)

        class Odd(source_type):
            def __init__(self):
                self.__dict__.update(source.__dict__)

            def __dlpack__(self, **_):
                capsule = source_type.__dlpack__(self)
                fwdmeta._Managed.from_address(_get_pointer(capsule, b"dltensor")).tensor.lanes = 4
                return capsule

        with self.assertRaisesRegex((RuntimeError, BufferError), "lanes"):
            numpy.from_dlpack(Odd())

    def test_numpy_inputs(self):
        rows = numpy.arange(24, dtype=numpy.int32).reshape(4, 6)
        lengths = [numpy.array(v, dtype=numpy.int32) for v in ([0, 7, 20, 0], [10, 50, 118, 200], [3, 0, 20, 1])]
        for values in lengths:
            values.flags.writeable = False
        batch = fwdmeta.Batch(*[v.reshape(4, 1) for v in lengths], memory_kind=HOST, block_tables=rows[:, 1:5])
        with self.builder.build(batch) as meta:
            got = numpy.from_dlpack(meta.array("slot_mapping", live=True))
            page = [rows[b, 1 + p // 64] for b, p in zip([0] * 3 + [2] * 20 + [3], POSITIONS)]
            self.assertEqual([int(a) * 64 + p % 64 for a, p in zip(page, POSITIONS)], got.tolist())
            del got
        with self.assertRaisesRegex(ValueError, "block_tables has 1 rows"):
            fwdmeta.Batch(*lengths, memory_kind=HOST, block_tables=rows[:1])
        self.assertRaises(ValueError, fwdmeta.Batch, *lengths, memory_kind=HOST, block_tables=rows[:, ::2])
        self.assertRaises(TypeError, fwdmeta.Batch, *lengths, memory_kind=HOST, block_tables=rows.astype("i8"))


class ForwardContext(unittest.TestCase):
    def test_dispatch(self):
        dispatcher = fwdmeta.Dispatcher(fwdmeta.GraphMode.FULL_AND_PIECEWISE, max_num_seqs=8, max_num_tokens=64,
                                        capture_sizes=[1, 2, 4, 8, 16])
        self.assertEqual([1, 2, 4, 8, 16], dispatcher.sizes())
        keys = dispatcher.keys()
        info = dispatcher.info()
        self.assertEqual(len(keys), info.num_piecewise_keys + info.num_full_keys)
        self.assertEqual(fwdmeta.DispatchReason.NOT_CAPTURED, dispatcher.dispatch(3, 3, 1).reason)
        dispatcher.mark_captured(keys[-1])
        dispatcher.mark_captured()
        result = dispatcher.dispatch(3, 3, 1)
        self.assertEqual((fwdmeta.GraphMode.FULL, 4, 1), (result.mode, result.descriptor.num_tokens,
                                                          result.descriptor.uniform))
        self.assertEqual(4, dispatcher.dispatch_lengths([0, 0, 0], [1, 1, 1]).descriptor.num_tokens)
        mixed = dispatcher.dispatch_lengths([0, 5, 0], [1, 5, 1])
        self.assertEqual((fwdmeta.GraphMode.PIECEWISE, 8), (mixed.mode, mixed.descriptor.num_tokens))
        with self.assertRaises(fwdmeta.Error) as caught:
            dispatcher.dispatch(17, 3, allowed_modes=4)
        self.assertEqual(fwdmeta.Status.NO_GRAPH, caught.exception.status)

        rows = [fwdmeta.RankRow(num_tokens=n, num_reqs=n, config=info.config_hash, step=7,
                                max_mode=fwdmeta.GraphMode.FULL, query_len=1) for n in (3, 5)]
        for row in rows:
            row.config = dispatcher.info().config_hash
        agreement, tokens = fwdmeta.agree(dispatcher, rows)
        self.assertEqual((fwdmeta.GraphMode.FULL, 8, [8, 8]), (agreement.mode, agreement.descriptor.num_tokens, tokens))
        rows[1].step = 8
        with self.assertRaises(fwdmeta.Error) as caught:
            fwdmeta.agree(dispatcher, rows)
        self.assertEqual(fwdmeta.Status.RANK_MISMATCH, caught.exception.status)
        dispatcher.close()

    def test_slices(self):
        slices = fwdmeta.plan_slices([3, 20, 1], [13, 138, 201], 2)
        self.assertEqual([(0, 2, 0, 12, 12), (1, 3, 12, 24, 12)],
                         [(s.first_req, s.end_req, s.first_token, s.end_token, s.num_tokens) for s in slices])
        self.assertEqual(([0, 3, 12], [13, 127], [10, 118]),
                         fwdmeta.slice_lengths([3, 20, 1], [13, 138, 201], slices[0], 2))
        self.assertRaises(fwdmeta.Error, fwdmeta.plan_slices, [3], [2], 2)

    def test_helpers(self):
        split = fwdmeta.split_by_role([0, 7, 20, 0], [3, 0, 20, 1])
        self.assertEqual((2, 1, 4, 20), (split.num_decodes, split.num_prefills, split.num_decode_tokens,
                                         split.num_prefill_tokens))
        self.assertEqual([0, 3, 2, 1], fwdmeta.reorder_by_role([0, 7, 20, 0], [3, 0, 20, 1]))

    def test_context(self):
        layers = fwdmeta.Layers()
        self.assertEqual([0, 1], [layers.add("attn.0"), layers.add("moe.0", is_moe=True)])
        self.assertEqual((1, 2), (layers.find("moe.0"), len(layers)))
        dispatcher = fwdmeta.Dispatcher(fwdmeta.GraphMode.PIECEWISE, max_num_seqs=8, max_num_tokens=64,
                                        capture_sizes=[24])
        dispatcher.mark_captured()
        with small_builder() as builder, builder.build(small_batch()) as meta:
            context = fwdmeta.Context(layers, max_slices=2)
            context.set_meta(meta)
            context.set_dispatch(dispatcher.dispatch(24, 3))
            context.set_slices(fwdmeta.plan_slices([3, 20, 1], [13, 138, 201], 2))
            context.set_skip_compiled(True)
            context.set("alpha", 0.5)
            context.set("layers", 2)
            self.assertRaises(fwdmeta.Error, fwdmeta.current_context)
            with context.pushed():
                self.assertEqual(context.handle, fwdmeta.current_context())
                self.assertEqual(meta.handle, context.meta_handle(1))
                self.assertEqual((fwdmeta.GraphMode.PIECEWISE, 24), (context.runtime_mode,
                                                                     context.descriptor.num_tokens))
                self.assertEqual([12, 12], [part.num_tokens for part in context.slices])
                self.assertEqual((True, 0.5, 2), (context.skip_compiled, context.get_float("alpha"),
                                                  context.get_int("layers")))
                self.assertEqual(1, context.next_moe_layer())
                seen = []

                def elsewhere():
                    with context.overriding():
                        seen.append(fwdmeta.current_context())

                thread = threading.Thread(target=elsewhere)
                thread.start()
                thread.join()
                self.assertEqual([context.handle], seen)
            with self.assertRaises(fwdmeta.Error) as caught:
                context.get_int("layers")
            self.assertEqual(fwdmeta.Status.EXPIRED, caught.exception.status)
            context.close()


def main():
    program = unittest.main(exit=False, verbosity=1)
    result = program.result
    if result.wasSuccessful() and result.testsRun == len(result.skipped):
        for _, reason in result.skipped:
            print("skipped:", reason)
        return 77
    return 0 if result.wasSuccessful() else 1


if __name__ == "__main__":
    sys.exit(main())
