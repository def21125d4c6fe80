"""A GPU without one: torch's fake tensors on cuda, and who waits for the device.

Fake tensors have a device, a dtype and a shape and no numbers. What asks for numbers of a tensor on
cuda is a copy to the host or a wait for the device: it is noted by its place in the code, and gets
numbers that stand for them.
"""

import ctypes
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves

ROOT = Path(__file__).parent.parent.parent.parent
CUDA = torch.device("cuda", 0)  # with its index: nothing here can ask for the current device
HOST = torch.device("cpu")
aten = torch.ops.aten

Place = tuple[str, str]  # file and function of ours


def place(frame: FrameType | None) -> Place:
    """Return the innermost function of ours that is running, and its file."""
    while frame is not None:
        code, path = frame.f_code, Path(frame.f_code.co_filename)
        if path.is_relative_to(ROOT) and path.relative_to(ROOT).parts[0] in ("model", "service"):
            return str(path.relative_to(ROOT)), code.co_qualname.partition(".<locals>")[0]
        frame = frame.f_back
    return "", "the test"


class Watch(TorchDispatchMode):
    """Notes where a tensor on cuda is waited for; `waits` has a place for each time.

    `sends` has one for each copy to cuda of memory that is not page-locked, or is waited for.
    `products` has the rows of each matrix product on cuda.
    """

    def __init__(self) -> None:
        super().__init__()
        self.waits: list[Place] = []
        self.sends: list[Place] = []
        self.products: list[int] = []
        self._pinned: Tensor | None = None  # the last one

    def forget(self) -> None:
        """Forget what was noted."""
        for noted in (self.waits, self.sends, self.products):
            noted.clear()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if (
            func.namespace == "aten" and func._can_decompose()
        ):  # within inference_mode nothing has done so before
            with self:
                return func.decompose(*args, **(kwargs or {}))
        kwargs = kwargs or {}
        given = [one for one in tree_leaves((args, kwargs)) if isinstance(one, Tensor)]
        if any(one.device.type == "cuda" for one in given):
            if func in (aten.mm.default, aten.addmm.default):
                self.products.append(args[func is aten.addmm.default].shape[0])
            stand_in = self._stand_in(func, args, kwargs)
            if stand_in is not None:
                self.waits.append(place(sys._getframe(1)))
                return stand_in
        elif func is aten._pin_memory.default:  # it would ask for a GPU
            self._pinned = args[0]
            return args[0]
        elif (kwargs.get("device") or HOST).type != "cuda":
            with _disable_current_modes():  # the host's own numbers are real
                return func(*args, **kwargs)
        elif func is aten._to_copy.default:
            if not kwargs.get("non_blocking") or args[0] is not self._pinned:
                self.sends.append(place(sys._getframe(1)))
            kind = kwargs.get("dtype") or args[0].dtype
            return torch.empty(args[0].shape, dtype=kind, device=CUDA)
        return func(*args, **kwargs)

    def _stand_in(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Return numbers for what would wait for the device; None where nothing does."""
        first = args[0]
        if func is aten._local_scalar_dense.default:
            return True if first.dtype == torch.bool else 1
        if func is aten._to_copy.default and (kwargs.get("device") or CUDA).type == "cpu":
            with _disable_current_modes():
                return torch.ones(first.shape, dtype=kwargs.get("dtype") or first.dtype)
        if func is aten.copy_.default and first.device.type == "cpu":
            return first
        if func is aten.nonzero.default:  # its shape is a number: as if all were found
            return first.new_empty((first.numel(), first.dim()), dtype=torch.int64)
        if func is aten.bincount.default:  # likewise
            return first.new_empty(kwargs.get("minlength", 0) or len(first))
        if func is aten.index.Tensor:
            masks = [one for one in args[1] if one is not None and one.dtype == torch.bool]
            return first.flatten(0, masks[0].dim() - 1) if masks else None
        return None


@contextmanager
def watched() -> Iterator[Watch]:
    """Let tensors on CUDA be made, without numbers; what is given from outside counts as such."""
    _guard()
    watch = Watch()
    # where cuDNN may attend too, torch 2.15 asks the device whether it can
    without_cudnn = sdpa_kernel([SDPBackend.FLASH_ATTENTION, SDPBackend.MATH])
    with without_cudnn, FakeTensorMode(allow_non_fake_inputs=True), watch:
        yield watch


def _guard() -> None:
    """Give torch's CPU build a guard of cuda's current device: that of meta, which does nothing.

    torch does so itself in a CUDA build that finds no GPU (FakeTensorMode.__enter__).
    """
    if torch.version.cuda is not None:
        return
    c10 = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libc10.so"))
    guards = (ctypes.c_void_p * 16).in_dll(c10, "_ZN3c104impl26device_guard_impl_registryE")
    guards[1] = guards[14]  # c10::DeviceType's numbers of cuda and of meta
