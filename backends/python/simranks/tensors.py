"""Tensors as the library of a rank describes them, and the names of dtypes."""

import torch

from simranks import channel, torch_version

TORCH_VERSION = torch_version()

# In the order of at::ScalarType, with LibTorch's name. A dtype that this version of torch lacks is left out.
_NAMES = """uint8 Byte, int8 Char, int16 Short, int32 Int, int64 Long, float16 Half, float32 Float, float64 Double,
complex32 ComplexHalf, complex64 ComplexFloat, complex128 ComplexDouble, bool Bool, qint8 QInt8, quint8 QUInt8,
qint32 QInt32, bfloat16 BFloat16, quint4x2 QUInt4x2, quint2x4 QUInt2x4, bits1x8 Bits1x8, bits2x4 Bits2x4,
bits4x2 Bits4x2, bits8 Bits8, bits16 Bits16, float8_e5m2 Float8_e5m2, float8_e4m3fn Float8_e4m3fn,
float8_e5m2fnuz Float8_e5m2fnuz, float8_e4m3fnuz Float8_e4m3fnuz, uint16 UInt16, uint32 UInt32, uint64 UInt64"""
_PAIRS = [pair.split() for pair in _NAMES.replace("\n", " ").split(",")]
_PAIRS += [[f"uint{bits}", f"UInt{bits}"] for bits in range(1, 8)] + [[f"int{bits}", f"Int{bits}"] for bits in range(1, 8)]
_PAIRS += [["float8_e8m0fnu", "Float8_e8m0fnu"], ["float4_e2m1fn_x2", "Float4_e2m1fn_x2"]]
_DTYPES = {getattr(torch, name): (number, of_c10) for number, (name, of_c10) in enumerate(_PAIRS) if hasattr(torch, name)}
_NUMBERS = {dtype: (number, dtype.itemsize) for dtype, (number, _) in _DTYPES.items()}

_LAYOUTS = {
    torch.sparse_coo: "Sparse", torch.sparse_csr: "SparseCsr", torch.sparse_csc: "SparseCsc", torch.sparse_bsr: "SparseBsr",
    torch.sparse_bsc: "SparseBsc", torch._mkldnn: "Mkldnn",
}


def dtype_name(dtype):
    """PyTorch's name, for example "float32"."""
    return str(dtype).removeprefix("torch.")


def describe_dtype(dtype):
    """LibTorch's name, for example "Float"."""
    return _DTYPES[dtype][1] if dtype in _DTYPES else dtype_name(dtype)


def bits(tensors):
    """Equal texts mean equal bits."""
    return " ".join(f"{fingerprint(tensor.detach()):016x}" for tensor in tensors)


def dtype_of(name):
    """By LibTorch's name. Raises KeyError if this version of torch lacks it."""
    return {of_c10: dtype for dtype, (_, of_c10) in _DTYPES.items()}[name]


def describe_sizes(tensor):
    return str(list(tensor.shape))


def add_words(words, tensor):
    """Describes a tensor: appends address, element size, dtype, number of dimensions, sizes and strides. Raises RuntimeError
    if it is not a dense one on the CPU."""
    if tensor.layout is not torch.strided:
        raise RuntimeError(
            f"expected a dense tensor, got a {_LAYOUTS.get(tensor.layout, tensor.layout)} one; only all_reduce accepts "
            f"sparse tensors (COO), as with Gloo; call tensor.to_dense()"
        )
    if not tensor.is_cpu:
        raise RuntimeError(f"a rank that is a process exchanges tensors of the CPU, got one on {tensor.device}")
    describe(words, tensor)


def describe(words, tensor):
    """The same of any tensor in memory."""
    number, item_bytes = _NUMBERS[tensor.dtype]
    shape = tensor.shape
    words += (tensor.data_ptr(), item_bytes, number, len(shape))
    words += shape
    words += tensor.stride()


def has_memory(tensor):
    """Whether the tensor's elements lie in memory."""
    return tensor.layout is torch.strided and tensor.numel() > 0 and not tensor.is_meta


def memory_range(tensor):
    """Addresses of the first byte and after the last one, gaps included."""
    begin, last = tensor.data_ptr(), 0
    if tensor.is_contiguous():
        return begin, begin + tensor.nbytes
    for size, stride in zip(tensor.shape, tensor.stride()):
        last += (size - 1) * stride
    return begin, begin + (last + 1) * tensor.element_size()


def in_one_piece(tensor):
    """The tensor, or a copy of it on the CPU without gaps."""
    tensor = tensor.detach()
    return tensor if tensor.is_cpu and tensor.is_contiguous() else tensor.cpu().contiguous()


def fingerprint(tensor):
    """Hashes the elements."""
    if tensor.numel() > 0 and not has_memory(tensor):
        raise RuntimeError("a tensor without elements in memory has no fingerprint")
    tensor = in_one_piece(tensor)
    return channel.fingerprint(tensor.data_ptr(), tensor.numel() * tensor.element_size())


def sample_fingerprint(tensor):
    """Hashes a sample of the elements; 0: unknown, as of a tensor with gaps."""
    if not has_memory(tensor) or not tensor.is_cpu or not torch.ops.aten.is_non_overlapping_and_dense(tensor):
        return 0
    return channel.sample_fingerprint(tensor.data_ptr(), tensor.nbytes)
